"""Small pictures of items, for people."""

from __future__ import annotations

import io

from PIL import Image

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Item

# Of the longer side, in pixels: twice what a report shows, for screens of twice the density.
_SIDE = 176


def thumbnail(item: Item) -> bytes | None:
    """The item as a small JPEG; None where it cannot be read."""
    try:
        pixels = item.load().pixels
    except (ItemError, MemoryError):
        return None
    image = Image.fromarray(pixels)
    image.thumbnail((_SIDE, _SIDE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return data.getvalue()
