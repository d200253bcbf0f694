from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.calibrate.sensitivity import search

LAYERS = [f"conv{n}" for n in range(40)]


def harm(*bad: str, each: float = 2.0) -> dict[str, float]:
    return {name: each if name in bad else 0.001 for name in LAYERS}


class Judge:
    """Pressures that add up, and how often they were asked for."""

    def __init__(self, harms: dict[str, float]) -> None:
        self.harms = harms
        self.asked: list[int] = []

    def alone(self, name: str) -> float:
        return self([name])

    def __call__(self, layers: Collection[str]) -> float:
        self.asked.append(len(layers))
        return sum(self.harms[name] for name in layers)


def never() -> bool:
    return False


def quiet(done: int, total: int) -> None:
    pass


def test_the_one_bad_layer_is_found() -> None:
    judge = Judge(harm("conv7"))
    found = search(LAYERS, judge.alone, judge, expired=never, progress=quiet)
    assert found.keep == ("conv7",)
    assert found.passed
    assert found.layers[0].alone == 2.0
    assert found.layers[0].left == pytest.approx(0.039)


def test_the_fewest_of_the_worst_are_kept_with_few_trials() -> None:
    bad = [f"conv{n}" for n in range(3, 14)]
    judge = Judge(harm(*bad))
    found = search(LAYERS, judge.alone, judge, expired=never, progress=quiet)
    assert set(found.keep) == set(bad)
    # Each alone, and then halving: 1, 2, 4, 8, 16 and down again.
    assert len(judge.asked) <= 40 + 9


@given(st.sets(st.sampled_from(LAYERS), min_size=1))
def test_whatever_is_bad_is_kept_and_nothing_else(bad: set[str]) -> None:
    judge = Judge(harm(*bad))
    found = search(LAYERS, judge.alone, judge, expired=never, progress=quiet)
    assert set(found.keep) == bad
    assert found.passed


def test_where_no_choice_passes_it_says_so() -> None:
    found = search(LAYERS, lambda _: 5.0, lambda _: 5.0, expired=never, progress=quiet)
    assert not found.passed
    assert set(found.keep) == set(LAYERS)


def test_out_of_time_it_keeps_what_it_ranked_so_far() -> None:
    judge = Judge(harm("conv3"))
    found = search(LAYERS, judge.alone, judge, expired=lambda: len(judge.asked) > 5, progress=quiet)
    assert found.ended == "out of time"
    assert "conv3" in found.keep
    assert len(found.layers) == 6
    assert found.passed


def test_progress_counts_the_layers() -> None:
    told: list[tuple[int, int]] = []
    judge = Judge(harm("conv0"))
    search(LAYERS, judge.alone, judge, expired=never, progress=lambda *n: told.append(n))
    assert told == [(n, 40) for n in range(1, 41)]
