"""What the host does without fusing, in plain NumPy: the witness of a fused graph.

Written from the card's definition and apart from `fuse.py`, so that they can disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

import numpy as np

from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.specs import Array, Arrays
from trtfuse.graph.check import Run

_Pair = tuple[int, int]


def by_host(run: Run, card: Card, fused: Card, dtype: str, resizing: Run | None = None) -> Run:
    """`run`, a graph that `card` describes, as a function of what `fused` describes.

    Takes bytes, NHWC, where the fused graph does, and gives them where it does. `dtype` is of the
    graph's own input. Where the fused graph resizes, `resizing` does: it is judged by itself
    (`resizer`), as a byte that is rounded to the other side would look like an error of the rest.
    """

    def answer(feeds: Arrays) -> Arrays:
        given = dict(feeds)
        if given[card.input.name].dtype == np.uint8 and fused.input != card.input:
            pixels = given[card.input.name]
            if resizing:
                (planes,) = resizing({card.input.name: pixels}).values()
                pixels = planes.transpose(0, 2, 3, 1)
            given[card.input.name] = _encoded(pixels, card.input).astype(dtype)
        outputs = run(given)
        return {**outputs, **_pictures(outputs, card, fused)}

    return answer


def resizer(card: InputCard, output: str) -> Run:
    """Pictures of bytes [batch, height, width, channels] to planes of the card's size, `output`."""

    def answer(feeds: Arrays) -> Arrays:
        planes = feeds[card.name].transpose(0, 3, 1, 2)
        scaled, begin, size = _placed(card, (planes.shape[2], planes.shape[3]))
        picture = _scaled(planes, scaled)
        rows, columns = (_window(*side) for side in zip(begin, scaled, size, strict=True))
        canvas = np.full((*planes.shape[:2], *size), card.pad, np.uint8)
        canvas[..., rows[0], columns[0]] = picture[..., rows[1], columns[1]]
        return {output: canvas}

    return answer


def _placed(card: InputCard, picture: _Pair) -> tuple[_Pair, _Pair, _Pair]:
    """(height, width) of the scaled picture, where it begins in the input, and of the input."""
    if card.size == "dynamic":
        rows, columns = (-(-side // card.multiple) * card.multiple for side in picture)
        return (rows, columns) if card.resize == "stretch" else picture, (0, 0), (rows, columns)
    if card.resize == "stretch":
        return card.size, (0, 0), card.size
    fitted = [Fraction(size, side) for size, side in zip(card.size, picture, strict=True)]
    scale = min(fitted) if card.resize == "letterbox" else max(fitted)
    height, width = (max(1, floor(side * scale + Fraction(1, 2))) for side in picture)
    top, left = (int((card.size[n] - side) / 2) for n, side in enumerate((height, width)))
    return (height, width), (top, left), card.size


def _window(begin: int, scaled: int, size: int) -> tuple[slice, slice]:
    """Which part of one side of the input the picture takes, and which part of itself it shows."""
    first, behind = max(0, begin), min(size, begin + scaled)
    return slice(first, behind), slice(first - begin, behind - begin)


def _scaled(planes: Array, size: _Pair) -> Array:
    """As OpenCV resizes bytes: by area where they shrink, then linearly in its fixed point."""
    sides = planes.shape[2:]
    if sides == size:
        return planes
    smaller = tuple(map(min, sides, size))
    rows, columns = map(_area, sides, smaller)
    means = rows @ planes.astype(np.float64) @ columns.T
    halved = sides == (2 * smaller[0], 2 * smaller[1])
    levels = (np.floor(means + 0.5) if halved else np.round(means)).astype(np.int64)
    (top, bottom, down), (left, right, across) = map(_neighbours, smaller, size)
    wide = levels[..., left] * (2048 - across) + levels[..., right] * across >> 4
    down = down[:, None]
    upper, lower = wide[..., top, :] * (2048 - down) >> 16, wide[..., bottom, :] * down >> 16
    resized: Array = (upper + lower + 2 >> 2).astype(np.uint8)
    return resized


def _area(length: int, size: int) -> Array:
    """(size, length): how much of each pixel lies in which of `size` equal parts of the line."""
    edges = np.arange(size + 1) * length / size
    pixels = np.arange(length)
    shared = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights: Array = shared.clip(0) * size / length
    return weights


def _neighbours(length: int, size: int) -> tuple[Array, Array, Array]:
    """For each of `size` pixels, the two it lies between, and the second's share in 2048ths."""
    places = (np.arange(size) + 0.5) * length / size - 0.5
    first = np.floor(places)
    share = np.round((places - first) * 2048).astype(np.int64)
    first = first.astype(np.int64)
    return first.clip(0), (first + 1).clip(max=length - 1), share


def _encoded(pixels: Array, card: InputCard) -> Array:
    """RGB or grey levels 0 to 255 to what the network takes, by the card's formula."""
    low, high = card.range
    values = low + pixels / 255 * (high - low)
    if card.colour == "BGR":
        values = values[..., ::-1]
    values = (values - _vector(card.mean, 0.0)) / _vector(card.std, 1.0)
    return values.transpose(0, 3, 1, 2) if card.layout == "NCHW" else values


def _vector(values: Sequence[float], default: float) -> Array:
    return np.array(values or (default,))


def _pictures(outputs: Arrays, card: Card, fused: Card) -> dict[str, Array]:
    """The picture as bytes, and the count of what they cannot show, where `fused` gives these."""
    if card.task == fused.task or not isinstance(card.task, ImageTask):
        return {}
    assert isinstance(fused.task, ImageTask)
    assert fused.task.invalid, "what is fused counts"
    task, values = card.task, outputs[card.task.output].astype(np.float64)
    invalid = (~np.isfinite(values)).sum(axis=(1, 2, 3))
    if task.layout == "NCHW":
        values = values.transpose(0, 2, 3, 1)
    if task.colour == "BGR":
        values = values[..., ::-1]
    low, high = task.range
    levels = np.floor((values - low) / (high - low) * 255 + 0.5).clip(0, 255)
    return {task.output: levels.astype(np.uint8), fused.task.invalid: invalid.astype(np.float32)}
