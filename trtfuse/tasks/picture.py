"""Pixels to the input tensor: resize, colour, layout, range. The hot path of every feeder thread.

A picture's channel has 256 values, so the card's formula is 256 numbers per channel: they are
computed once in float64, and `cv2.LUT` writes them straight into the slot, for any dtype, mean
and std at one price (0.35 ms for 512 x 512 on one core, the speed of a plain multiply). A picture
that needs no resize reaches the tensor bit for bit as the formula says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import cv2
import numpy as np

from trtfuse.core.card import InputCard
from trtfuse.core.flow import Geometry, Picture
from trtfuse.core.specs import Array
from trtfuse.tasks.fitting import scaled_size, shown


@contextmanager
def one_thread_each() -> Iterator[None]:
    """In the block, OpenCV works in the thread that calls it, in the whole process.

    The callers are as many threads as there are cores. OpenCV's own beside them take none of their
    work over (4 feeders on 2 cores: 14.3 ms a picture without, 15.3 with them), and it starts as
    many as the host has cores, whatever this process may use.
    """
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def encode(card: InputCard, picture: Picture, geometry: Geometry, into: Array) -> None:
    """Write `picture` to `into`, (channels, height, width) or (height, width, channels).

    `into` is float32, float16 or uint8, of `geometry.input`'s size, and may be a view; values
    for uint8 are rounded and clipped.
    """
    window = shown(geometry)
    pixels = resize(picture.pixels, scaled_size(geometry))
    pixels = pixels[
        window.top - geometry.top : window.bottom - geometry.top,
        window.left - geometry.left : window.right - geometry.left,
    ]
    rows, columns = slice(window.top, window.bottom), slice(window.left, window.right)
    tables = _tables(card, into.dtype)
    if card.layout == "NHWC":
        if pixels.shape[:2] != geometry.input:
            into[...] = tables[:, card.pad]
        _write_pixels(card, pixels, tables, into[rows, columns])
    else:
        if pixels.shape[:2] != geometry.input:
            into[...] = tables[:, card.pad, None, None]
        _write_planes(card, pixels, tables, into[:, rows, columns])


def resize(pixels: Array, size: tuple[int, int]) -> Array:
    """`pixels` (height, width, channels), uint8, at `size`; itself where that is its size already.

    Shrinks by area first, then grows linearly: each axis gets the filter that suits it, also
    where one shrinks and the other grows.
    """
    height, width = size
    smaller = min(height, pixels.shape[0]), min(width, pixels.shape[1])
    if pixels.shape[:2] != smaller:
        pixels = cv2.resize(pixels, smaller[::-1], interpolation=cv2.INTER_AREA)
    if pixels.shape[:2] != size:
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return pixels


@lru_cache(maxsize=64)
def _tables(card: InputCard, dtype: np.dtype[Any]) -> Array:
    """What each grey value becomes, (channels, 256), channels in the order of `card.colour`."""
    low, high = card.range
    values = low + np.arange(256) / 255 * (high - low)
    mean = np.array(card.mean or (0.0,) * card.channels)
    std = np.array(card.std or (1.0,) * card.channels)
    tables = (values - mean[:, None]) / std[:, None]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        tables = np.clip(np.floor(tables + 0.5), limits.min, limits.max)
    shared: Array = tables.astype(dtype)
    shared.setflags(write=False)
    return shared


def _write_planes(card: InputCard, pixels: Array, tables: Array, into: Array) -> None:
    if card.colour == "GRAY":
        _look_up(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), tables[0], into[0])
        return
    for channel, source in enumerate((0, 1, 2) if card.colour == "RGB" else (2, 1, 0)):
        _look_up(cv2.extractChannel(pixels, source), tables[channel], into[channel])


def _write_pixels(card: InputCard, pixels: Array, tables: Array, into: Array) -> None:
    if card.colour == "GRAY":
        _look_up(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), tables[0], into[..., 0])
        return
    if card.colour == "BGR":
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    _look_up(pixels, np.ascontiguousarray(tables.T)[None], into)


def _look_up(indices: Array, table: Array, into: Array) -> None:
    """into = table[indices]. Half floats travel as the bits they are: OpenCV 4 knows none here."""
    if into.dtype == np.float16:
        table, into = table.view(np.uint16), into.view(np.uint16)
    cv2.LUT(indices, table, into)
