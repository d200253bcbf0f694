"""What a video file holds frame by frame: when each is shown, and the hash of its packet.

A frame that was encoded with losses cannot be told from its pixels, which are never quite those
that were given to the encoder. Its packet is the frame, bit for bit, for as long as the file is not
encoded again: so a file that has changed can be held against these, and frames that differ named.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
from av.container import InputContainer

from trtfuse.core.errors import ItemError
from trtfuse.io.containers import url
from trtfuse.io.video import timeline


@dataclass(frozen=True, slots=True, order=True)
class Seal:
    """One frame of a video file: when it is shown, in seconds, and the SHA-256 of its packet."""

    seconds: float
    sha256: str


def seals(path: Path) -> list[Seal]:
    """In the order of their times. Raises ItemError for what cannot be read as a video."""
    with _opened(path) as container:
        return sorted(
            Seal(
                seconds=round(float(packet.pts * packet.time_base), 6),
                sha256=hashlib.sha256(packet).hexdigest(),
            )
            for packet in container.demux(container.streams.video[0])
            if packet.pts is not None and packet.size
        )


def played(path: Path) -> list[tuple[float, str]]:
    """When each frame is shown, in seconds, with the reason where it cannot be decoded.

    Decodes all of it. Raises ItemError as `seals`.
    """
    with _opened(path) as container:
        tick = container.streams.video[0].time_base or Fraction(1, 1000)
        return [(round(float(one.start * tick), 6), one.why) for one in timeline(container)]


@contextmanager
def _opened(path: Path) -> Iterator[InputContainer]:
    try:
        with av.open(url(path)) as container:
            if not container.streams.video:
                raise ItemError("holds no video.")
            yield container
    except (av.FFmpegError, OSError) as error:
        raise ItemError(f"cannot be read as a video: {error.strerror}.") from error


def differences(
    keys: Sequence[str], wanted: Sequence[Seal], found: Sequence[Seal], *, tolerance_s: float
) -> Iterator[tuple[str, str]]:
    """The frames, by key, that a file does not show as they were written, and what it shows.

    `keys` and `wanted` are of the frames that were written, `found` is what there is, all in the
    order of their times. Times may differ by the tolerance: a container rounds them.
    """
    if len(wanted) != len(found):
        yield from _lost(keys, wanted, found)
        return
    key_of = {one.sha256: key for key, one in zip(keys, wanted, strict=True)}
    for key, want, got in zip(keys, wanted, found, strict=True):
        if want.sha256 != got.sha256:
            there = key_of.get(got.sha256)
            yield key, "was altered" if there is None else f"shows what was written as {there}"
        elif abs(want.seconds - got.seconds) > tolerance_s:
            yield key, f"is shown at {got.seconds:g} s, and was written for {want.seconds:g} s"


def _lost(
    keys: Sequence[str], wanted: Sequence[Seal], found: Sequence[Seal]
) -> Iterator[tuple[str, str]]:
    were = Counter(one.sha256 for one in wanted)
    are = Counter(one.sha256 for one in found)
    missing, more = were - are, are - were
    for key, one in zip(keys, wanted, strict=True):
        if missing[one.sha256]:
            missing[one.sha256] -= 1
            yield key, "is missing, or was altered"
        elif more[one.sha256]:
            del more[one.sha256]
            yield key, f"is there {are[one.sha256]} times"
    if more:
        yield keys[-1].rpartition("/")[0], f"holds {more.total()} frames that were never written"
