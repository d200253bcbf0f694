"""What repeated measurements say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.bench.figures import latency, percentile, quartiles, ratio

rates = st.lists(st.floats(min_value=0.1, max_value=1e6), min_size=1, max_size=12)


@given(rates)
def test_quartiles_are_ordered_and_lie_among_the_values(values: list[float]) -> None:
    found = quartiles(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.repeats == len(values)


@given(rates, st.floats(min_value=0.01, max_value=1.0))
def test_a_percentile_is_a_value_that_was_measured_and_covers_its_share(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_one_slow_batch_in_a_hundred_shows_in_p99_only_beyond_it() -> None:
    assert latency([1_000_000] * 99 + [9_000_000]).p99_ms == 1.0
    assert latency([1_000_000] * 98 + [9_000_000] * 2).p99_ms == 9.0


def test_a_p99_of_few_samples_is_not_said() -> None:
    found = latency([2_000_000] * 99)
    assert (found.p50_ms, found.p90_ms, found.p99_ms, found.samples) == (2.0, 2.0, None, 99)


@given(rates, rates)
def test_the_ratio_lies_in_its_interval_and_turns_over_with_its_sides(
    new: list[float], old: list[float]
) -> None:
    there, back = ratio(new, old), ratio(old, new)
    assert there.low <= there.value <= there.high
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


def test_the_interval_holds_the_true_ratio_in_about_95_of_100_cases() -> None:
    dice, held = random.Random(0), 0
    for _ in range(1000):
        old = [dice.lognormvariate(0.0, 0.1) for _ in range(7)]
        new = [0.9 * dice.lognormvariate(0.0, 0.1) for _ in range(7)]
        found = ratio(new, old)
        held += found.low <= 0.9 <= found.high
    assert 930 <= held <= 980


def test_one_wild_repeat_moves_the_ratio_little() -> None:
    assert ratio([100.0] * 6 + [1.0], [100.0] * 7).value == 1.0
