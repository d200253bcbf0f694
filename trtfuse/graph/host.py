"""What the host does without fusing, in plain NumPy: the witness of a fused graph.

Written from the card's definition and apart from `fuse.py`, so that they can disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.specs import Array, Arrays
from trtfuse.graph.check import Run


def by_host(run: Run, card: Card, fused: Card, dtype: str) -> Run:
    """`run`, a graph that `card` describes, as a function of what `fused` describes.

    Takes bytes, NHWC, where the fused graph does, and gives them where it does. `dtype` is of the
    graph's own input.
    """

    def answer(feeds: Arrays) -> Arrays:
        given = dict(feeds)
        if given[card.input.name].dtype == np.uint8 and fused.input != card.input:
            pixels = given[card.input.name].astype(np.float64)
            if fused.input.resized_by == "graph" and card.input.resized_by == "host":
                pixels = _stretched(pixels, card.input)
            given[card.input.name] = _encoded(pixels, card.input).astype(dtype)
        outputs = run(given)
        return {**outputs, **_pictures(outputs, card, fused)}

    return answer


def _stretched(pixels: Array, card: InputCard) -> Array:
    """Pictures (batch, height, width, channels) at the card's size, not rounded."""
    assert card.size != "dynamic"
    sizes = zip(pixels.shape[1:3], card.size, strict=True)
    rows, columns = (_weights(length, size) for length, size in sizes)
    stretched: Array = np.einsum("ih,bhwc,jw->bijc", rows, pixels, columns, optimize=True)
    return stretched


def _weights(length: int, size: int) -> Array:
    """(size, length): area where a line of pixels shrinks, linear where it grows."""
    scale = length / size
    weights = np.zeros((size, length))
    for k in range(size):
        if scale > 1:
            for j in range(int(k * scale), min(length, int(np.ceil((k + 1) * scale)))):
                weights[k, j] = (min((k + 1) * scale, j + 1) - max(k * scale, j)) / scale
        else:
            place = min(max((k + 0.5) * scale - 0.5, 0), length - 1)
            first = int(place)
            weights[k, first] += 1 - (place - first)
            weights[k, min(first + 1, length - 1)] += place - first
    return weights.clip(0)


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
