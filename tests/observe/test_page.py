"""The page as text; `test_page_in_a_browser` looks at it."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.observe.runs import HOSTILE, jpeg, rich
from trtfuse.core.report import Column, Line, Samples
from trtfuse.observe.page import page
from trtfuse.observe.plot import ticks
from trtfuse.observe.rates import Stretch, known, rates


class Tags(HTMLParser):
    """Every tag with its attributes; that each one is closed in its turn."""

    VOID = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_all_it_needs_and_nothing_that_a_key_wanted() -> None:
    text = page(rich(), {HOSTILE: jpeg()})
    tags = Tags(text).found
    assert {tag for tag, _ in tags}.isdisjoint({"script", "link", "iframe", "object"})
    assert not [name for _, attrs in tags for name in attrs if name.startswith("on")]
    sources = [attrs["src"] or "" for tag, attrs in tags if tag == "img"]
    assert [source[:22] for source in sources] == ["data:image/jpeg;base64"]
    assert "http:" not in text
    assert "https:" not in text


def test_a_page_of_ten_hours_is_small() -> None:
    assert len(page(rich(), {})) < 600_000


def test_a_run_without_items_has_a_page_too() -> None:
    nothing = replace(
        rich(), items=0, failed=0, failures=(), seconds=0.0, samples=Samples(), memory=(), stages=()
    )
    Tags(page(nothing, {}))


def samples(*points: tuple[float, float | None]) -> tuple[Samples, Line]:
    line = Line(column=Column("items"), values=tuple(value for _, value in points))
    return Samples(seconds=tuple(second for second, _ in points), lines=(line,)), line


def test_rates_are_what_was_added_from_one_sample_to_the_next() -> None:
    found = rates(*samples((0, 0), (2, 10), (3, None), (4, 10), (6, 30)))
    assert found == [Stretch(0, 2, 5.0), Stretch(2, 4, 0.0), Stretch(4, 6, 10.0)]
    assert known(*samples((0, 1), (1, None))) == [(0, 1)]


def test_the_last_moment_of_a_run_is_no_rate_of_its_own() -> None:
    found = rates(*samples((0, 0), (2, 4), (4, 8), (4.1, 12)))
    assert [(one.begin, one.end) for one in found] == [(0, 2), (2, 4.1)]
    assert rates(*samples((0, 0))) == []


@pytest.mark.parametrize("largest", [1e-3, 0.9, 1.0, 7.0, 99.0, 101.0, 123456.0])
def test_ticks_reach_the_largest_value_and_not_far_beyond(largest: float) -> None:
    marks = ticks(largest)
    assert 3 <= len(marks) <= 7
    assert largest <= marks[-1] < 2 * largest
