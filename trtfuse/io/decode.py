"""A picture file to upright RGB pixels, or the reason why not.

Pillow reads it: it tells a truncated file from a whole one (`cv2.imdecode` paints the rest grey
and says nothing), and reads EXIF, CMYK, palettes and 16 bits as their makers meant them.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Picture
from trtfuse.core.specs import Array

# File names that are taken for pictures; what is inside is told by content alone.
SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png"}
    | {".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)

# Pillow's names for these. No others: EPS, for one, would start Ghostscript on a stranger's file.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

# What Pillow's decoders raise on damaged files: what its `Image.open` and `ImageFile` guard
# against themselves, and what 50,000 files with cut, flipped and inserted bytes have shown.
# A Warning is raised only where the caller has made warnings errors.
_DAMAGED = (
    Image.DecompressionBombError,
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    struct.error,
    Warning,
)

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_log = logging.getLogger(__name__)


def read(path: Path) -> Picture:
    """Decode the picture at `path`, upright by its EXIF orientation.

    16 bits are scaled to 8; float pixels are 0 to 1; alpha is dropped (the colour below it is
    kept as stored, nothing is composited); colour profiles are not applied; of an animation the
    first frame is taken, and logged. Raises ItemError with the reason for anything else.
    """
    try:
        with path.open("rb") as file:
            return Picture(_pixels(file, path))
    except OSError as error:
        raise ItemError(f"cannot be read: {error.strerror or error}.") from error


def _pixels(file: BinaryIO, path: Path) -> Array:
    try:
        with Image.open(file, formats=_FORMATS) as image:
            if getattr(image, "is_animated", False) and image.format != "MPO":
                _log.warning("%s: holds several pictures; only the first is used.", path)
            image.load()
            return _rgb(_upright(image))
    except UnidentifiedImageError as error:
        raise ItemError(_why_unknown(file)) from error
    except _DAMAGED as error:
        raise ItemError(f"cannot be decoded: {str(error) or type(error).__name__}.") from error


def _why_unknown(file: BinaryIO) -> str:
    if not file.seek(0, 2):
        return "the file is empty (0 bytes)."
    return f"not a picture of a known format ({', '.join(_FORMATS)}), or its header is damaged."


def _upright(image: Image.Image) -> Image.Image:
    turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Array:
    """uint8 (height, width, 3)."""
    if image.mode == "RGBa":
        image = image.convert("RGBA")
    if image.mode != "F" and not image.mode.startswith("I"):
        return np.asarray(image.convert("RGB"))
    # `convert` would clip these to 255 instead of scaling them.
    top = 1.0 if image.mode == "F" else 65535.0
    values = np.asarray(image, np.float32)
    if not (values.min() >= 0 and values.max() <= top):
        raise ValueError(
            f"pixels of mode {image.mode} lie from {values.min():g} to {values.max():g}, "
            f"and 0 to {top:g} is what can be scaled"
        )
    grey = (values * (255 / top) + 0.5).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)
