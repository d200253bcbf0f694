"""Pictures brought to a card's size inside a graph: the host's rule, and the host's arithmetic.

The host shrinks by area, rounds to bytes, then grows linearly in the fixed point of OpenCV's
`resize` (modules/imgproc/src/resize.cpp, INTER_AREA and INTER_LINEAR of 8 bits). The same is done
here: shrinking as two matrix products, growing as sums of whole numbers, which are the same on
every device and in every precision. Sizes are whole numbers that follow from the picture's
(trtfuse.tasks.fitting); below 2^31, which TensorRT 8.6 counts in, for all that fits a `crop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from trtfuse.core.card import InputCard
from trtfuse.graph.nodes import Nodes, Whole

# Fractional bits of OpenCV's weights (INTER_RESIZE_COEF_BITS).
_ONE = 1 << 11


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One side of a picture on its way, in pixels."""

    length: Whole
    """Of the picture."""
    middle: Whole
    """Of the picture once it shrank; what does not shrink keeps its length."""
    scaled: Whole
    """Of the picture once it grew."""
    places: Whole
    """The pixels of the input, 0 and on, as places in the scaled picture: -1 is before it."""


def resize(made: Nodes, card: InputCard) -> None:
    """Planes of byte values, float32 [batch, channels, height, width], to the card's size.

    For a card whose `changes_size` holds. What comes out are byte values too.
    """
    shape = Whole(made, made.make("Shape", made.last))
    lengths = [shape.at(made.whole(axis), axis=0) for axis in (2, 3)]
    if card.resize == "none":
        _pad(made, lengths, card)
        return
    axes = _axes(made, lengths, card)
    if card.size != "dynamic":  # up to a multiple, pictures only grow
        _shrink(made, axes)
    _grow(made, axes)
    if card.resize == "letterbox":
        _fill(made, axes, card.pad)
    made.add("Cast", to=TensorProto.FLOAT)


def _axes(made: Nodes, lengths: Sequence[Whole], card: InputCard) -> list[_Axis]:
    axes = []
    for n, length in enumerate(lengths):
        if card.size == "dynamic":
            scaled = _up(length, card.multiple)
            places = scaled.count()
        else:
            side, other = card.size[n], lengths[1 - n]
            # As the other side is scaled to fit, rounded half up.
            fitting = (length * (2 * card.size[1 - n]) + other) // (other * 2)
            places = made.whole(*range(side))
            if card.resize == "letterbox":
                scaled = fitting.at_least(1).at_most(side)
                places -= (made.whole(side) - scaled) // 2
            elif card.resize == "crop":
                scaled = fitting.at_least(side)
                places += (scaled - side) // 2
            else:
                scaled = made.whole(side)
        middle = length.at_most(scaled)
        axes.append(_Axis(length=length, middle=middle, scaled=scaled, places=places))
    return axes


def _up(length: Whole, multiple: int) -> Whole:
    return (length + (multiple - 1)) // multiple * multiple


def _pad(made: Nodes, lengths: Sequence[Whole], card: InputCard) -> None:
    """Grey to the right and below, up to the multiple."""
    below, right = (_up(length, card.multiple) - length for length in lengths)
    begin, planes = made.whole(0, 0, 0, 0), made.whole(0, 0)
    parts = (part.name for part in (begin, planes, below, right))
    made.add("Pad", made.make("Concat", *parts, axis=0), made.number(card.pad))


def _shrink(made: Nodes, axes: Sequence[_Axis]) -> None:
    """Each axis to `middle`, by area, then rounded to bytes."""
    rows, columns = axes
    made.last = made.make("MatMul", _area(rows, upright=True), made.last)
    made.add("MatMul", _area(columns, upright=False))
    # Halves go to even; but where both axes halve, OpenCV adds four bytes and has halves go up.
    # Means of four are multiples of a quarter: an eighth more does that.
    halved = made.make("And", *(axis.length.test("Equal", axis.middle * 2) for axis in axes))
    eighth = made.make("Mul", made.make("Cast", halved, to=TensorProto.FLOAT), made.number(0.125))
    made.add("Add", eighth)
    made.add("Round")


def _area(axis: _Axis, *, upright: bool) -> str:
    """Weights that bring `length` pixels to `middle`: [middle, length] upright, else turned.

    Pixel k of the result covers k * length to (k + 1) * length of a line in which pixel j of the
    picture covers j * middle to (j + 1) * middle. In whole numbers up to the last division, so
    that half precision does no harm to places.
    """
    k, j = axis.middle.count(), axis.length.count()
    k, j = (k.upright(), j) if upright else (k, j.upright())
    begin, end = k * axis.length, (k + 1) * axis.length
    pixel, behind = j * axis.middle, (j + 1) * axis.middle
    shared = end.at_most(behind) - begin.at_least(pixel)
    return shared.at_least(0).over(axis.length)


def _grow(made: Nodes, axes: Sequence[_Axis]) -> None:
    """From `middle` to the input's size, linearly; what is no picture is of any value."""
    rows, columns = axes
    picture = Whole(made, made.last).narrowed()
    (left, more), (right, less) = _neighbours(columns)
    picture = (picture.at(left, axis=3) * more + picture.at(right, axis=3) * less) // 16
    (above, more), (below, less) = _neighbours(rows)
    # In quarters, each product cut by itself, as OpenCV's 16-bit multiplication does it.
    upper = picture.at(above, axis=2) * more.upright() // (1 << 16)
    lower = picture.at(below, axis=2) * less.upright() // (1 << 16)
    made.last = ((upper + lower + 2) // 4).name


def _neighbours(axis: _Axis) -> tuple[tuple[Whole, Whole], tuple[Whole, Whole]]:
    """The pixels before and behind the centre of each of the input's, and their shares of `_ONE`.

    The centre of pixel k lies at ((2 k + 1) middle - scaled) / (2 scaled) of the picture.
    """
    k, whole = axis.places.at_least(0).at_most(axis.scaled - 1), axis.scaled * 2
    beyond = (k * 2 + 1) * axis.middle + axis.scaled  # a pixel on, so that none is below 0
    behind = beyond // whole
    share = ((beyond - behind * whole) * _ONE + axis.scaled) // whole
    return (
        ((behind - 1).at_least(0), (share * -1 + _ONE).narrowed()),
        (behind.at_most(axis.middle - 1), share.narrowed()),
    )


def _fill(made: Nodes, axes: Sequence[_Axis], pad: int) -> None:
    """Grey wherever the picture is not."""
    zero = made.whole(0)
    rows, columns = (
        made.make(
            "And",
            places.test("GreaterOrEqual", zero),
            places.test("Less", axis.scaled),
        )
        for axis, places in ((axes[0], axes[0].places.upright()), (axes[1], axes[1].places))
    )
    shown = made.make("And", rows, columns)
    made.last = made.make("Where", shown, made.last, made.store(np.array(pad, np.int32)))
