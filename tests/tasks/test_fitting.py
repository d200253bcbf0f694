from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.core.card import InputCard
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Geometry
from trtfuse.tasks.fitting import fit, scaled_size, shown, to_picture

SIDE = st.integers(1, 4000)
TARGET = st.integers(1, 700)


def card(size: object, resize: object, multiple: int = 1) -> InputCard:
    return InputCard(
        name="x",
        layout="NCHW",
        colour="RGB",
        range=(0, 1),
        size=size,  # type: ignore[arg-type]
        resize=resize,  # type: ignore[arg-type]
        multiple=multiple,
    )


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Of every kind of card, for a picture of any size."""
    resize = draw(st.sampled_from(["stretch", "letterbox", "crop", "none"]))
    height, width = draw(SIDE), draw(SIDE)
    if resize == "crop":
        # Not narrower than a crop allows.
        width = max(width, height // 16)
        height = max(height, width // 16)
    if resize in ("none", "stretch") and (resize == "none" or draw(st.booleans())):
        return fit(card("dynamic", resize, draw(st.integers(1, 64))), height, width)
    return fit(card((draw(TARGET), draw(TARGET)), resize), height, width)


@given(geometries(), st.floats(0, 1), st.floats(0, 1))
def test_a_point_goes_to_the_input_and_comes_back(g: Geometry, u: float, v: float) -> None:
    point = np.array([u * g.picture[1], v * g.picture[0]])
    there = point * (g.scale_x, g.scale_y) + (g.left, g.top)
    np.testing.assert_allclose(to_picture(there, g), point, atol=1e-6)


@given(geometries(), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_no_point_comes_back_outside_the_picture(g: Geometry, x: float, y: float) -> None:
    back = to_picture(np.array([[x, y]]), g)
    assert (back >= 0).all()
    assert (back <= (g.picture[1], g.picture[0])).all()


@given(geometries())
def test_what_is_shown_lies_inside_the_input_and_is_not_empty(g: Geometry) -> None:
    window = shown(g)
    assert 0 <= window.top < window.bottom <= g.input[0]
    assert 0 <= window.left < window.right <= g.input[1]


@given(SIDE, SIDE, TARGET, TARGET)
def test_letterbox_keeps_the_aspect_shows_all_and_touches_two_sides(
    height: int, width: int, rows: int, columns: int
) -> None:
    g = fit(card((rows, columns), "letterbox"), height, width)
    scaled = scaled_size(g)
    scale = min(rows / height, columns / width)
    assert scaled[0] == pytest.approx(max(1, height * scale), abs=0.5)
    assert scaled[1] == pytest.approx(max(1, width * scale), abs=0.5)
    assert scaled[0] == rows or scaled[1] == columns
    below, right = rows - g.top - scaled[0], columns - g.left - scaled[1]
    assert 0 <= below - g.top <= 1
    assert 0 <= right - g.left <= 1


@given(SIDE, SIDE, TARGET, TARGET)
def test_crop_keeps_the_aspect_and_leaves_no_padding(
    height: int, width: int, rows: int, columns: int
) -> None:
    scale = max(rows / height, columns / width)
    if max(height, width) * scale > 32768:
        with pytest.raises(ItemError, match="too narrow"):
            fit(card((rows, columns), "crop"), height, width)
        return
    g = fit(card((rows, columns), "crop"), height, width)
    window = shown(g)
    assert (window.top, window.left, window.bottom, window.right) == (0, 0, rows, columns)
    assert scaled_size(g)[0] == pytest.approx(max(rows, height * scale), abs=0.5)
    assert scaled_size(g)[1] == pytest.approx(max(columns, width * scale), abs=0.5)
    cut_above, cut_below = -g.top, scaled_size(g)[0] - rows + g.top
    assert abs(cut_below - cut_above) <= 1


def test_stretch_fills_the_size_whatever_the_aspect() -> None:
    g = fit(card((50, 200), "stretch"), 100, 100)
    assert (g.input, g.scale_y, g.scale_x, g.top, g.left) == ((50, 200), 0.5, 2.0, 0, 0)


def test_dynamic_none_is_padded_right_and_below_to_the_multiple() -> None:
    g = fit(card("dynamic", "none", multiple=32), 33, 64)
    assert (g.input, g.scale_y, g.scale_x, g.top, g.left) == ((64, 64), 1, 1, 0, 0)
    assert (shown(g).bottom, shown(g).right) == (33, 64)


def test_dynamic_stretch_goes_to_the_next_multiple_up() -> None:
    g = fit(card("dynamic", "stretch", multiple=32), 33, 64)
    assert (g.input, scaled_size(g)) == ((64, 64), (64, 64))


def test_a_fixed_size_without_resize_takes_that_size_only() -> None:
    assert fit(card((20, 30), "none"), 20, 30).input == (20, 30)
    with pytest.raises(ItemError, match=r"picture is 20 x 30, and the model takes 30 x 20"):
        fit(card((20, 30), "none"), 30, 20)
