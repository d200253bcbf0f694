"""How a tensor's magnitudes are distributed, in memory that does not grow with what is added.

A bin is the upper bits of a float32: its exponent and eight bits of its fraction. So the bins are
there before the first value is: nothing is rebinned as larger values come, and the result does not
depend on the order or grouping of what was added. Each octave has 256 bins, which is four or more
within one INT8 step wherever the largest value lies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

import numpy as np

from trtfuse.core.specs import Array

_SHIFT = 15
_BINS = 1 << (31 - _SHIFT)
_MAGNITUDE = np.uint32(0x7FFFFFFF)

# Values that one array adds, evenly spaced, where it has more; its extremes are always exact. All
# values of a large network would take longer to count than to compute.
_SAMPLE = 1 << 15


@dataclass(frozen=True)
class Histogram:
    """Counts of |x|. `counts[i]` belongs to [edges()[i], edges()[i + 1])."""

    counts: Array = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    def add(self, values: Array) -> None:
        """Count the magnitudes of float32 `values`, or of an even sample of them; all finite."""
        sampled = np.ascontiguousarray(values.reshape(-1)[:: stride(values.size)])
        found = np.bincount((sampled.view(np.uint32) & _MAGNITUDE) >> np.uint32(_SHIFT))
        self.counts[: found.size] += found


def edges() -> Array:
    """The lower edge of every bin and the upper one of the last, float64, ascending."""
    bits = np.arange(_BINS + 1, dtype=np.uint64) << _SHIFT
    with np.errstate(invalid="ignore"):
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def stride(size: int) -> int:
    """The step that leaves at most a sample of `size` values.

    It shares no factor with the size, so that it does not keep to one column of a picture.
    """
    step = -(-size // _SAMPLE)
    while gcd(step, size) > 1:
        step += 1
    return step
