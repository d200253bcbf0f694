from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from skimage import metrics as reference

from trtfuse.build.metrics import Again, ChannelSums, channel_groups, found_again, psnr_db, ssim

RANDOM = np.random.default_rng(0)


def test_sums_over_items_are_those_of_all_at_once() -> None:
    expected = RANDOM.standard_normal((4, 5, 6, 7)).astype(np.float32)
    got = expected + 0.1 * RANDOM.standard_normal(expected.shape).astype(np.float32)
    whole = ChannelSums.of(expected, got, 1)
    parts = [ChannelSums.of(expected[n : n + 1], got[n : n + 1], 1) for n in range(4)]
    joined = reduce(add, parts)
    channels = np.arange(5)
    a, b = expected.ravel().astype(np.float64), got.ravel().astype(np.float64)
    for sums in (whole, joined):
        cosine = a @ b / np.sqrt((a @ a) * (b @ b))
        assert sums.cosine(channels) == pytest.approx(cosine)
        ratio = a @ a / np.square(a - b).sum()
        assert sums.sqnr_db(channels) == pytest.approx(10 * np.log10(ratio))
        assert sums.error(channels) == pytest.approx(np.abs(a - b).max() / np.abs(a).max())


def test_equal_answers_are_perfect_and_zeros_too() -> None:
    for array in (np.ones((1, 3, 2)), np.zeros((1, 3, 2))):
        sums = ChannelSums.of(array, array, 1)
        channels = np.arange(3)
        assert sums.cosine(channels) == 1
        assert sums.sqnr_db(channels) == np.inf
        assert sums.error(channels) == 0


def test_a_channel_that_vanished_has_cosine_0_and_one_that_appeared_too() -> None:
    one, none = np.ones((1, 2, 4)), np.zeros((1, 2, 4))
    for expected, got in ((one, none), (none, one)):
        assert ChannelSums.of(expected, got, 1).cosine(np.arange(2)) == 0


def groups(*sizes: float) -> list[list[int]]:
    values = np.array(sizes)[None, :, None] * np.ones((1, 1, 9))
    return [group.tolist() for group in channel_groups(ChannelSums.of(values, values, 1))]


def test_boxes_and_scores_are_two_groups() -> None:
    assert groups(300, 200, 0.02, 250, 0.5, 0.1, 0.03) == [[2, 4, 5, 6], [0, 1, 3]]


def test_channels_that_differ_step_by_step_are_one_group() -> None:
    assert groups(1, 5, 20, 100, 500) == [[0, 1, 2, 3, 4]]


def test_zeros_belong_to_the_smallest_and_all_zeros_are_one_group() -> None:
    assert groups(0, 1, 0, 100) == [[0, 1, 2], [3]]
    assert groups(0, 0) == [[0, 1]]


def test_psnr_and_ssim_are_those_of_scikit_image() -> None:
    picture = RANDOM.random((3, 40, 50))
    noisy = np.clip(picture + 0.1 * RANDOM.standard_normal(picture.shape), 0, 1)
    theirs: Any = reference
    psnr = theirs.peak_signal_noise_ratio(picture, noisy, data_range=1.0)
    similar = theirs.structural_similarity(picture, noisy, data_range=1.0, channel_axis=0)
    assert psnr_db(picture, noisy, 1.0) == pytest.approx(psnr)
    assert ssim(picture, noisy, 1.0) == pytest.approx(similar, abs=1e-6)
    assert psnr_db(picture, picture, 1.0) == np.inf
    assert ssim(picture, picture, 1.0) == pytest.approx(1)


def test_a_picture_smaller_than_the_window_has_one() -> None:
    picture = RANDOM.random((1, 4, 5))
    assert ssim(picture, picture, 1.0) == pytest.approx(1)


def box(x: float, score: float = 0.9, label: str = "face") -> dict[str, object]:
    return {"box": [x, 0.0, x + 10, 10.0], "score": score, "label": label}


def test_each_box_is_found_again_once_by_the_best_overlap() -> None:
    expected = [box(0, 0.9), box(100, 0.8)]
    found = found_again(expected, [box(100.2, 0.75), box(0.1, 0.88)], iou=0.9)
    assert found.pairs == 2
    assert found.drift == pytest.approx(0.05)
    assert found.overlap == pytest.approx(9.8 / 10.2)
    assert found_again(expected, [box(0.1)], iou=0.9).pairs == 1
    assert found_again([box(0), box(0)], [box(0)], iou=0.9) == Again(1, 0.0, 0.0)


def test_a_box_that_moved_or_has_another_label_is_lost() -> None:
    assert found_again([box(0)], [box(5)], iou=0.9) == Again(0, 0.0, 5 / 15)
    assert found_again([box(0)], [box(0, label="cat")], iou=0.9) == Again(0, 0.0, 0.0)
    assert found_again([], [box(0)], iou=0.9) == Again()
