"""Made-up memory of a night: what is a leak, and what only looks like one."""

from __future__ import annotations

import numpy as np
import pytest

from trtfuse.core.specs import Array
from trtfuse.observe.rise import rise

MIB = 1 << 20
HOUR = 3600.0
TIMES = np.linspace(0, 8 * HOUR, 400)
NOISE = np.random.default_rng(0).normal(0, 4, len(TIMES))
"""Of allocators, in MiB."""


def leaks(mib: Array, times: Array = TIMES) -> bool:
    return rise(times.tolist(), (mib * MIB).tolist()).leaks


SHAPES = {
    "flat": (500 + NOISE, False),
    "flat without any noise": (np.full(len(TIMES), 500.0), False),
    "falling": (900 - 50 * TIMES / HOUR + NOISE, False),
    "rising": (500 + 60 * TIMES / HOUR + NOISE, True),
    "rising under a sawtooth": (500 + 60 * TIMES / HOUR + TIMES % 1800 / 30 + NOISE, True),
    "rising for an hour and then flat": (500 + 300 * np.minimum(TIMES / HOUR, 1) + NOISE, False),
    "a step in the middle": (500 + 400 * (TIMES > 4 * HOUR) + NOISE, False),
    "two steps": (500 + 200 * (TIMES > 4 * HOUR) + 200 * (TIMES > 7 * HOUR) + NOISE, False),
    "a sawtooth of an hour": (500 + TIMES % HOUR / 6 + NOISE, False),
    "a sawtooth of two hours": (500 + TIMES % (2 * HOUR) / 12 + NOISE, False),
    "one peak": (500 + 900 * (abs(TIMES - 5 * HOUR) < 60) + NOISE, False),
    "rising by less than a gigabyte in a day": (500 + 20 * TIMES / HOUR + NOISE, False),
}


@pytest.mark.parametrize(("mib", "leak"), SHAPES.values(), ids=SHAPES)
def test_what_rises_all_the_time_is_a_leak_and_nothing_else(mib: Array, leak: bool) -> None:
    assert leaks(mib) is leak


def test_the_slope_is_told_in_bytes_an_hour_whatever_a_third_of_the_samples_says() -> None:
    wild = 500 + 60 * TIMES / HOUR
    wild[::4] = 3000
    found = rise(TIMES.tolist(), (wild * MIB).tolist())
    assert found.bytes_per_hour == pytest.approx(60 * MIB, rel=0.25)


@pytest.mark.parametrize(("minutes", "leak"), [(10, False), (20, True)])
def test_a_short_run_is_no_leak_however_steep(minutes: float, leak: bool) -> None:
    times = np.linspace(0, 60 * minutes, 100)
    assert leaks(500 + 60 * times, times) is leak
    assert (rise(times.tolist(), [1e9] * 100).bytes_per_hour is not None) is leak


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_samples_say_nothing(count: int) -> None:
    assert rise(list(range(count)), [1e9] * count) == rise([], [])


def test_samples_that_are_not_there_are_left_out() -> None:
    # The worker was dead at the time.
    there = [n % 7 != 0 for n in range(len(TIMES))]
    values = [
        float(v) * MIB if t else None for v, t in zip(500 + 60 * TIMES / HOUR, there, strict=True)
    ]
    assert rise(TIMES.tolist(), values).leaks
