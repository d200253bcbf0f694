"""Sizes and settings as people write them."""

from __future__ import annotations

import re
import shlex

from trtfuse.core.errors import UsageError

_UNITS = {"": 0, "KIB": 10, "MIB": 20, "GIB": 30, "K": 10, "M": 20, "G": 30}


def parse_bytes(text: str, *, flag: str) -> int:
    """Bytes of "512MiB", "2GiB", "1.5G" or a plain number; binary units. Raises UsageError.

    >>> parse_bytes("1.5GiB", flag="--memory")
    1610612736
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"{flag} {text}: needs a size such as 512MiB or 2GiB.")
    return int(float(match[1]) * (1 << _UNITS[match[2].upper()]))


def mib(nbytes: int) -> str:
    """ "64 MiB": bytes for a message.

    >>> mib(64 << 20)
    '64 MiB'
    """
    return f"{nbytes / (1 << 20):.0f} MiB"


def file_size(nbytes: int) -> str:
    """ "25.6 MB": bytes of a file, however small.

    >>> file_size(612), file_size(48_300), file_size(25_557_032)
    ('612 B', '48.3 kB', '25.6 MB')
    """
    if nbytes < 1000:
        return f"{nbytes} B"
    return f"{nbytes / 1e3:.1f} kB" if nbytes < 1_000_000 else f"{nbytes / 1e6:.1f} MB"


def parse_pairs(text: str, *, flag: str) -> tuple[tuple[str, str], ...]:
    """Pairs of "name=value name=value", quoted as in a shell. Raises UsageError.

    >>> parse_pairs("preset=slow x264-params=a=1:b=2", flag="--encoder-args")
    (('preset', 'slow'), ('x264-params', 'a=1:b=2'))
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text}: {error}.") from error
    pairs = [word.partition("=") for word in words]
    if bad := [name for name, equals, _ in pairs if not (name and equals)]:
        raise UsageError(f"{flag} {text}: {bad[0]!r} needs the form name=value.")
    return tuple((name, value) for name, _, value in pairs)
