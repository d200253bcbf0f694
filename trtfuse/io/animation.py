"""Animated GIF, WebP and PNG: each frame as a picture, composited as a viewer shows it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Attached, Clip, Frame, Item, Picture
from trtfuse.core.options import ReadingOptions
from trtfuse.core.specs import Array
from trtfuse.io.decode import opened, profile_of
from trtfuse.io.keys import frame_key

_KINDS = ("GIF", "PNG", "WEBP")
_HEADS = (b"GIF8", b"\x89PNG", b"RIFF")


def is_animated(path: Path, reading: ReadingOptions) -> bool:
    """Whether the file holds an animation; False too where it cannot be read."""
    try:
        with path.open("rb") as file:
            if not file.read(4).startswith(_HEADS):
                return False
        with opened(path, reading) as image:
            return image.format in _KINDS and bool(getattr(image, "is_animated", False))
    except (OSError, ItemError):
        return False


def items(path: Path, key: str, reading: ReadingOptions) -> Iterator[Item]:
    """Its frames, numbered from 0 (`seq` too). Each is decoded when it is its turn.

    A frame depends on those before it: one that cannot be decoded is the last, and fails when it
    is loaded. A PNG's picture for viewers that know no animation is not one of its frames.
    """
    place: Frame | None = None
    try:
        with opened(path, reading) as image:
            skipped = 1 if image.info.get("default_image") else 0
            count = image.n_frames - skipped  # type: ignore[attr-defined]
            clip = _clip(image, key, count)
            place = Frame(clip=clip, index=-1, start=0, duration=0, last=False)
            for index in range(count):
                image.seek(index + skipped)
                pixels = np.asarray(image.convert("RGBA"))
                place = Frame(
                    clip=clip,
                    index=index,
                    start=place.start + place.duration,
                    duration=round(image.info.get("duration", 0)),
                    last=index == count - 1,
                )
                yield _item(place, pixels, profile_of(image))
    except ItemError as error:
        yield _broken(key, place, error)


def _clip(image: Image.Image, key: str, count: int) -> Clip:
    assert image.format is not None
    loop = image.info.get("loop")
    return Clip(key=key, kind=image.format, tick=Fraction(1, 1000), promised=count, loop=loop)


def _item(place: Frame, pixels: Array, profile: bytes) -> Item:
    alpha = pixels[..., 3]

    def load() -> Picture:
        attached = Attached(
            alpha=None if alpha.min() == 255 else alpha,
            profile=profile,
            sha256=hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest(),
        )
        return Picture(np.ascontiguousarray(pixels[..., :3]), attached)

    return Item(
        seq=place.index,
        key=frame_key(place.clip.key, place.index),
        load=load,
        frame=place,
        held_bytes=pixels.nbytes,
    )


def _broken(key: str, before: Frame | None, error: ItemError) -> Item:
    """The end of an animation that has no frame after `before` that can be read."""

    def load() -> Picture:
        raise error

    if before is None:
        return Item(seq=0, key=key, load=load)
    place = Frame(
        clip=before.clip,
        index=before.index + 1,
        start=before.start + before.duration,
        duration=0,
        last=True,
    )
    return Item(seq=place.index, key=frame_key(key, place.index), load=load, frame=place)
