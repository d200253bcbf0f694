from __future__ import annotations

from typing import Any, get_args

import cv2
import numpy as np
import pytest

from trtfuse.core.card import Colour, InputCard, Layout
from trtfuse.core.flow import Picture
from trtfuse.core.specs import Array
from trtfuse.tasks.fitting import fit
from trtfuse.tasks.picture import encode, one_thread_each, resize

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def card(**fields: Any) -> InputCard:
    defaults: dict[str, Any] = {"layout": "NCHW", "colour": "RGB", "range": (0, 1)}
    defaults |= {"size": "dynamic", "resize": "none"}
    return InputCard(name="x", **defaults | fields)


def photo(height: int = 37, width: int = 53) -> Array:
    return np.random.default_rng(7).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(card_: InputCard, pixels: Array, dtype: str = "float32") -> Array:
    geometry = fit(card_, *pixels.shape[:2])
    size = (card_.channels, *geometry.input)
    into = np.full(size if card_.layout == "NCHW" else (*size[1:], size[0]), 99, dtype)
    encode(card_, Picture(pixels), geometry, into)
    return into


def by_formula(card_: InputCard, pixels: Array) -> Array:
    """core/card.py's formula, written out in float64, channels first."""
    if card_.colour == "GRAY":
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None]
    elif card_.colour == "BGR":
        pixels = pixels[..., ::-1]
    planes = []
    for n in range(card_.channels):
        value = card_.range[0] + pixels[..., n] / 255 * (card_.range[1] - card_.range[0])
        mean = card_.mean[n] if card_.mean else 0
        std = card_.std[n] if card_.std else 1
        planes.append((value - mean) / std)
    result = np.stack(planes)
    return result if card_.layout == "NCHW" else np.moveaxis(result, 0, -1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("colour", get_args(Colour))
@pytest.mark.parametrize("norm", [{}, IMAGENET], ids=["plain", "imagenet"])
def test_a_picture_of_the_right_size_is_the_formula_bit_for_bit(
    colour: str, layout: str, dtype: str, norm: dict[str, tuple[float, ...]]
) -> None:
    if colour == "GRAY":
        norm = {name: values[:1] for name, values in norm.items()}
    c = card(colour=colour, layout=layout, **norm)
    np.testing.assert_array_equal(
        encoded(c, photo(), dtype), by_formula(c, photo()).astype(dtype), strict=True
    )


@pytest.mark.parametrize("layout", get_args(Layout))
def test_raw_bytes_reach_a_uint8_input_unchanged(layout: str) -> None:
    out = encoded(card(layout=layout, range=(0, 255)), photo(), "uint8")
    np.testing.assert_array_equal(out if layout == "NHWC" else out.transpose(1, 2, 0), photo())


def test_values_for_a_uint8_input_are_rounded_and_clipped() -> None:
    greys = np.array([[[0] * 3, [128] * 3, [255] * 3]], np.uint8)
    out = encoded(card(range=(-10, 300)), greys, "uint8")
    # -10, 145.6 and 300 by the formula.
    assert out[0, 0].tolist() == [0, 146, 255]


def test_grey_of_a_grey_picture_is_that_grey() -> None:
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    assert encoded(card(colour="GRAY", range=(0, 255)), ramp)[0, 0].tolist() == list(range(256))


def test_the_channel_order_is_the_cards() -> None:
    orange = np.full((2, 2, 3), (200, 100, 50), np.uint8)
    assert encoded(card(range=(0, 255)), orange)[:, 0, 0].tolist() == [200, 100, 50]
    assert encoded(card(range=(0, 255), colour="BGR"), orange)[:, 0, 0].tolist() == [50, 100, 200]


@pytest.mark.parametrize("layout", get_args(Layout))
def test_letterbox_pads_with_the_cards_grey_around_the_picture(layout: str) -> None:
    c = card(size=(40, 60), resize="letterbox", pad=114, layout=layout, range=(0, 255))
    white = np.full((40, 40, 3), 255, np.uint8)
    out = encoded(c, white)
    plane = out[0] if layout == "NCHW" else out[..., 0]
    assert (plane[:, :10] == 114).all()
    assert (plane[:, 10:50] == 255).all()
    assert (plane[:, 50:] == 114).all()


def test_padding_to_the_multiple_goes_right_and_below_and_is_normalised_too() -> None:
    c = card(multiple=8, pad=51, **IMAGENET)
    out = encoded(c, photo(6, 10))
    assert out.shape == (3, 8, 16)
    np.testing.assert_array_equal(out[:, :6, :10], encoded(card(**IMAGENET), photo(6, 10)))
    grey = np.float32((51 / 255 - 0.406) / 0.225)
    assert (out[2, 6:] == grey).all()
    assert (out[2, :, 10:] == grey).all()


def test_crop_takes_the_middle() -> None:
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    assert (encoded(card(size=(10, 10), resize="crop"), pixels) == 1).all()


def test_only_the_view_is_written() -> None:
    slot = np.full((3, 3, 20, 20), 7, np.float32)
    c = card(size=(20, 20), resize="letterbox")
    encode(c, Picture(photo(10, 20)), fit(c, 10, 20), slot[1])
    assert (slot[[0, 2]] == 7).all()
    assert slot[1].max() <= 1


def test_a_picture_that_is_itself_a_view_is_read_right() -> None:
    whole = photo(40, 60)
    view = whole[5:35:2, 50:10:-1]
    np.testing.assert_array_equal(encoded(card(), view), encoded(card(), view.copy()))
    c = card(size=(9, 9), resize="stretch")
    np.testing.assert_array_equal(encoded(c, view), encoded(c, view.copy()))


def test_resize_shrinks_by_area_and_grows_linearly_on_each_axis() -> None:
    stripes = np.zeros((4, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    # Linear sampling at a quarter would hit stripes; the mean of four columns is 127.5.
    assert set(resize(stripes, (4, 16)).ravel().tolist()) <= {127, 128}
    assert set(resize(stripes, (16, 16)).ravel().tolist()) <= {127, 128}
    step = np.zeros((2, 2, 3), np.uint8)
    step[:, 1] = 200
    assert resize(step, (2, 4))[0, :, 0].tolist() == [0, 50, 150, 200]


def test_resize_to_its_own_size_is_the_picture_itself() -> None:
    pixels = photo()
    assert resize(pixels, pixels.shape[:2]) is pixels


def test_opencv_works_in_the_callers_thread_alone_and_is_given_back_as_it_was() -> None:
    before = cv2.getNumThreads()
    with one_thread_each():
        assert cv2.getNumThreads() == 1
    assert cv2.getNumThreads() == before
