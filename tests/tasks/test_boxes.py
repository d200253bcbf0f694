from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.core.specs import Array
from trtfuse.tasks.boxes import Found, nms, overlap

Case = tuple[list[list[int]], list[float], list[int]]


def naive_iou(a: list[int], b: list[int]) -> float:
    """By counting unit cells."""
    cells = [
        {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])} for box in (a, b)
    ]
    return len(cells[0] & cells[1]) / len(cells[0] | cells[1])


def naive_nms(case: Case, iou: float) -> list[int]:
    boxes, scores, labels = case
    kept: list[int] = []
    for row in sorted(range(len(boxes)), key=lambda n: (-scores[n], n)):
        rivals = [other for other in kept if labels[other] == labels[row]]
        if all(naive_iou(boxes[other], boxes[row]) < iou for other in rivals):
            kept.append(row)
    return kept


def found(boxes: list[list[int]], scores: list[float], labels: list[int]) -> Found:
    return Found(
        boxes=np.array(boxes, np.float64).reshape(-1, 4),
        scores=np.array(scores, np.float64),
        labels=np.array(labels, np.intp),
    )


@st.composite
def many(draw: st.DrawFn) -> Case:
    """Boxes on a coarse grid, so that they overlap, touch and coincide; scores with ties."""
    corner, side = st.integers(0, 12), st.integers(1, 8)
    rows = draw(
        st.lists(
            st.tuples(corner, corner, side, side, st.integers(0, 9), st.integers(0, 2)), max_size=25
        )
    )
    boxes = [[x, y, x + w, y + h] for x, y, w, h, _, _ in rows]
    return boxes, [row[4] / 10 for row in rows], [row[5] for row in rows]


@given(many(), st.sampled_from([0.1, 0.3, 0.5, 0.75, 1.0]))
def test_nms_keeps_what_the_naive_loops_keep(case: Case, iou: float) -> None:
    assert nms(found(*case), iou=iou).tolist() == naive_nms(case, iou)


def test_an_overlap_of_exactly_the_limit_goes() -> None:
    # 4 x 4 and its upper half: 8 / 16.
    case = found([[0, 0, 4, 4], [0, 0, 4, 2]], [0.9, 0.8], [0, 0])
    assert nms(case, iou=0.5).tolist() == [0]
    assert nms(case, iou=0.51).tolist() == [0, 1]


def test_boxes_of_other_labels_do_not_compete() -> None:
    case = found([[0, 0, 4, 4]] * 3, [0.8, 0.9, 0.7], [0, 1, 1])
    assert nms(case, iou=0.5).tolist() == [1, 0]


def test_nms_of_nothing_is_nothing() -> None:
    assert nms(found([], [], []), iou=0.5).tolist() == []


def test_overlap_is_that_of_areas() -> None:
    box: Array = np.array([0.0, 0, 10, 10])
    others = np.array([[0.0, 0, 10, 10], [5, 5, 15, 15], [10, 0, 20, 10], [20, 20, 30, 30]])
    np.testing.assert_allclose(overlap(box, others), [1, 25 / 175, 0, 0])
