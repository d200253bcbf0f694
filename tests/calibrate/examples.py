"""Inputs that look like pictures, and ones that do not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtfuse.calibrate.recipe import Example

Floats = NDArray[np.float32]


def smooth(seed: int, *, size: int = 32, high: float = 1.0) -> Floats:
    """(1, 3, size, size): a slope with waves, from 0 to `high`."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size] / size
    planes = [
        np.sin(rng.uniform(1, 6) * rows + rng.uniform(1, 6) * columns + rng.uniform(0, 6))
        for _ in range(3)
    ]
    picture = np.stack(planes) + 0.05 * rng.standard_normal((3, size, size))
    picture = (picture - picture.min()) / (picture.max() - picture.min()) * high
    return np.asarray(picture[None], np.float32)


def noise(seed: int, *, size: int = 32) -> Floats:
    return np.random.default_rng(seed).random((1, 3, size, size), np.float32)


def example(key: str, array: Floats, *, name: str = "x") -> Example:
    digest = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    return Example(key=key, sha256=digest, load=lambda: {name: array})


def examples(arrays: Sequence[Floats]) -> list[Example]:
    return [example(f"{n:02d}.png", array) for n, array in enumerate(arrays)]
