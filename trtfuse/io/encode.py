"""Pixels to the bytes of a picture file. The same pixels give the same bytes."""

from __future__ import annotations

import io
import struct
import zlib

import cv2
import numpy as np
from PIL import Image

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Attached, Box
from trtfuse.core.options import WritingOptions
from trtfuse.core.specs import Array

# PNG level 1 takes 15 ms for 512 x 512 where level 6 takes 39, for 4 % more bytes.
_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 1)
# After the signature and the IHDR chunk, which comes first and has 13 bytes (PNG, 11.2.1).
_AFTER_HEADER = 8 + 4 + 4 + 13 + 4


def png(pixels: Array, attached: Attached) -> bytes:
    """`pixels` is uint8 or uint16 (height, width, 3), RGB; alpha has its size.

    OpenCV writes it: it knows 16 bits, and takes 15 ms where Pillow takes 20.
    """
    deep = pixels.dtype == np.uint16
    if attached.alpha is None:
        swapped = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    else:
        # 257 times: 255 becomes 65535.
        alpha = attached.alpha.astype(np.uint16) * 257 if deep else attached.alpha
        swapped = np.dstack((pixels[..., ::-1], alpha))
    _, data = cv2.imencode(".png", swapped, _PNG)
    encoded = data.tobytes()
    if not attached.profile:
        return encoded
    profile = _chunk(b"iCCP", b"ICC profile\0\0" + zlib.compress(attached.profile))
    return encoded[:_AFTER_HEADER] + profile + encoded[_AFTER_HEADER:]


def jpeg(pixels: Array, attached: Attached, *, quality: int) -> bytes:
    """Of uint8 pixels. JPEG knows no alpha: what is transparent lies on white."""
    if attached.alpha is not None:
        opacity = attached.alpha[..., None].astype(np.uint32)
        pixels = ((pixels * opacity + 255 * (255 - opacity) + 127) // 255).astype(np.uint8)
    return _pillow(pixels, "JPEG", attached.profile, quality=quality)


def webp(pixels: Array, attached: Attached, *, quality: int) -> bytes:
    """Of uint8 pixels; lossless at quality 100, colours below full transparency included."""
    if attached.alpha is not None:
        pixels = np.dstack((pixels, attached.alpha))
    lossless = quality == 100
    return _pillow(
        pixels, "WEBP", attached.profile, quality=quality, lossless=lossless, exact=lossless
    )


def picture(pixels: Array, attached: Attached, writing: WritingOptions) -> bytes:
    """In the format of `writing`. Raises ItemError where that cannot hold the size."""
    height, width = pixels.shape[:2]
    try:
        if writing.format == "png":
            return png(pixels, attached)
        encode = jpeg if writing.format == "jpeg" else webp
        return encode(pixels, attached, quality=writing.quality)
    except (OSError, ValueError, cv2.error) as error:
        raise ItemError(
            f"{width} x {height} pixels cannot be kept as {writing.format.upper()} ({error})."
        ) from error


def eight_bits(pixels: Array) -> Array:
    """uint16 as uint8, rounded; uint8 as it is."""
    if pixels.dtype == np.uint8:
        return pixels
    return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)


def fitted(attached: Attached, size: tuple[int, int], shows: Box | None) -> Attached:
    """What goes with an answer of `size` (height, width) that shows this part of the picture."""
    alpha = attached.alpha
    if alpha is None:
        return attached
    if shows is not None:
        alpha = alpha[shows.top : shows.bottom, shows.left : shows.right]
    if alpha.shape != size:
        shrinks = size[0] <= alpha.shape[0] and size[1] <= alpha.shape[1]
        way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        alpha = cv2.resize(np.ascontiguousarray(alpha), size[::-1], interpolation=way)
    return Attached(alpha=alpha, profile=attached.profile)


def _pillow(pixels: Array, kind: str, profile: bytes, **options: object) -> bytes:
    file = io.BytesIO()
    # Without a profile of its own Pillow would look for one in the picture; there is none.
    Image.fromarray(pixels).save(file, kind, icc_profile=profile or None, **options)
    return file.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
