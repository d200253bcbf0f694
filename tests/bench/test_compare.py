"""Only like with like."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trtfuse.bench.chart import svg
from trtfuse.bench.compare import Compared, compare, differences, verdict
from trtfuse.bench.figures import Latency, Ratio
from trtfuse.bench.result import Cell, Result, read, write
from trtfuse.core.errors import UnknownName, UsageError

LATENCY = Latency(p50_ms=1.0, p90_ms=1.1, p99_ms=None, samples=9)


def result(rate: float = 100.0, **conditions: str) -> Result:
    rates = tuple(rate * (1 + n / 1000) for n in range(7))
    cells = (Cell(path="pool", batch=8, items_per_s=rates, latency=LATENCY),)
    return Result(
        schema=1,
        model="net",
        conditions={"cpu": "A", "precision": "fp32", "runtime": "r 1"} | conditions,
        noted={},
        cells=cells,
    )


def test_like_results_give_the_ratio_of_their_rates() -> None:
    (found,) = compare(result(), result(90.0))
    assert found.ratio.value == pytest.approx(0.9, abs=0.002)
    assert 0.89 < found.ratio.low < found.ratio.high < 0.91


def test_unlike_conditions_are_refused_by_name_with_both_values_and_the_way_out() -> None:
    with pytest.raises(UsageError) as error:
        compare(result(), result(cpu="B", gpu="G"))
    assert "cpu: A, and now B" in str(error.value)
    assert "gpu: not said, and now G" in str(error.value)
    assert "--allow cpu --allow gpu" in str(error.value)


def test_a_difference_that_is_allowed_is_no_hindrance_and_others_still_are() -> None:
    assert compare(result(), result(cpu="B"), allow=["cpu"])
    with pytest.raises(UsageError, match="precision: fp32, and now int8"):
        compare(result(), result(cpu="B", precision="int8"), allow=["cpu"])


def test_allowing_what_is_no_condition_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean cpu"):
        compare(result(), result(), allow=["cpus"])


def test_what_is_noted_may_differ() -> None:
    assert differences(result(), replace(result(), noted={"date": "today"})) == ()


def test_results_without_a_common_path_are_refused() -> None:
    (cell,) = result().cells
    with pytest.raises(UsageError, match="nothing to compare"):
        compare(result(), replace(result(), cells=(replace(cell, batch=1),)))


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        pytest.param(0.96, 0.90, 1.02, "kept", id="above-by-the-median"),
        pytest.param(0.90, 0.85, 0.94, "slower", id="below-with-its-whole-interval"),
        pytest.param(0.94, 0.85, 1.02, "unclear", id="below-within-the-spread"),
    ],
)
def test_a_path_is_slower_only_where_the_spread_does_not_explain_it(
    value: float, low: float, high: float, expected: str
) -> None:
    one = Compared(path="pool", batch=1, ratio=Ratio(value=value, low=low, high=high))
    assert verdict(one, fail_below=0.95) == expected


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "a.json", result())
    assert read(tmp_path / "a.json") == result()


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"schema": 2}), json.dumps({"schema": 1})])
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=r"a\.json: not a result of trtfuse bench"):
        read(tmp_path / "a.json")


def test_the_picture_names_every_path_and_its_rate() -> None:
    drawn = svg(result(1234.0))
    assert drawn.startswith("<svg")
    assert "pool" in drawn
    assert "1,237.7" in drawn
