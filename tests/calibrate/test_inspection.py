from __future__ import annotations

from dataclasses import replace
from importlib.metadata import distribution
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.calibrate.examples import Floats, example, examples, noise, smooth
from trtfuse.calibrate.inspection import inspect, is_noise
from trtfuse.calibrate.recipe import Example
from trtfuse.core.card import InputCard
from trtfuse.core.errors import CalibrationError


def card(**changes: Any) -> InputCard:
    fields = {"name": "x", "layout": "NCHW", "colour": "RGB", "range": (0.0, 1.0)}
    return InputCard(**{**fields, "size": "dynamic", "resize": "none", **changes})


def quiet(done: int) -> None:
    pass


# Per-channel limits that differ, so that swapped channels can be told.
UNEVEN = card(mean=(0.2, 0.4, 0.8), std=(0.2, 0.2, 0.2))


def as_card_says(values: Floats, of: InputCard) -> Floats:
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (of.mean, of.std))
    return (values - mean) / std


def test_sound_inputs_are_all_kept_and_progress_is_told() -> None:
    told: list[int] = []
    found = inspect(examples([smooth(n) for n in range(4)]), card(), told.append)
    assert found.left_out == {}
    assert found.notes == ()
    assert told == [1, 2, 3, 4]


def test_constant_inputs_and_copies_are_left_out_and_named() -> None:
    flat = np.full((1, 3, 32, 32), 0.5, np.float32)
    found = inspect(examples([smooth(0), flat, smooth(1), smooth(0), smooth(0)]), card(), quiet)
    assert found.left_out == {
        "01.png": "the same value everywhere",
        "03.png": "a copy of another input",
        "04.png": "a copy of another input",
    }
    assert found.notes == (
        "left out, the same value everywhere: 01.png",
        "left out, a copy of another input: 03.png, 04.png",
    )


def test_many_names_are_cut_short() -> None:
    found = inspect(examples([smooth(0)] * 6), card(), quiet)
    assert found.notes == ("left out, a copy of another input: 01.png, 02.png, 03.png and 2 more",)


def test_an_input_that_is_not_finite_is_refused_by_name() -> None:
    bad = smooth(0)
    bad[0, 0, 0, :3] = np.nan
    with pytest.raises(CalibrationError, match="bad: input 'x' holds NaN or infinity in 3 of 3072"):
        inspect([example("bad", bad)], None, quiet)


def test_bytes_where_the_card_wants_0_to_1_are_told() -> None:
    with pytest.raises(CalibrationError, match=r"00\.png: .*\[0, .*looks like bytes, 0 to 255"):
        inspect(examples([smooth(0, high=255)]), card(), quiet)


def test_0_to_1_where_the_card_wants_more_is_told() -> None:
    wants = card(range=(0.0, 1.0), mean=(-1.0, -1.0, -1.0), std=(1.0, 1.0, 1.0))
    with pytest.raises(CalibrationError, match="divided by 255, but not as the card says"):
        inspect(examples([smooth(0)]), wants, quiet)


def test_swapped_channels_are_told_where_the_right_order_would_fit() -> None:
    picture = as_card_says(smooth(0), UNEVEN)
    inspect(examples([picture]), UNEVEN, quiet)
    with pytest.raises(CalibrationError, match="channels swapped it would fit: is it BGR, not RGB"):
        inspect(examples([picture[:, ::-1]]), UNEVEN, quiet)


def test_values_that_fit_nothing_are_told_with_both_ranges() -> None:
    with pytest.raises(
        CalibrationError, match=r"reaches from \[.*allows \[0, 0, 0\] to \[1, 1, 1\]"
    ):
        inspect(examples([smooth(0) * 500 - 300]), card(), quiet)


def test_channels_are_found_in_either_layout() -> None:
    last = np.ascontiguousarray(smooth(0).transpose(0, 2, 3, 1))
    inspect(examples([last]), card(layout="NHWC"), quiet)
    with pytest.raises(CalibrationError, match="bytes"):
        inspect(examples([last * 255]), card(layout="NHWC"), quiet)


def test_random_data_is_refused_and_one_test_pattern_is_not() -> None:
    with pytest.raises(CalibrationError, match="4 of 4 inputs looked at are random noise"):
        inspect(examples([noise(n) for n in range(4)]), card(), quiet)
    inspect(examples([smooth(0), smooth(1), noise(0)]), card(), quiet)


def test_noise_is_found_in_either_layout() -> None:
    last = [np.ascontiguousarray(noise(n).transpose(0, 2, 3, 1)) for n in range(4)]
    with pytest.raises(CalibrationError, match="random noise"):
        inspect(examples(last), card(layout="NHWC"), quiet)
    assert not is_noise(smooth(0).transpose(0, 2, 3, 1), layout="NHWC")


def test_noise_that_was_made_larger_for_the_model_is_seen_as_it_is_stored() -> None:
    def stored(n: int) -> Example:
        small = np.random.default_rng(n).integers(0, 256, (64, 64, 3), np.uint8)
        large = np.asarray(Image.fromarray(small).resize((224, 224)), np.float32) / 255
        array = np.ascontiguousarray(large.transpose(2, 0, 1)[None])
        assert not is_noise(array)
        return replace(example(str(n), array), pixels=lambda: small)

    with pytest.raises(CalibrationError, match="4 of 4 inputs looked at are random noise"):
        inspect([stored(n) for n in range(4)], card(size=(224, 224)), quiet)


def test_a_large_picture_is_judged_by_its_middle() -> None:
    pixels = np.zeros((3, 600, 600), np.float32)
    pixels[:, 172:428, 172:428] = np.random.default_rng(0).random((3, 256, 256))
    assert is_noise(pixels)


def test_normal_noise_is_noise_too() -> None:
    values = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    assert is_noise(values)


@pytest.mark.parametrize("shape", [(1, 1000), (1, 4, 8), (1, 3, 8, 8)])
def test_what_is_no_picture_is_not_taken_for_noise(shape: tuple[int, ...]) -> None:
    assert not is_noise(np.random.default_rng(0).random(shape, np.float32))


def test_no_photograph_looks_like_noise() -> None:
    files = distribution("scikit-image").files or []
    photos = [file for file in files if file.name in ("astronaut.png", "chelsea.png", "rocket.jpg")]
    assert len(photos) == 3
    for photo in photos:
        pixels = np.asarray(Image.open(str(photo.locate())).convert("RGB"), np.float32)
        assert not is_noise(pixels.transpose(2, 0, 1)[None])
