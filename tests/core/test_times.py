from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtfuse.core.report import stage_reports
from trtfuse.core.times import STAGES, BatchTimes, Durations, ItemTimes, StageTimes

WEEK_NS = 7 * 24 * 3600 * 10**9


def durations(values: list[int]) -> Durations:
    found = Durations()
    for value in values:
        found.add(value)
    return found


@given(
    st.lists(st.integers(0, WEEK_NS), min_size=1, max_size=50), st.sampled_from([0.05, 0.5, 0.95])
)
def test_a_quantile_is_within_three_percent_of_the_value_that_stands_there(
    values: list[int], share: float
) -> None:
    found = durations(values)
    # The first whose rank reaches the share: the rule that the histogram goes by.
    exact = next(v for n, v in enumerate(sorted(values), 1) if n >= share * len(values))
    assert abs(found.quantile(share) - exact) <= exact / 32
    assert (found.count, found.total, found.longest) == (len(values), sum(values), max(values))


def test_any_number_of_durations_takes_a_bounded_number_of_buckets() -> None:
    # Every size from a nanosecond to a week, a hundred to the octave.
    found = durations([int(2 ** (n / 100)) for n in range(100 * WEEK_NS.bit_length())])
    assert len(found._buckets) < 16 * WEEK_NS.bit_length()


def test_nothing_measured_is_zero_and_not_an_error() -> None:
    assert durations([]).quantile(0.5) == 0.0
    assert stage_reports(StageTimes()) == ()


def test_a_batch_counts_once_and_an_item_each_time() -> None:
    times = StageTimes()
    batch = BatchTimes(queue=5, compute=7)
    for n in range(3):
        times.add(ItemTimes(decode=2, batch=batch, leads=n == 0))
    found = {name: (one.count, one.total) for name, one in times.by_stage.items() if one.count}
    assert found == {"decode": (3, 6), "queue": (1, 5), "compute": (1, 7)}


def test_reports_come_in_the_order_of_an_items_way() -> None:
    times = StageTimes()
    times.add(ItemTimes(commit=10**6, store=10**6, decode=10**6))
    assert [one.name for one in stage_reports(times)] == ["decode", "store", "commit"]
    assert set(times.by_stage) == set(STAGES)
