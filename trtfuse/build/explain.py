"""What a model is given for a picture: the numbers, and the rule that made them.

Calibration, gates and runs all read the one card in the file. Whether that card is what the model
was trained with only its author can tell, from numbers: these.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtfuse.core.card import InputCard
from trtfuse.core.errors import CardError, ItemError, UsageError
from trtfuse.core.flow import Geometry
from trtfuse.core.specs import Array
from trtfuse.graph.model import describe
from trtfuse.io.opening import open_source
from trtfuse.tasks.fitting import shown
from trtfuse.tasks.table import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One picture as one model sees it."""

    card: InputCard
    geometry: Geometry
    shape: tuple[int, ...]
    """Of the input tensor, with its batch axis of 1."""
    dtype: str
    pixel: tuple[int, int, int]
    """The picture's top left pixel as decoded and upright: R, G, B."""
    first: tuple[float, ...]
    """What the tensor holds where the picture begins, in the order of its channels."""
    extremes: tuple[tuple[float, float], ...]
    """The least and the largest value of each channel, padding included."""


def explain(model: Path, picture: Path) -> Explanation:
    """Prepare `picture` as the card of `model` says. Nothing is run.

    Raises CardError where the model has no card, UsageError where the file is no picture, or none
    that the model takes.
    """
    described = describe(model)
    if described.card is None:
        raise CardError(
            f"{model}: has no card, so nothing says what a picture is to it. Add one with: "
            f"trtfuse export {model} --card card.json -o OUTPUT"
        )
    card, encoder = described.card.input, codec(described.card)
    if not picture.is_file():
        raise UsageError(f"--explain {picture}: needs a picture's file.")
    item = next(iter(open_source(picture)))
    try:
        found = item.load()
        geometry = encoder.fit(*found.pixels.shape[:2])
    except ItemError as error:
        raise UsageError(f"--explain {picture}: {error}") from error
    (tensor,) = (one for one in described.inputs if one.name == card.name)
    array = np.empty(encoder.shape(geometry), np.dtype(tensor.dtype))
    encoder.encode(found, geometry, array)
    planes = array if card.layout == "NCHW" else np.moveaxis(array, -1, 0)
    window = shown(geometry)
    least, largest = (_numbers(ends) for ends in (planes.min((1, 2)), planes.max((1, 2))))
    red, green, blue = (int(value) for value in found.pixels[0, 0])
    return Explanation(
        card=card,
        geometry=geometry,
        shape=(1, *array.shape),
        dtype=tensor.dtype,
        pixel=(red, green, blue),
        first=_numbers(planes[:, window.top, window.left]),
        extremes=tuple(zip(least, largest, strict=True)),
    )


def _numbers(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
