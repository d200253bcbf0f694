"""The output is a picture: super-resolution, restoration, style."""

from __future__ import annotations

from functools import partial

import numpy as np

from trtfuse.core.card import ImageTask
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, Box, Geometry, PictureFile
from trtfuse.core.specs import Array, Arrays
from trtfuse.tasks.fitting import shown
from trtfuse.tasks.picture import resize
from trtfuse.tasks.reading import Decode, finite, present


def reader(task: ImageTask, *, depth: int = 8) -> Decode:
    """Decoding of an image model, to 8 or 16 bits a channel."""
    return partial(_decode, task, depth)


def _decode(task: ImageTask, depth: int, outputs: Arrays, geometry: Geometry) -> Answer:
    if task.invalid and (bad := int(present(outputs, task.invalid))):
        size = present(outputs, task.output).size
        raise ItemError(f"output {task.output!r}: {bad} of {size} values are NaN or infinite.")
    pixels = _pixels(task, depth, finite(outputs, task.output))
    answer = _as_the_picture_was(pixels, geometry)
    return Answer(file=PictureFile(pixels=answer, shows=_part(geometry)))


def _part(geometry: Geometry) -> Box | None:
    """What of the picture the input shows; None: all of it."""
    if geometry.top >= 0 and geometry.left >= 0:
        return None
    window = shown(geometry)
    return Box(
        top=round((window.top - geometry.top) / geometry.scale_y),
        left=round((window.left - geometry.left) / geometry.scale_x),
        bottom=round((window.bottom - geometry.top) / geometry.scale_y),
        right=round((window.right - geometry.left) / geometry.scale_x),
    )


def _pixels(task: ImageTask, depth: int, output: Array) -> Array:
    """(height, width, 3), RGB: the inverse of the card's range, clipped, rounded half up.

    uint8 or uint16, by `depth`.
    """
    channels = 1 if task.colour == "GRAY" else 3
    axis = 0 if task.layout == "NCHW" else -1
    if output.ndim != 3 or output.shape[axis] != channels:
        raise ItemError(
            f"output {task.output!r}: got {output.shape}, needs three axes with {channels} "
            f"channels, {task.layout} {task.colour} without the batch axis."
        )
    pixels = np.moveaxis(output, axis, -1)
    if task.colour == "BGR":
        pixels = pixels[..., ::-1]
    if channels == 1:
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    low, high = task.range
    if output.dtype == np.uint8 and (low, high, depth) == (0, 255, 8):
        return np.array(pixels, order="C")  # what the graph made is what is wanted; and our own
    # Written out in steps, in place: a 4K output is 100 MB of float32.
    values = np.array(pixels, np.float32, order="C")
    values -= low
    top = 2**depth - 1
    values *= top / (high - low)
    values += 0.5
    np.clip(values, 0, top, out=values)
    return values.astype(np.uint8 if depth == 8 else np.uint16)


def _as_the_picture_was(pixels: Array, geometry: Geometry) -> Array:
    """`pixels`, an output of the whole input, cut back to the picture, in the picture's aspect.

    At the network's own scale s (output size / input size) the answer has s times the pixels
    that the picture has there: the padding of "letterbox" goes, "stretch" is undone, and of
    "crop" only the part that the network saw comes back.
    """
    scale_y, scale_x = (pixels.shape[axis] / geometry.input[axis] for axis in (0, 1))
    window = shown(geometry)
    cut = pixels[
        round(window.top * scale_y) : round(window.bottom * scale_y),
        round(window.left * scale_x) : round(window.right * scale_x),
    ]
    height = round((window.bottom - window.top) * scale_y / geometry.scale_y)
    width = round((window.right - window.left) * scale_x / geometry.scale_x)
    if 0 in cut.shape:
        raise ItemError(
            f"the output of {pixels.shape[1]} x {pixels.shape[0]} pixels has none that shows "
            f"the picture of {geometry.picture[1]} x {geometry.picture[0]}."
        )
    return np.ascontiguousarray(resize(cut, (max(height, 1), max(width, 1))))
