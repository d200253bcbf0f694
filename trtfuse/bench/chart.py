"""A result as a picture: a panel a batch size, a bar a path. SVG text, nothing installed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trtfuse.bench.result import Cell, Result

_ROW, _NAMES, _BARS, _NUMBERS, _HEAD = 22, 80, 420, 190, 34
_COLOURS = {"device": "#8fc7a3", "pool": "#2f7d4f", "naive": "#c9a227"}
_OTHERS, _RANGE = "#9aa5b1", "#222222"


def svg(result: Result) -> str:
    """Bars are medians of items per second, to the scale of their panel; lines are quartiles."""
    batches = dict.fromkeys(cell.batch for cell in result.cells)
    top, parts = _ROW, []
    for batch in batches:
        cells = [cell for cell in result.cells if cell.batch == batch]
        parts.append(_panel(cells, f"batch {batch}, items/s", top))
        top += _HEAD + _ROW * len(cells)
    about = " · ".join((result.model, *(result.conditions[n] for n in ("precision", "runtime"))))
    width = _NAMES + _BARS + _NUMBERS
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 12}" '
        f'width="{width}" height="{top + 12}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="8" y="18" font-weight="bold">{escape(about)}</text>\n{"".join(parts)}</svg>\n'
    )


def _panel(cells: Sequence[Cell], title: str, top: int) -> str:
    largest = max(cell.rate.high for cell in cells)
    bars = (
        _bar(cell, top + _HEAD + _ROW * n, _BARS / largest if largest else 0.0)
        for n, cell in enumerate(cells)
    )
    return f'<text x="8" y="{top + 24}">{escape(title)}</text>\n{"".join(bars)}'


def _bar(cell: Cell, y: int, scale: float) -> str:
    rate = cell.rate
    low, middle, high = (_NAMES + one * scale for one in (rate.low, rate.median, rate.high))
    colour = _COLOURS.get(cell.path, _OTHERS)
    said = f"{rate.median:,.1f} ({rate.low:,.1f} to {rate.high:,.1f})"
    return (
        f'<text x="{_NAMES - 6}" y="{y + 12}" text-anchor="end">{escape(cell.path)}</text>'
        f'<rect x="{_NAMES}" y="{y}" width="{middle - _NAMES:.1f}" height="{_ROW - 6}" '
        f'fill="{colour}"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 8}" y2="{y + 8}" stroke="{_RANGE}"/>'
        f'<text x="{max(high, middle) + 6:.1f}" y="{y + 12}">{said}</text>\n'
    )
