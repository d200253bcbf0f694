from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.core.specs import Array
from trtfuse.io.annotate import draw

SIDE = st.integers(1, 200)
PLACE = st.floats(0, 200)


def changed(height: int, width: int, *detections: dict[str, object]) -> Array:
    """Which pixels of a grey picture the drawing has touched."""
    grey = np.full((height, width, 3), 90, np.uint8)
    return np.asarray((draw(grey, detections) != 90).any(axis=2))


def face(*box: float, **more: object) -> dict[str, object]:
    return {"box": list(box), "score": 0.93, "label": "face", **more}


def test_the_boxs_border_is_drawn_and_its_middle_left_free() -> None:
    touched = changed(300, 300, face(100, 120, 200, 250))
    assert touched[120:250, 100].all()
    assert touched[120:250, 199].all()
    assert touched[249, 100:200].all()
    assert not touched[130:240, 110:190].any()
    assert not touched[260:].any()


def test_the_text_stands_on_the_box_and_is_legible() -> None:
    touched = changed(300, 300, face(100, 120, 200, 250))
    rows = np.nonzero(touched[:118].any(axis=1))[0]
    assert 11 <= rows.max() - rows.min() <= 40
    assert rows.max() >= 116


@pytest.mark.parametrize("corner", [(0, 0), (290, 0), (0, 290), (290, 290)])
def test_the_text_stays_inside_the_picture(corner: tuple[int, int]) -> None:
    x, y = corner
    with_text = changed(300, 300, face(x, y, x + 10, y + 10)).sum()
    # The whole plate, about 60 x 20 pixels, wherever the box lies.
    assert with_text == pytest.approx(changed(300, 300, face(120, 120, 130, 130)).sum(), rel=0.15)


def test_lines_grow_with_the_picture() -> None:
    def thickness(side: int) -> int:
        touched = changed(side, side, face(side / 4, side / 4, side / 2, side / 2))
        middle = touched[3 * side // 8]
        return int(middle[: 3 * side // 8].sum())

    assert thickness(200) == 2
    assert thickness(3200) == 10


def test_landmarks_are_dots_at_their_places() -> None:
    touched = changed(300, 300, face(100, 100, 200, 200, landmarks=[[130, 140], [170, 140]]))
    assert touched[140, 130]
    assert touched[140, 170]
    assert not touched[140, 150]


def test_nothing_found_changes_nothing() -> None:
    assert not changed(50, 60).any()


def test_the_picture_itself_is_not_drawn_on() -> None:
    pixels = np.zeros((50, 50, 3), np.uint8)
    draw(pixels, [face(10, 20, 40, 45)])
    assert not pixels.any()


@given(SIDE, SIDE, PLACE, PLACE, PLACE, PLACE)
def test_any_box_on_any_picture_can_be_drawn(
    height: int, width: int, left: float, top: float, right: float, bottom: float
) -> None:
    pixels = np.zeros((height, width, 3), np.uint8)
    box = face(min(left, right), min(top, bottom), max(left, right), max(top, bottom))
    assert draw(pixels, [box]).shape == pixels.shape
