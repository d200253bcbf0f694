from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from trtfuse.calibrate.histogram import Histogram, edges, stride
from trtfuse.calibrate.thresholds import Method, parse_method, threshold
from trtfuse.core.errors import UnknownName, UsageError

ALL = ("entropy", "percentile:99.99", "minmax", "mse")


def counted(*parts: NDArray[np.float32]) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part)
    return histogram


def chosen(values: NDArray[np.float32], method: str) -> float:
    largest = float(np.abs(values).max())
    return threshold(counted(*np.array_split(values, 40)), largest, parse_method(method))


def sqnr_db(values: NDArray[np.float32], amax: float) -> float:
    scale = amax / 127
    rounded = np.clip(np.round(values / scale), -127, 127) * scale
    return float(10 * np.log10(np.square(values).mean() / np.square(values - rounded).mean()))


def normal(count: int = 400_000) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(count).astype(np.float32)


def test_every_value_is_counted_in_the_bin_that_holds_it() -> None:
    values = np.array([0, 1e-30, 1, -1, 1.004, 65504, -3e38], np.float32)
    histogram = counted(values)
    limits = edges()
    assert histogram.counts.sum() == 7
    for index in np.flatnonzero(histogram.counts):
        inside = (np.abs(values) >= limits[index]) & (np.abs(values) < limits[index + 1])
        assert inside.sum() == histogram.counts[index]


def test_a_bin_is_a_256th_of_its_octave() -> None:
    limits = edges()
    at = int(np.searchsorted(limits, 1.0))
    assert limits[at : at + 257] == pytest.approx(1 + np.arange(257) / 256)


def test_order_and_grouping_change_nothing() -> None:
    values = normal(30_000)
    together = counted(values)
    apart = counted(*np.array_split(values[::-1], 7))
    assert (together.counts == apart.counts).all()


def test_a_large_array_is_sampled_evenly_and_off_the_grid() -> None:
    assert stride(1000) == 1
    picture = np.zeros((1, 64, 112, 112), np.float32)
    step = stride(picture.size)
    assert step >= picture.size / (1 << 15)
    columns = np.arange(0, picture.size, step) % 112
    assert len(set(columns.tolist())) == 112
    assert 1 << 14 < counted(picture).counts.sum() <= 1 << 15


def test_a_percentile_is_where_numpy_puts_it() -> None:
    values = normal()
    for share in (90, 99, 99.9):
        want = np.percentile(np.abs(values), share)
        # A 256th of an octave, and a value more or less.
        assert chosen(values, f"percentile:{share}") == pytest.approx(want, rel=0.01)


def test_minmax_is_the_largest_value_exactly() -> None:
    values = normal()
    assert chosen(values, "minmax") == float(np.abs(values).max())


def test_mse_is_near_the_least_error_that_any_threshold_has() -> None:
    values = normal()
    best = max(sqnr_db(values, amax) for amax in np.linspace(1, 6, 200))
    assert sqnr_db(values, chosen(values, "mse")) > best - 0.1


@pytest.mark.parametrize("outlier", [30.0, 300.0])
def test_entropy_is_not_max_where_a_few_values_lie_far_out(outlier: float) -> None:
    # What ONNX Runtime's and modelopt's entropy return here is the outlier: with as many bins as
    # levels there is one threshold to choose from.
    values = normal()
    values[::50_000] = outlier
    amax = chosen(values, "entropy")
    assert 2 < amax < outlier / 1.5
    assert sqnr_db(np.clip(values, -6, 6), amax) > sqnr_db(np.clip(values, -6, 6), outlier) + 3


def test_entropy_keeps_all_of_an_even_distribution() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 400_000).astype(np.float32)
    assert chosen(values, "entropy") == pytest.approx(1, rel=0.02)


def test_entropy_does_not_let_zeros_decide() -> None:
    values = normal()
    half = np.maximum(values, 0)
    padded = np.concatenate([half, np.zeros(2_000_000, np.float32)])
    assert chosen(half, "entropy") > 2.5
    assert chosen(padded, "entropy") > 2.5


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("unit", [1e-20, 1e-3, 1.0, 1e20])
def test_a_threshold_scales_with_the_values(method: str, unit: float) -> None:
    values = normal(50_000)
    scaled = (values * np.float32(unit)).astype(np.float32)
    assert chosen(scaled, method) == pytest.approx(unit * chosen(values, method), rel=0.03)


@pytest.mark.parametrize("method", ALL)
def test_a_single_value_is_its_own_threshold(method: str) -> None:
    assert chosen(np.full(40, -0.7, np.float32), method) == pytest.approx(0.7, rel=0.01)


@pytest.mark.parametrize("method", ALL)
def test_no_threshold_is_above_the_largest_value(method: str) -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).standard_t(3, 5_000).astype(np.float32)
        assert 0 < chosen(values, method) <= np.abs(values).max()


def test_methods_are_named_as_the_option_names_them() -> None:
    assert parse_method("entropy") == Method("entropy")
    assert parse_method("percentile:99.9") == Method("percentile", 99.9)
    for text in ALL:
        assert str(parse_method(text)) == text


def test_an_unknown_method_is_a_question() -> None:
    with pytest.raises(UnknownName, match="Did you mean entropy"):
        parse_method("entropie")


@pytest.mark.parametrize(
    "text", ["percentile", "percentile:", "percentile:101", "percentile:1", "mse:3", "entropy:"]
)
def test_a_method_with_a_wrong_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--calib-method"):
        parse_method(text)
