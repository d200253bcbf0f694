"""Plots as HTML: an SVG that stretches, with its axes as text beside it, which does not.

Pure functions. Colours and sizes are in page.css, so that a plot is readable in light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

from trtfuse.observe.rates import Stretch

Points = Sequence[tuple[float, float]]
"""(x, y), x not falling."""

# Of the drawing, in its own units: it is stretched to whatever room there is.
_WIDTH, _HEIGHT = 1000.0, 300.0


def ticks(largest: float, most: int = 5) -> list[float]:
    """Round numbers from 0 to `largest` or a little above, which are 1, 2 or 5 steps apart.

    >>> ticks(7.3), ticks(0.0), ticks(130)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 1.0], [0.0, 50.0, 100.0, 150.0])
    """
    if largest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(largest / most))
    step = next(
        step for step in (power, 2 * power, 5 * power, 10 * power) if most * step >= largest
    )
    count = int(-(-largest // step))
    return [round(step * n, 12) for n in range(count + 1)]


def line_plot(points: Points, *, title: str, unit: str, seconds: float) -> str:
    """A line over `seconds` of time, filled below; y from 0 to its largest value.

    `title` says what it shows to who cannot see it.
    """
    marks = ticks(max((y for _, y in points), default=0.0))
    top = marks[-1]
    placed = [(_WIDTH * x / (seconds or 1.0), _HEIGHT * (1 - y / top)) for x, y in points]
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    grid = "".join(
        f'<path class="grid" d="M0 {y:.1f}H{_WIDTH:.0f}"/>'
        for y in (_HEIGHT * (1 - step / top) for step in marks)
    )
    area = line = ""
    if placed:
        first, last = f"{placed[0][0]:.1f} {_HEIGHT:.0f}", f"{placed[-1][0]:.1f} {_HEIGHT:.0f}"
        area = f'<path class="area" d="M{first} L{path} L{last}Z"/>'
        line = f'<path class="line" d="M{path}"/>'
    return (
        f'<div class="plot"><div class="ys">{_y_labels(marks, unit)}</div>'
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{grid}{area}{line}</svg>'
        f'<div class="xs">{_x_labels(seconds)}</div></div>'
    )


def steps(stretches: Sequence[Stretch]) -> list[tuple[float, float]]:
    """The points of a line that holds each rate from its begin to its end."""
    return [(x, one.rate) for one in stretches for x in (one.begin, one.end)]


def strip(stretches: Sequence[Stretch], *, title: str, seconds: float) -> str:
    """A row that is the fuller of colour the larger its rate is, 0 to 1."""
    scale = _WIDTH / (seconds or 1.0)
    cells = "".join(
        f'<rect class="cell" x="{scale * one.begin:.1f}" '
        f'width="{scale * (one.end - one.begin):.1f}" height="20" '
        f'fill-opacity="{min(max(one.rate, 0.0), 1.0):.2f}"/>'
        for one in stretches
    )
    return (
        f'<svg class="strip" viewBox="0 0 {_WIDTH:.0f} 20" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{cells}</svg>'
    )


def _y_labels(marks: Sequence[float], unit: str) -> str:
    top = marks[-1]
    return "".join(
        f'<span style="bottom:{100 * step / top:.1f}%">{step:g}{f" {unit}" if step == top else ""}'
        "</span>"
        for step in marks
    )


def _x_labels(seconds: float) -> str:
    """The start, the middle and the end."""
    return "".join(f"<span>{duration(at)}</span>" for at in (0.0, seconds / 2, seconds))


def duration(seconds: float) -> str:
    """As people say it.

    >>> duration(0), duration(0.25), duration(59.6), duration(3671), duration(200000)
    ('0 s', '0.25 s', '59.6 s', '1 h 01 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    if seconds < 86400:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
