"""Does a process's memory grow without end? Pure functions of what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtfuse.core.specs import Array

# The first third: caches fill, arenas and pools of buffers grow to what the run needs.
_WARM_UP = 1 / 3
# Of what is left, to speak of growth at all: allocators settle over minutes.
_LEAST_S = 600.0
# A gigabyte a day: what takes a machine's memory in the weeks that a run may go. Less is a matter
# of allocators: 64 MiB is an arena of glibc's, and comes once.
_LEAST_PER_S = (1 << 30) / 86400
_LEAST_RISE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """How memory went after the warm-up."""

    bytes_per_hour: float | None
    """The median of the slopes between all pairs of samples (Theil and Sen): a third of them may
    be anything. None: the run is too short for one."""
    leaks: bool


def rise(seconds: Sequence[float], nbytes: Sequence[float | None]) -> Rise:
    """Whether the memory of one process or device rises as a leak does.

    A leak rises fast enough to matter, and all the time: in each third of what is judged, the least
    is higher than in the third before, by half of its fair share or more. A step has its rise in
    one place; a sawtooth comes back to its least.
    """
    known = [(s, b) for s, b in zip(seconds, nbytes, strict=True) if b is not None]
    if len(known) < 2:
        return Rise(bytes_per_hour=None, leaks=False)
    times, values = np.array(known, np.float64).T
    warm = times >= times[0] + _WARM_UP * (times[-1] - times[0])
    times, values = times[warm], values[warm]
    span = float(times[-1] - times[0])
    if span < _LEAST_S:
        return Rise(bytes_per_hour=None, leaks=False)
    slope = _theil_sen(times, values)
    grows = slope >= _LEAST_PER_S and slope * span >= _LEAST_RISE
    return Rise(
        bytes_per_hour=round(3600 * slope, 1),
        leaks=grows and _rises_throughout(times, values, slope * span),
    )


def _theil_sen(times: Array, values: Array) -> float:
    """Median slope over all pairs: of 512 samples 131,000, some milliseconds."""
    first, second = np.triu_indices(len(times), k=1)
    return float(np.median((values[second] - values[first]) / (times[second] - times[first])))


def _rises_throughout(times: Array, values: Array, whole: float) -> bool:
    edges = np.linspace(times[0], times[-1], 4)[1:3]
    parts = np.split(values, np.searchsorted(times, edges))
    if not all(len(part) for part in parts):
        return False
    first, second, third = (float(part.min()) for part in parts)
    return min(second - first, third - second) >= whole / 6
