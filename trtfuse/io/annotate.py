"""Detections drawn on a copy of their picture."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from trtfuse.core.specs import Array

# Told apart on skin, sky and leaves, and bright enough for black text.
_COLOURS = ("#c3a6ff", "#ffd23d", "#7dff6a", "#ff8fd0", "#ffa04d", "#3dd6ff")
_INK = "#101418"


def draw(pixels: Array, detections: Sequence[Mapping[str, Any]]) -> Array:
    """A copy of `pixels`, uint8 (height, width, 3), with box, label, score and landmarks.

    Lines and letters grow with the picture. `detections` is as in results.jsonl.
    """
    image = Image.fromarray(pixels)
    # 1 pixel in 320 reads well at the size of a screen; less than 2 is lost on any.
    line = max(2, round(min(image.size) / 320))
    pen = ImageDraw.Draw(image)
    # The best last, on top of the others.
    for detection in reversed(detections):
        _draw_one(pen, detection, line)
    return np.asarray(image)


def _draw_one(pen: ImageDraw.ImageDraw, detection: Mapping[str, Any], line: int) -> None:
    label = str(detection["label"])
    # Not `hash`, which differs from run to run.
    colour = _COLOURS[zlib.crc32(label.encode()) % len(_COLOURS)]
    left, top, right, bottom = detection["box"]
    box = (left, top, max(left, right - 1), max(top, bottom - 1))
    pen.rectangle(box, outline=colour, width=line)
    # On a small face smaller dots, or they hide it.
    radius = min(2 * line, (right - left) / 16, (bottom - top) / 16)
    for x, y in detection.get("landmarks", ()):
        _draw_dot(pen, (x, y), radius, colour)
    _draw_text(pen, f"{label} {detection['score']:.2f}", (left, top), colour, line)


def _draw_dot(
    pen: ImageDraw.ImageDraw, centre: tuple[float, float], radius: float, colour: str
) -> None:
    x, y = centre
    for reach, fill in ((radius, _INK), (0.7 * radius, colour)):
        pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill)


def _draw_text(
    pen: ImageDraw.ImageDraw, text: str, corner: tuple[float, float], colour: str, line: int
) -> None:
    """On a plate that stands on `corner`, moved inside the picture where it would leave it."""
    font = ImageFont.load_default(size=max(11, 7 * line))
    width, height = (end + 2 * line for end in pen.textbbox((0, 0), text, font=font)[2:])
    x = max(0, min(corner[0], pen.im.size[0] - width))
    y = max(0, corner[1] - height)
    pen.rectangle((x, y, x + width, y + height), fill=colour)
    pen.text((x + line, y + line / 2), text, font=font, fill=_INK)
