"""From counts so far to rates in between: pure functions of samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from trtfuse.core.report import Line, Samples


@dataclass(frozen=True, slots=True)
class Stretch:
    """A rate that held from one moment to another, in seconds of the run."""

    begin: float
    end: float
    rate: float


def rates(samples: Samples, line: Line) -> list[Stretch]:
    """The growth of `line` per second, from each sample to the next.

    A sample without a value is passed over, and so is the one before the last where these two are
    near: the end of a run comes when it comes, and a rate over a moment says nothing.
    """
    points = known(samples, line)
    if len(points) > 2 and points[-1][0] - points[-2][0] < (points[-2][0] - points[-3][0]) / 2:
        del points[-2]
    return [
        Stretch(before, now, (value - so_far) / (now - before))
        for (before, so_far), (now, value) in pairwise(points)
        if now > before
    ]


def known(samples: Samples, line: Line) -> list[tuple[float, float]]:
    """(seconds, value), where there is one."""
    pairs = zip(samples.seconds, line.values, strict=True)
    return [(seconds, value) for seconds, value in pairs if value is not None]
