"""What repeated measurements say: middle, spread, percentiles, ratios with their uncertainty. Pure.

Nothing here supposes a distribution: times have long tails, and means follow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import median

# Of both tails of a normal distribution together, 5 %.
_Z95 = 1.96
# A 99th percentile of fewer samples would be their largest under another name.
_FEWEST_FOR_P99 = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Quartiles:
    """The middle of repeated measurements, and the range of their middle half."""

    low: float
    median: float
    high: float
    repeats: int

    @property
    def relative(self) -> float:
        """The width of that range over the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds that one batch took, over all samples."""

    p50_ms: float
    p90_ms: float
    p99_ms: float | None
    """None: too few samples to say."""
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times one rate is another; the true ratio lies between low and high, most likely."""

    value: float
    low: float
    high: float


def quartiles(values: Sequence[float]) -> Quartiles:
    """Median and quartiles, interpolated between neighbours.

    >>> quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    Quartiles(low=2.0, median=3.0, high=4.0, repeats=5)
    """
    ordered = sorted(values)
    low, high = (_interpolated(ordered, share) for share in (0.25, 0.75))
    return Quartiles(low=low, median=median(ordered), high=high, repeats=len(ordered))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed (nearest rank).

    >>> percentile([10.0, 20.0, 30.0, 40.0], 0.5)
    20.0
    """
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def latency(samples_ns: Sequence[int]) -> Latency:
    """Percentiles of single batches' times."""
    p50, p90, p99 = (percentile(samples_ns, share) / 1e6 for share in (0.5, 0.9, 0.99))
    enough = len(samples_ns) >= _FEWEST_FOR_P99
    return Latency(p50_ms=p50, p90_ms=p90, p99_ms=p99 if enough else None, samples=len(samples_ns))


def ratio(new: Sequence[float], old: Sequence[float]) -> Ratio:
    """How many times `old` the rates `new` are, with the interval of 95 %.

    The median of all quotients of one of each, and the interval that belongs to it (Hodges and
    Lehmann 1963, on logarithms): the quotients outside it are as many as the rank-sum test would
    not believe. With fewer than four values each, it is all of them, and less than 95 %.
    """
    quotients = sorted(a / b for a in new for b in old)
    m, n = len(new), len(old)
    outside = m * n / 2 - _Z95 * sqrt(m * n * (m + n + 1) / 12)
    cut = max(0, floor(outside))
    return Ratio(value=median(quotients), low=quotients[cut], high=quotients[-1 - cut])


def _interpolated(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
