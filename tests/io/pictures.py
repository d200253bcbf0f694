"""Small pictures for the tests of this package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from trtfuse.core.flow import Item, Picture
from trtfuse.core.specs import Array

DATA = Path(__file__).parents[1] / "data/pictures"


def grey(value: int = 100, size: tuple[int, int] = (6, 8)) -> Array:
    """A picture of (height, width) in one grey."""
    return np.full((*size, 3), value, np.uint8)


def save(path: Path, pixels: Array | None = None) -> Path:
    """Write a picture, by default a grey one; folders above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        Image.fromarray(grey() if pixels is None else pixels).save(file, "PNG")
    return path


def item(key: str, pixels: Array | None = None) -> Item:
    """An item that loads `pixels`, by default a grey picture."""
    return Item(seq=0, key=key, load=lambda: Picture(grey() if pixels is None else pixels))
