"""The picture of `vs_pytorch.py`: bars, as SVG, with nothing installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDE, _BAR, _GAP, _LABEL, _HEAD = 460, 16, 4, 170, 34
_COLOURS = {"PyTorch": "#9aa5b1", "TrtRunner": "#c9a227", "trtfuse": "#2f7d4f", "device": "#8fc7a3"}


def bars(
    middle: Mapping[tuple[str, int, str], float],
    panels: Sequence[tuple[str, int]],
    paths: Sequence[str],
    columns: int,
) -> str:
    """One panel a (net, batch), row by row; bars to the scale of the panel, items/s beside them.

    A panel shows what was measured of it, and names what of `paths` was not where most were.
    """
    shown = [_shown(middle, panel, paths) for panel in panels]
    high = _HEAD + max(map(len, shown), default=0) * (_BAR + _GAP) + 12
    parts = [
        _panel(middle, panel, rows, place % columns * _WIDE, place // columns * high)
        for place, (panel, rows) in enumerate(zip(panels, shown, strict=True))
    ]
    width, height = columns * _WIDE, -(-len(panels) // columns) * high
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n{"".join(parts)}</svg>\n'
    )


def _shown(
    middle: Mapping[tuple[str, int, str], float], panel: tuple[str, int], paths: Sequence[str]
) -> Sequence[str]:
    measured = [path for path in paths if (*panel, path) in middle]
    return paths if 2 * len(measured) > len(paths) else measured


def _panel(
    middle: Mapping[tuple[str, int, str], float],
    panel: tuple[str, int],
    paths: Sequence[str],
    left: int,
    top: int,
) -> str:
    net, batch = panel
    values = [middle.get((net, batch, path)) for path in paths]
    largest = max((value for value in values if value), default=1.0)
    lines = [
        f'<text x="{left + 8}" y="{top + 20}" font-weight="bold">'
        f"{net}, batch {batch} (items/s)</text>\n"
    ]
    for place, (path, value) in enumerate(zip(paths, values, strict=True)):
        y = top + _HEAD + place * (_BAR + _GAP)
        length = round((_WIDE - _LABEL - 80) * (value or 0.0) / largest)
        said = f"{value:,.0f}" if value else "not measured"
        colour = _COLOURS[path.split(" ")[0].split(".")[0]]
        lines.append(
            f'<text x="{left + _LABEL - 6}" y="{y + 12}" text-anchor="end">{path}</text>'
            f'<rect x="{left + _LABEL}" y="{y}" width="{length}" height="{_BAR}" fill="{colour}"/>'
            f'<text x="{left + _LABEL + length + 5}" y="{y + 12}">{said}</text>\n'
        )
    return "".join(lines)
