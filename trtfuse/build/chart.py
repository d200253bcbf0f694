"""The search for layers to keep, as a picture: SVG text, made of bars."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10

from trtfuse.core.specs import KeptLayer

# Layers shown; the rest did less harm than these.
_MOST = 40
_ROW, _NAMES, _WIDTH = 18, 260, 480
# Decades of noise around the limit, which is 1.
_DECADES = (-4.0, 2.0)
_KEPT, _QUANTIZED, _LIMIT = "#b4413c", "#5b7fa6", "#222222"


def sensitivity_svg(layers: Sequence[KeptLayer], title: str) -> str:
    """A bar for each layer: the noise it makes by itself, over what is allowed for all.

    The axis is logarithmic; the line is the limit; layers that were kept out of INT8 are red.
    """
    shown = layers[:_MOST]
    height = _ROW * (len(shown) + 3)
    limit = _NAMES + _length(1.0)
    bars = "".join(_bar(number, one) for number, one in enumerate(shown))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_NAMES + _WIDTH + 80}" '
        f'height="{height}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="{_ROW}">{escape(title)}</text>{bars}'
        f'<line x1="{limit:.0f}" x2="{limit:.0f}" y1="{1.5 * _ROW:.0f}" '
        f'y2="{height - _ROW}" stroke="{_LIMIT}"/>'
        f'<text x="{limit:.0f}" y="{height - 4}" text-anchor="middle">limit</text></svg>\n'
    )


def _bar(number: int, one: KeptLayer) -> str:
    top = _ROW * (number + 1.7)
    colour = _KEPT if one.kept else _QUANTIZED
    length = _length(one.alone)
    return (
        f'<text x="{_NAMES - 8}" y="{top + 12:.0f}" text-anchor="end">{escape(one.layer)}</text>'
        f'<rect x="{_NAMES}" y="{top:.0f}" width="{length:.0f}" height="{_ROW - 4}" '
        f'fill="{colour}"/>'
        f'<text x="{_NAMES + length + 6:.0f}" y="{top + 12:.0f}">{one.alone:.3g}</text>'
    )


def _length(noise: float) -> float:
    low, high = _DECADES
    decade = min(max(log10(max(noise, 1e-12)), low), high)
    return _WIDTH * (decade - low) / (high - low)
