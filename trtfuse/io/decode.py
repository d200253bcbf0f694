"""A picture file to upright RGB pixels, or the reason why not.

Pillow reads it: it tells a truncated file from a whole one (`cv2.imdecode` paints the rest grey
and says nothing), and reads EXIF, CMYK, palettes and 16 bits as their makers meant them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError, features

from trtfuse.core.errors import ItemError
from trtfuse.core.files import sha256_of
from trtfuse.core.flow import Attached, Picture
from trtfuse.core.options import ReadingOptions
from trtfuse.core.specs import Array

# Pillow's names for these. No others: EPS, for one, would start Ghostscript on a stranger's file.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP") + (
    ("AVIF",) if features.check("avif") else ()
)

# What Pillow's decoders raise on damaged files: what its `Image.open` and `ImageFile` guard
# against themselves, and what 50,000 files with cut, flipped and inserted bytes have shown.
# A Warning is raised only where the caller has made warnings errors.
DAMAGED = (
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

# Brands of the container that HEIC and AVIF share (ISO/IEC 23008-12), at byte 8.
_HEIF = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC"}


def read(
    path: Path,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008 - frozen
) -> Picture:
    """Decode the picture at `path`, upright by its EXIF orientation.

    16 bits are scaled to 8; float pixels are 0 to 1. Alpha is kept beside the colours, which stay
    as stored below it; so is an ICC profile of RGB colours, which is not applied. Of several
    pictures in one file the first is taken. Raises ItemError with the reason for anything else.
    """
    with _readable(path) as file:
        # Here, where the bytes are read anyway, and from the same open file.
        sha256 = sha256_of(file)
        with _header(file, reading) as image:
            image.load()
            profile = profile_of(image)
            upright = _upright(image)
            beside = Attached(alpha=_alpha(upright), profile=profile, sha256=sha256)
            return Picture(_rgb(upright), beside)


@contextmanager
def opened(path: Path, reading: ReadingOptions) -> Iterator[Image.Image]:
    """The file at `path`, its header read. Raises ItemError, also for damage found in the block."""
    with _readable(path) as file, _header(file, reading) as image:
        yield image


@contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    """The file at `path`. What the block meets in it is raised as ItemError."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ItemError(f"cannot be read: {error.strerror or error}.") from error
    with file:
        try:
            yield file
        except UnidentifiedImageError as error:
            raise ItemError(_why_unknown(file)) from error
        except DAMAGED as error:
            why = str(error) or type(error).__name__
            raise ItemError(f"cannot be decoded: {why.rstrip('.')}.") from error


def _header(file: BinaryIO, reading: ReadingOptions) -> Image.Image:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and 2 * limit < reading.max_pixels:
        # Pillow's own limit is one for the whole process, and refuses twice as much.
        Image.MAX_IMAGE_PIXELS = -(-reading.max_pixels // 2)
    try:
        image = Image.open(file, formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_large("more", reading) from error
    if (pixels := image.width * image.height) > reading.max_pixels:
        image.close()
        raise _too_large(f"{pixels} pixels ({image.width} x {image.height}), more", reading)
    return image


def _too_large(got: str, reading: ReadingOptions) -> ItemError:
    return ItemError(
        f"its header promises {got} than the {reading.max_pixels} pixels allowed. If that is "
        "true and there is memory for it, raise --max-pixels."
    )


def _why_unknown(file: BinaryIO) -> str:
    file.seek(0)
    head = file.read(12)
    if not head:
        return "the file is empty (0 bytes)."
    if head[4:8] == b"ftyp" and head[8:] in _HEIF:
        return f"{_HEIF[head[8:]]} cannot be decoded here. Convert it to PNG or JPEG first."
    return f"not a picture of a known format ({', '.join(_FORMATS)}), or its header is damaged."


def _upright(image: Image.Image) -> Image.Image:
    turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    return image if turn is None else image.transpose(turn)


def profile_of(image: Image.Image) -> bytes:
    """The ICC profile, if the colours it speaks of are the RGB that `_rgb` gives."""
    profile = image.info.get("icc_profile")
    # Bytes 16 to 20 of a profile name its colour space (ICC.1:2022, 7.2).
    return profile if isinstance(profile, bytes) and profile[16:20] == b"RGB " else b""


def _alpha(image: Image.Image) -> Array | None:
    if not image.has_transparency_data or _is_deep(image):
        return None
    return np.asarray(image.convert("RGBA").getchannel("A"))


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def _rgb(image: Image.Image) -> Array:
    """uint8 (height, width, 3)."""
    if image.mode == "RGBa":
        image = image.convert("RGBA")
    if not _is_deep(image):
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
