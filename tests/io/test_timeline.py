from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtfuse.io.timeline import Timeline


def test_a_frame_that_never_comes_is_lost_once_the_decoder_has_complained() -> None:
    timeline = Timeline()
    for start in (0, 10, 20, 30):
        timeline.promise(start)
    assert list(timeline.came(0, fresh=True)) == []
    timeline.complain("damage")
    assert list(timeline.came(20, fresh=False)) == [(10, "damage")]
    assert list(timeline.came(30, fresh=False)) == []


def test_a_packet_without_a_picture_is_no_loss() -> None:
    timeline = Timeline()
    for start in (0, 10, 20):
        timeline.promise(start)
    assert list(timeline.came(20, fresh=False)) == []
    assert list(timeline.end()) == []


def test_a_fresh_frame_ends_the_trouble() -> None:
    timeline = Timeline()
    for start in (0, 10, 20, 30):
        timeline.promise(start)
    timeline.complain("damage")
    assert list(timeline.came(10, fresh=True)) == [(0, "damage")]
    assert list(timeline.came(30, fresh=False)) == []


def test_what_is_open_at_the_end_after_a_complaint_is_lost() -> None:
    timeline = Timeline()
    for start in (20, 0, 10):
        timeline.promise(start)
    list(timeline.came(0, fresh=True))
    timeline.complain("cut short")
    assert list(timeline.end()) == [(10, "cut short"), (20, "cut short")]


@given(st.sets(st.integers(0, 99), min_size=1, max_size=30), st.data())
def test_in_trouble_every_promise_is_a_frame_or_a_loss_in_order(
    starts: set[int], data: st.DataObject
) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(starts))))
    timeline = Timeline()
    timeline.complain("damage")
    for start in starts:
        timeline.promise(start)
    out: list[int] = []
    for start in sorted(kept):
        out += [lost for lost, _ in timeline.came(start, fresh=False)]
        out.append(start)
    out += [lost for lost, _ in timeline.end()]
    assert out == sorted(starts)
