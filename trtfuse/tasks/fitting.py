"""Where a picture lies in the network's input, and the way back. Numbers only, no pixels.

Coordinates are continuous: pixel (0, 0) covers the square from (0, 0) to (1, 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtfuse.core.card import InputCard
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Geometry
from trtfuse.core.specs import Array

# The longest side that a picture may have after "crop" has scaled it, before the cut. Keeps a
# picture of 1 x 10000 pixels from asking for gigabytes; 64 times 512, so no real photo meets it.
_LONGEST_SCALED = 1 << 15


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the input that shows the picture, in whole pixels of the input."""

    top: int
    left: int
    bottom: int
    right: int


def fit(card: InputCard, height: int, width: int) -> Geometry:
    """Where a picture of this size goes. Raises ItemError where it cannot."""
    target = _target(card, height, width)
    scaled = _scaled(card, (height, width), target)
    # "none" is never larger than its target, and stays in the corner; stretch fills the target.
    centred = card.resize in ("letterbox", "crop")
    return Geometry(
        picture=(height, width),
        input=target,
        scale_x=scaled[1] / width,
        scale_y=scaled[0] / height,
        left=_margin(target[1] - scaled[1]) if centred else 0,
        top=_margin(target[0] - scaled[0]) if centred else 0,
    )


def scaled_size(geometry: Geometry) -> tuple[int, int]:
    """(height, width) of the whole picture after scaling, before any cut or padding."""
    height, width = geometry.picture
    return round(height * geometry.scale_y), round(width * geometry.scale_x)


def shown(geometry: Geometry) -> Window:
    """The part of the input that shows the picture; the rest is padding."""
    height, width = scaled_size(geometry)
    return Window(
        top=max(0, geometry.top),
        left=max(0, geometry.left),
        bottom=min(geometry.input[0], geometry.top + height),
        right=min(geometry.input[1], geometry.left + width),
    )


def to_picture(points: Array, geometry: Geometry) -> Array:
    """Points (..., 2) as x, y of the input, in pixels of the picture and clipped to it; float64."""
    height, width = geometry.picture
    moved = np.asarray(points, np.float64) - (geometry.left, geometry.top)
    return np.clip(moved / (geometry.scale_x, geometry.scale_y), 0, (width, height))


def _target(card: InputCard, height: int, width: int) -> tuple[int, int]:
    if card.size == "dynamic":
        return _up(height, card.multiple), _up(width, card.multiple)
    if card.resize == "none" and card.size != (height, width):
        raise ItemError(
            f"the picture is {width} x {height}, and the model takes {card.size[1]} x "
            f"{card.size[0]} with resize 'none'. Scale it first, or state another resize."
        )
    return card.size


def _scaled(card: InputCard, picture: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    if card.resize == "none":
        return picture
    if card.resize == "stretch":
        return target
    # In whole numbers, as a graph that resizes by itself computes it (trtfuse.graph.resize).
    height, width = (
        _divided(side * target[1 - axis], picture[1 - axis]) for axis, side in enumerate(picture)
    )
    if card.resize == "letterbox":
        return min(max(height, 1), target[0]), min(max(width, 1), target[1])
    scaled = max(height, target[0]), max(width, target[1])
    if max(scaled) > max(_LONGEST_SCALED, *target):
        raise ItemError(
            f"the picture is {picture[1]} x {picture[0]}: too narrow to be cropped to "
            f"{target[1]} x {target[0]}. Cut it first, or use resize 'letterbox'."
        )
    return scaled


def _divided(number: int, by: int) -> int:
    """number / by, rounded half up."""
    return (2 * number + by) // (2 * by)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _margin(space: int) -> int:
    """Half of `space`, towards zero: the same pixel whether it is padding or a cut."""
    return int(space / 2)
