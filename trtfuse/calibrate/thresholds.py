"""From a histogram to the magnitude that becomes INT8's level 127. Pure.

    entropy            the least Kullback-Leibler divergence between the values and their levels
    percentile:99.99   that share of the values lies within
    minmax             the largest value
    mse                the least mean squared error of rounding and clipping

None is best everywhere. Entropy is TensorRT's own default; see benchmarks/results/precision.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trtfuse.calibrate.histogram import Histogram, edges
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.specs import Array

_LEVELS = 128
# Bins of the distribution that entropy compares, within one level. TensorRT's and everyone's
# number of bins is 2,048 at the largest threshold; here it is that at every threshold.
_BINS_A_LEVEL = 16
# Thresholds tried: 2.2 % apart, down to 1/16 of the largest value.
_CANDIDATES = 2.0 ** (-np.arange(129) / 32)
_NAMES = ("entropy", "percentile", "minmax", "mse")


@dataclass(frozen=True, slots=True)
class Method:
    """How thresholds are chosen."""

    name: str
    percentile: float | None = None

    def __str__(self) -> str:
        """As `--calib-method` says it."""
        return self.name if self.percentile is None else f"{self.name}:{self.percentile:g}"


def parse_method(text: str) -> Method:
    """`--calib-method`. Raises UnknownName, UsageError."""
    name, colon, value = text.partition(":")
    if name not in _NAMES:
        raise UnknownName.among("--calib-method", name, _NAMES)
    if name != "percentile":
        if colon:
            raise UsageError(f"--calib-method {text}: only percentile takes a number.")
        return Method(name)
    if not re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII) or not 50 <= float(value) <= 100:
        raise UsageError(
            f"--calib-method {text}: needs a share of 50 to 100, for example percentile:99.99"
        )
    return Method(name, float(value))


def threshold(histogram: Histogram, largest: float, method: Method) -> float:
    """The threshold, `largest` at most; `largest` is the exact largest magnitude, above 0."""
    seen = _Seen.of(histogram, largest)
    if method.percentile is not None:
        return _percentile(seen, method.percentile)
    return _CHOICES[method.name](seen)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The occupied part of a histogram."""

    edges: Array
    """(bins + 1,), ascending; the last is at or above `largest`."""
    counts: Array
    largest: float

    @classmethod
    def of(cls, histogram: Histogram, largest: float) -> _Seen:
        limits = edges()
        top = int(np.searchsorted(limits, largest, side="right"))
        return cls(limits[: top + 1], histogram.counts[:top].astype(np.float64), largest)

    def below(self, values: Array) -> Array:
        """How many values lie below each of `values`; evenly spread within a bin."""
        upto = np.concatenate([[0.0], np.cumsum(self.counts)])
        return np.asarray(np.interp(values, self.edges, upto))


def _percentile(seen: _Seen, share: float) -> float:
    upto = np.cumsum(seen.counts)
    index = int(np.searchsorted(upto, upto[-1] * share / 100))
    return min(float(seen.edges[index + 1]), seen.largest)


def _minmax(seen: _Seen) -> float:
    return seen.largest


def _mse(seen: _Seen) -> float:
    centres = (seen.edges[1:] + seen.edges[:-1]) / 2
    # A first bin that holds zeros alone stands at 0, where rounding does nothing.
    centres[0] = 0.0

    def error(limit: float) -> float:
        step = limit / (_LEVELS - 1)
        rounded = np.minimum(np.round(centres / step), _LEVELS - 1) * step
        return float((seen.counts * (rounded - centres) ** 2).sum())

    return float(min(_CANDIDATES * seen.largest, key=error))


def _entropy(seen: _Seen) -> float:
    """As TensorRT's calibrator, at thresholds of equal ratio instead of equal distance."""
    limits = _CANDIDATES * seen.largest
    bins = _LEVELS * _BINS_A_LEVEL
    fine = limits[:, None] * (np.arange(bins + 1) / bins)
    kept = np.diff(seen.below(fine), axis=1)
    # Zeros are exact at any threshold, and a ReLU makes so many that nothing else would count.
    kept[:, 0] = kept[:, 1]
    levels = kept.reshape(len(limits), _LEVELS, _BINS_A_LEVEL)
    filled = levels > 0
    mean = levels.sum(2) / np.maximum(filled.sum(2), 1)
    candidate = np.where(filled, mean[..., None], 0.0).reshape(len(limits), bins)
    reference = kept.copy()
    reference[:, -1] += seen.counts.sum() - seen.below(limits)
    return float(limits[np.argmin(_divergence(reference, candidate))])


def _divergence(reference: Array, candidate: Array) -> Array:
    """Kullback-Leibler divergence of each row; what the candidate cannot say costs much."""
    p = reference / reference.sum(1, keepdims=True)
    q = candidate / np.maximum(candidate.sum(1, keepdims=True), 1e-30)
    terms = np.zeros_like(p)
    np.divide(p, np.maximum(q, 1e-12), out=terms, where=p > 0)
    np.log(terms, out=terms, where=p > 0)
    return np.asarray((p * terms).sum(1))


_CHOICES: dict[str, Callable[[_Seen], float]] = {
    "entropy": _entropy,
    "minmax": _minmax,
    "mse": _mse,
}
