"""How far answers lie from those of FP32: numbers on arrays and on detections. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtfuse.core.specs import Array

# Channels whose magnitudes are that much apart, with none between, mean different things: boxes in
# pixels and scores below 1 of a detector are 300 apart.
_GAP = 8.0
# Side of SSIM's window, and its two constants: as published, and as scikit-image has them.
_WINDOW = 7
_K1, _K2 = 0.01, 0.03

Detections = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ChannelSums:
    """Sums over everything but one axis, of any number of answers; memory is flat."""

    expected: Array
    """Of the squares."""
    got: Array
    both: Array
    """Of the products."""
    noise: Array
    """Of the squared differences."""
    largest: Array
    """Magnitude expected."""
    worst: Array
    """Difference."""
    count: int

    @classmethod
    def of(cls, expected: Array, got: Array, axis: int) -> ChannelSums:
        """Of one answer, with its batch axis."""
        want, have = (
            np.moveaxis(one.astype(np.float64), axis, 0).reshape(one.shape[axis], -1)
            for one in (expected, got)
        )
        off = np.abs(want - have)
        return cls(
            expected=np.square(want).sum(1),
            got=np.square(have).sum(1),
            both=(want * have).sum(1),
            noise=np.square(off).sum(1),
            largest=np.abs(want).max(1, initial=0),
            worst=off.max(1, initial=0),
            count=want.shape[1],
        )

    def __add__(self, other: ChannelSums) -> ChannelSums:
        return ChannelSums(
            expected=self.expected + other.expected,
            got=self.got + other.got,
            both=self.both + other.both,
            noise=self.noise + other.noise,
            largest=np.maximum(self.largest, other.largest),
            worst=np.maximum(self.worst, other.worst),
            count=self.count + other.count,
        )

    def cosine(self, channels: Array) -> float:
        """Of the angle between expected and got; 1 where both are 0."""
        size = float(np.sqrt(self.expected[channels].sum() * self.got[channels].sum()))
        if size == 0:
            return float(self.noise[channels].sum() == 0)
        return float(self.both[channels].sum()) / size

    def sqnr_db(self, channels: Array) -> float:
        """Signal over noise, in decibels; infinite without noise."""
        noise, signal = self.noise[channels].sum(), self.expected[channels].sum()
        if noise == 0:
            return float("inf")
        return float(10 * np.log10(signal / noise)) if signal else float("-inf")

    def error(self, channels: Array) -> float:
        """The largest difference, of the largest magnitude expected."""
        worst, largest = float(self.worst[channels].max()), float(self.largest[channels].max())
        return worst / largest if largest else (float("inf") if worst else 0.0)


def channel_groups(sums: ChannelSums) -> tuple[Array, ...]:
    """Channels by magnitude: a gap of 8 times between two neighbours in size parts two groups.

    Channels that are 0 throughout belong to the smallest others: they have no size of their own.
    """
    size = np.sqrt(sums.expected / max(sums.count, 1))
    order = np.argsort(size, kind="stable")
    # In a group of zeros no gap is seen, and the step from it is none.
    ascending = np.where(size[order] > 0, size[order], np.min(size[size > 0], initial=np.inf))
    cuts = np.flatnonzero(ascending[1:] > _GAP * ascending[:-1]) + 1
    return tuple(np.sort(part) for part in np.split(order, cuts))


def psnr_db(expected: Array, got: Array, span: float) -> float:
    """Peak signal over noise of pictures whose values span `span`."""
    noise = float(np.square(expected.astype(np.float64) - got).mean())
    return float(10 * np.log10(span**2 / noise)) if noise else float("inf")


def ssim(expected: Array, got: Array, span: float) -> float:
    """Structural similarity of (channels, height, width) pictures: the mean over all windows.

    Pictures smaller than the window are one window each.
    """
    window = (min(_WINDOW, expected.shape[-2]), min(_WINDOW, expected.shape[-1]))
    x, y = expected.astype(np.float64), got.astype(np.float64)
    mean_x, mean_y = _means(x, window), _means(y, window)
    # Sample (co)variances: n - 1, as in the paper's successors and in scikit-image.
    unbiased = np.prod(window) / max(np.prod(window) - 1, 1)
    var_x = unbiased * (_means(x * x, window) - mean_x**2)
    var_y = unbiased * (_means(y * y, window) - mean_y**2)
    both = unbiased * (_means(x * y, window) - mean_x * mean_y)
    c1, c2 = (_K1 * span) ** 2, (_K2 * span) ** 2
    similar = (2 * mean_x * mean_y + c1) * (2 * both + c2)
    return float((similar / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))).mean())


@dataclass(frozen=True, slots=True)
class Again:
    """Detections of one item, looked for in another answer."""

    pairs: int = 0
    """How many have a partner."""
    drift: float = 0.0
    """The largest difference of a score and its partner's."""
    overlap: float = 1.0
    """The least that one overlaps with what lies nearest, partner or not; 1 where there is none."""


def found_again(expected: Detections, got: Detections, *, iou: float) -> Again:
    """Which of `expected` have a partner of their label in `got` that overlaps by `iou` or more.

    Each of `got` is a partner once, the best overlap of the best score first.
    """
    free = list(range(len(got)))
    pairs = 0
    drift, least = 0.0, 1.0
    for one in expected:
        rivals = [n for n in free if got[n]["label"] == one["label"]]
        overlaps = {n: overlap(one["box"], got[n]["box"]) for n in rivals}
        best = max(overlaps, key=lambda n: overlaps[n], default=None)
        least = min(least, 0.0 if best is None else overlaps[best])
        if best is not None and overlaps[best] >= iou:
            free.remove(best)
            pairs += 1
            drift = max(drift, abs(one["score"] - got[best]["score"]))
    return Again(pairs, drift, least)


def _means(values: Array, window: tuple[int, int]) -> Array:
    """The mean of every window, by running sums."""
    height, width = window
    sums = np.pad(values.cumsum(-2).cumsum(-1), [(0, 0)] * (values.ndim - 2) + [(1, 0), (1, 0)])
    whole = sums[..., height:, width:] - sums[..., :-height, width:]
    return np.asarray(
        (whole - sums[..., height:, :-width] + sums[..., :-height, :-width]) / (height * width)
    )


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return shared / (areas - shared) if areas > shared else 0.0
