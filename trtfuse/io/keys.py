"""Keys of items: a file's path below its folder, as text that any JSON reader takes.

A Linux name is bytes and need not be UTF-8. Such a path becomes "./" and its text with \\xNN for
each byte that is not UTF-8, and with \\\\ for a backslash. No other key begins with "./", so
two files never share a key, and every key leads back to its file.
"""

from __future__ import annotations

import os
import re

_MARK = "./"
_ESCAPE = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")


def key_of(path: str) -> str:
    """The key of `path`, a relative path with forward slashes as `os` gives it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(path).replace(b"\\", b"\\\\")
        return _MARK + raw.decode(errors="backslashreplace")
    return path


def path_of(key: str) -> str:
    """The path that `key` was made of, as `os` takes it."""
    if not key.startswith(_MARK):
        return key
    return os.fsdecode(_ESCAPE.sub(_unescape, key.removeprefix(_MARK).encode()))


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else b"\\"


def frame_key(clip: str, index: int) -> str:
    """The key of a clip's frame: a file is no folder, so nothing else has it.

    >>> frame_key("sub/a.gif", 7)
    'sub/a.gif/000007'
    """
    return f"{clip}/{index:06d}"


def file_of(key: str) -> tuple[str, int | None]:
    """The key of the item's file, and the number of its frame; None: it is the file.

    >>> file_of("sub/a.gif/000007")
    ('sub/a.gif', 7)
    """
    file, _, number = key.rpartition("/")
    # No file of a folder is called so: its name has a suffix.
    if file and number.isdecimal() and len(number) >= 6:
        return file, int(number)
    return key, None
