"""Samples of a run in bounded memory, however long it goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import isnan

from trtfuse.core.report import Column, Line, Samples

# A night in steps of two minutes, an hour in steps of fifteen seconds: more than a plot shows.
_MOST_ROWS = 512

_Row = tuple[float, tuple[float, ...]]


class Series:
    """Rows of values by time. When they are full, every two become one, and so do the next.

    Two rows are one by their maximum at the later one's time: of a count that is its later value,
    of memory the peak. So nothing that was a peak is lost, and rates between rows stay exact. NaN
    is a value that is not there.

    >>> series = Series([Column("items"), Column("memory", "parent")], most=4)
    >>> for second in range(5):
    ...     series.add(second, [10.0 * second, 7.0 - second])
    >>> [(line.column.kind, line.values) for line in series.samples().lines]
    [('items', (10.0, 30.0, 40.0)), ('memory', (7.0, 5.0, 3.0))]
    """

    def __init__(self, columns: Sequence[Column], *, most: int = _MOST_ROWS) -> None:
        self._columns = tuple(columns)
        self._most = most
        self._rows: list[_Row] = []
        self._fold = 1
        """Samples that make a row."""
        self._pending: list[_Row] = []

    def add(self, seconds: float, values: Sequence[float]) -> None:
        """A sample: one value a column, `seconds` after the run's start, later than the last."""
        self._pending.append((seconds, tuple(values)))
        if len(self._pending) == self._fold:
            self._rows.append(_merged(self._pending))
            self._pending.clear()
        if len(self._rows) == self._most:
            pairs = zip_longest(self._rows[::2], self._rows[1::2])
            self._rows = [_merged(row for row in pair if row is not None) for pair in pairs]
            self._fold *= 2

    def samples(self) -> Samples:
        """What has been kept, the last sample included."""
        rows = [*self._rows, *([_merged(self._pending)] if self._pending else [])]
        return Samples(
            seconds=tuple(round(seconds, 3) for seconds, _ in rows),
            lines=tuple(
                Line(column=column, values=tuple(_shown(values[n]) for _, values in rows))
                for n, column in enumerate(self._columns)
            ),
        )


def _merged(rows: Iterable[_Row]) -> _Row:
    times, values = zip(*rows, strict=True)
    return times[-1], tuple(_largest(column) for column in zip(*values, strict=True))


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not isnan(value)), default=float("nan"))


def _shown(value: float) -> float | None:
    return None if isnan(value) else round(value, 3)
