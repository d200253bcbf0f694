from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Box, Codec, Picture, PictureFile
from trtfuse.core.specs import Array
from trtfuse.tasks.table import codec


def image_codec(input_: dict[str, Any] | None = None, **task: Any) -> Codec:
    fields: dict[str, Any] = {"layout": "NCHW", "colour": "RGB", "range": (0, 1)}
    sizes = {"size": "dynamic", "resize": "none"}
    return codec(
        Card(
            input=InputCard(name="x", **fields | sizes | (input_ or {})),
            task=ImageTask(name="image", output="y", **fields | task),
        )
    )


def decoded(c: Codec, output: Array, picture: tuple[int, int]) -> Array:
    answer = c.decode({"y": output}, c.fit(*picture))
    assert isinstance(answer.file, PictureFile)
    assert answer.file.pixels.dtype == np.uint8
    return answer.file.pixels


def upscaled(pixels: Array, c: Codec, scale: int) -> Array:
    """What a model that repeats each pixel `scale` times each way gives for the picture."""
    geometry = c.fit(*pixels.shape[:2])
    into = np.zeros(c.shape(geometry), np.float32)
    c.encode(Picture(pixels), geometry, into)
    return into.repeat(scale, axis=1).repeat(scale, axis=2)


def halves(height: int, width: int) -> Array:
    """Red above, blue below: blocks survive every resize but at their border."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, :, 0] = 250
    pixels[height // 2 :, :, 2] = 250
    return pixels


def photo(height: int, width: int) -> Array:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("colour", ["RGB", "BGR"])
@pytest.mark.parametrize("span", [(0, 1), (-1, 1), (0, 255)])
def test_an_identity_model_gives_the_picture_back_bit_for_bit(
    layout: str, colour: str, span: tuple[float, float], dtype: str
) -> None:
    fields = {"layout": layout, "colour": colour, "range": span}
    c = image_codec(fields, **fields)
    pixels = photo(13, 17)
    geometry = c.fit(13, 17)
    tensor = np.zeros(c.shape(geometry), dtype)
    c.encode(Picture(pixels), geometry, tensor)
    np.testing.assert_array_equal(decoded(c, tensor, (13, 17)), pixels)


def test_values_are_rounded_half_up_and_clipped_and_never_wrap() -> None:
    row = np.array([300, -5, 127.6, 127.5, 127.4, 254.5, 255.4], np.float32)
    output = np.broadcast_to(row, (3, 1, 7))
    pixels = decoded(image_codec(range=(0, 255)), output, (1, 7))
    assert pixels[0, :, 0].tolist() == [255, 0, 128, 128, 127, 255, 255]


def test_a_grey_output_is_a_picture_of_three_equal_channels() -> None:
    output = np.full((1, 2, 2), 0.5, np.float32)
    assert decoded(image_codec(colour="GRAY"), output, (2, 2)).tolist() == [[[128] * 3] * 2] * 2


def test_a_uint8_output_is_taken_as_it_is() -> None:
    pixels = photo(5, 6)
    c = image_codec(layout="NHWC", range=(0, 255))
    result = decoded(c, pixels, (5, 6))
    np.testing.assert_array_equal(result, pixels)
    assert not np.shares_memory(result, pixels)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_fail_the_item_and_are_counted(bad: float) -> None:
    output = np.zeros((3, 4, 5), np.float32)
    output[1, 2, :3] = bad
    with pytest.raises(ItemError, match=r"'y': 3 of 60 values are NaN or infinite"):
        decoded(image_codec(), output, (4, 5))


def test_an_output_of_other_channels_fails_the_item() -> None:
    with pytest.raises(ItemError, match=r"got \(4, 2, 2\), needs three axes with 3 channels"):
        decoded(image_codec(), np.zeros((4, 2, 2), np.float32), (2, 2))


def test_padding_to_the_multiple_is_cut_off_at_the_models_scale() -> None:
    c = image_codec({"multiple": 16})
    pixels = photo(10, 20)
    result = decoded(c, upscaled(pixels, c, 2), (10, 20))
    np.testing.assert_array_equal(result, pixels.repeat(2, axis=0).repeat(2, axis=1))


def test_letterbox_is_undone_padding_and_scale() -> None:
    c = image_codec({"size": (64, 64), "resize": "letterbox", "pad": 255})
    result = decoded(c, upscaled(halves(200, 100), c, 2), (200, 100))
    assert result.shape == (400, 200, 3)
    # Away from the border between the halves no white of the padding and no other colour is left.
    assert (result[:190] == (250, 0, 0)).all()
    assert (result[210:] == (0, 0, 250)).all()


def test_stretch_is_undone() -> None:
    c = image_codec({"size": (32, 64), "resize": "stretch"})
    result = decoded(c, upscaled(halves(100, 50), c, 1), (100, 50))
    assert result.shape == (100, 50, 3)
    assert (result[:45] == (250, 0, 0)).all()


def test_crop_gives_the_part_that_the_network_saw() -> None:
    c = image_codec({"size": (32, 32), "resize": "crop"})
    # 100 x 64 at half its size is 50 x 32: the middle 64 rows are seen, the halves meet in it.
    result = decoded(c, upscaled(halves(100, 64), c, 2), (100, 64))
    assert result.shape == (128, 128, 3)
    assert (result[:60] == (250, 0, 0)).all()
    assert (result[68:] == (0, 0, 250)).all()


@given(
    st.sampled_from(["letterbox", "stretch"]),
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 3),
)
def test_the_answer_has_scale_times_the_pictures_size(
    resize: str, height: int, width: int, scale: int
) -> None:
    c = image_codec({"size": (24, 40), "resize": resize})
    result = decoded(c, np.zeros((3, 24 * scale, 40 * scale), np.float32), (height, width))
    assert result.shape == (height * scale, width * scale, 3)


def test_an_output_too_small_to_show_the_picture_fails_the_item() -> None:
    c = image_codec({"size": (64, 64), "resize": "letterbox"})
    with pytest.raises(ItemError, match="has none that shows the picture of 1000 x 4"):
        decoded(c, np.zeros((3, 2, 2), np.float32), (4, 1000))


def test_sixteen_bits_keep_what_eight_would_round_away() -> None:
    card = Card(
        input=InputCard(
            name="x", layout="NCHW", colour="RGB", range=(0, 1), size="dynamic", resize="none"
        ),
        task=ImageTask(name="image", output="y", layout="NCHW", colour="RGB", range=(0, 1)),
    )
    c = codec(card, depth=16)
    row = np.array([0, 0.5, 0.25, 1, 2], np.float32)
    answer = c.decode({"y": np.broadcast_to(row, (3, 1, 5))}, c.fit(1, 5))
    assert isinstance(answer.file, PictureFile)
    assert answer.file.pixels.dtype == np.uint16
    assert answer.file.pixels[0, :, 0].tolist() == [0, 32768, 16384, 65535, 65535]


@pytest.mark.parametrize(
    ("resize", "picture", "shows"),
    [
        ("crop", (8, 16), Box(top=0, left=4, bottom=8, right=12)),
        ("crop", (32, 16), Box(top=8, left=0, bottom=24, right=16)),
        ("letterbox", (8, 16), None),
        ("stretch", (8, 16), None),
    ],
)
def test_an_answer_says_which_part_of_the_picture_it_shows(
    resize: str, picture: tuple[int, int], shows: Box | None
) -> None:
    c = image_codec({"size": (8, 8), "resize": resize})
    answer = c.decode({"y": np.zeros((3, 8, 8), np.float32)}, c.fit(*picture))
    assert isinstance(answer.file, PictureFile)
    assert answer.file.shows == shows
