from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.io.pictures import grey
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Attached, Box
from trtfuse.core.options import WritingOptions
from trtfuse.core.specs import Array
from trtfuse.io import encode

PROFILE = bytes(16) + b"RGB " + bytes(range(108))
NOISE = np.random.default_rng(3).integers(0, 256, (9, 7, 3), dtype=np.uint8)
ALPHA = np.random.default_rng(4).integers(0, 256, (9, 7), dtype=np.uint8)


def reread(data: bytes, mode: str) -> Array:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return np.asarray(image.convert(mode))


def test_png_keeps_pixels_alpha_and_profile() -> None:
    data = encode.png(NOISE, Attached(alpha=ALPHA, profile=PROFILE))
    assert np.array_equal(reread(data, "RGBA"), np.dstack((NOISE, ALPHA)))
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["icc_profile"] == PROFILE


@pytest.mark.parametrize("alpha", [None, ALPHA])
def test_png_of_sixteen_bits_keeps_every_value(alpha: Array | None) -> None:
    deep = np.random.default_rng(5).integers(0, 65536, (9, 7, 3), dtype=np.uint16)
    data = np.frombuffer(encode.png(deep, Attached(alpha=alpha)), np.uint8)
    found = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    assert found is not None
    assert found.dtype == np.uint16
    assert np.array_equal(found[..., 2::-1], deep)
    if alpha is not None:
        assert np.array_equal(found[..., 3], alpha.astype(np.uint16) * 257)


def test_jpeg_lays_what_is_transparent_on_white_and_keeps_the_profile() -> None:
    alpha = np.zeros((16, 16), np.uint8)
    alpha[:8] = 255
    data = encode.jpeg(grey(0, (16, 16)), Attached(alpha=alpha, profile=PROFILE), quality=95)
    found = reread(data, "RGB")
    assert found[:8].max() < 5
    assert found[8:].min() > 250
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["icc_profile"] == PROFILE


def test_webp_of_quality_100_loses_nothing_not_even_below_transparency() -> None:
    attached = Attached(alpha=ALPHA, profile=PROFILE)
    data = encode.webp(NOISE, attached, quality=100)
    assert np.array_equal(reread(data, "RGBA"), np.dstack((NOISE, ALPHA)))
    assert len(encode.webp(NOISE, Attached(), quality=10)) < len(data)


def test_quality_is_what_it_says() -> None:
    sizes = [
        len(encode.picture(NOISE, Attached(), WritingOptions(format="jpeg", quality=quality)))
        for quality in (10, 95)
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_a_size_that_the_format_cannot_hold_is_the_items_failure(kind: str) -> None:
    writing = WritingOptions(format=kind)  # type: ignore[arg-type]
    with pytest.raises(ItemError, match=f"1 x 70000 pixels cannot be kept as {kind.upper()}"):
        encode.picture(grey(size=(70000, 1)), Attached(), writing)


def test_eight_bits_are_the_nearest_of_sixteen() -> None:
    deep = np.array([0, 128, 129, 32768, 65535], np.uint16)
    assert encode.eight_bits(deep).tolist() == [0, 0, 1, 128, 255]


def test_alpha_follows_the_answer_to_its_size_and_its_part() -> None:
    alpha = np.zeros((10, 20), np.uint8)
    alpha[:, 10:] = 255
    whole = encode.fitted(Attached(alpha=alpha), (20, 40), None).alpha
    assert whole is not None
    assert whole.shape == (20, 40)
    assert (whole[:, :18].max(), whole[:, 22:].min()) == (0, 255)
    part = encode.fitted(Attached(alpha=alpha), (10, 10), Box(top=0, left=10, bottom=10, right=20))
    assert part.alpha is not None
    assert (part.alpha == 255).all()
