from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np
import pytest

from trtfuse.core.card import Card, DetectTask, InputCard
from trtfuse.core.errors import CardError, ItemError
from trtfuse.core.flow import Codec
from trtfuse.core.specs import Array
from trtfuse.tasks.table import codec

FACE_OUTPUTS = {"score": "s", "size": "z", "offset": "o", "landmarks": "l"}


def detector(
    decoder: Any, *, labels: tuple[str, ...], outputs: Mapping[str, str], **input_: Any
) -> Codec:
    fields: dict[str, Any] = {"size": (64, 64), "resize": "letterbox"}
    return codec(
        Card(
            input=InputCard(name="x", layout="NCHW", colour="RGB", range=(0, 1), **fields | input_),
            task=DetectTask(
                name="detect", decoder=decoder, outputs=outputs, labels=labels, score=0.5, iou=0.5
            ),
        )
    )


def yolo(*anchors: list[float], labels: tuple[str, ...] = ("cat", "dog")) -> tuple[Codec, Array]:
    """A codec and its output: one column an anchor."""
    c = detector("yolov8", labels=labels, outputs={"boxes": "b"})
    return c, np.array(anchors, np.float32).reshape(-1, 4 + len(labels)).T


def detections(c: Codec, outputs: Mapping[str, Array], picture: tuple[int, int]) -> Any:
    return c.decode(outputs, c.fit(*picture)).fields["detections"]


def test_yolov8_boxes_are_centred_and_come_back_in_the_pictures_pixels() -> None:
    # 128 wide, 64 high in 64 x 64: half the size, 16 pixels of padding above.
    c, output = yolo([32, 32, 20, 8, 0.1, 0.75])
    assert detections(c, {"b": output}, (64, 128)) == [
        {"box": [44.0, 24.0, 84.0, 40.0], "score": 0.75, "label": "dog"}
    ]


def test_yolov8_needs_more_than_the_cards_score_and_sorts_by_it() -> None:
    c, output = yolo(
        [10, 10, 8, 8, 0.625, 0.1], [30, 10, 8, 8, 0.5, 0.1], [50, 10, 8, 8, 0.1, 0.875]
    )
    assert [(d["label"], d["score"]) for d in detections(c, {"b": output}, (64, 64))] == [
        ("dog", 0.875),
        ("cat", 0.625),
    ]


def test_yolov8_suppresses_within_a_label_only() -> None:
    c, output = yolo(
        [30, 30, 20, 20, 0.75, 0], [31, 30, 20, 20, 0.875, 0], [30, 31, 20, 20, 0, 0.625]
    )
    assert [(d["label"], d["score"]) for d in detections(c, {"b": output}, (64, 64))] == [
        ("cat", 0.875),
        ("dog", 0.625),
    ]


def test_yolov8_without_a_hit_is_an_empty_list() -> None:
    c, output = yolo([30, 30, 20, 20, 0.1, 0.2])
    assert detections(c, {"b": output}, (64, 64)) == []


def test_boxes_are_clipped_to_the_picture_and_those_outside_are_gone() -> None:
    # The second lies in the padding above, the third has no size.
    c, output = yolo([2, 20, 20, 20, 0.75, 0], [32, 5, 8, 6, 0.75, 0], [32, 32, 0, 9, 0.75, 0])
    assert [d["box"] for d in detections(c, {"b": output}, (64, 128))] == [[0.0, 0.0, 24.0, 28.0]]


def test_a_card_with_other_labels_than_the_model_fails_the_item() -> None:
    c, _ = yolo()
    with pytest.raises(ItemError, match=r"'b': got \(7, 2\), needs \(6, anchors\).*2 labels"):
        detections(c, {"b": np.zeros((7, 2), np.float32)}, (64, 64))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_no_numbers_fail_the_item(bad: float) -> None:
    c, output = yolo([30, 30, 20, 20, 0.1, bad])
    with pytest.raises(ItemError, match="'b': 1 of 6 values are NaN or infinite"):
        detections(c, {"b": output}, (64, 64))


def test_an_output_that_is_not_there_fails_the_item_and_says_which_are() -> None:
    c, output = yolo([30, 30, 20, 20, 0.1, 0.1])
    with pytest.raises(ItemError, match="'b' is not there; the engine has c, d"):
        detections(c, {"c": output, "d": output}, (64, 64))


def face_maps(*faces: tuple[int, int], size: tuple[float, float] = (16, 8)) -> dict[str, Array]:
    """CenterFace's maps for 64 x 64 with a face of (height, width) at each cell (row, column)."""
    planes = {"s": 1, "z": 2, "o": 2, "l": 10}
    maps = {name: np.zeros((n, 16, 16), np.float32) for name, n in planes.items()}
    for n, (row, column) in enumerate(faces):
        maps["s"][0, row, column] = 0.875 - n / 16
        maps["z"][:, row, column] = log(size[0] / 4), log(size[1] / 4)
        maps["o"][:, row, column] = 0.25, -0.25
        # The five points run along the box's diagonal, (y, x) each.
        maps["l"][:, row, column] = np.repeat([0, 0.25, 0.5, 0.75, 1], 2)
    return maps


def faces(**input_: Any) -> Codec:
    return detector("centerface", labels=("face",), outputs=FACE_OUTPUTS, **input_)


def test_centerface_gives_box_score_and_five_landmarks() -> None:
    # Centre y = (5 + 0.25 + 0.5) * 4 = 23, x = (6 - 0.25 + 0.5) * 4 = 25.
    assert detections(faces(), face_maps((5, 6)), (64, 64)) == [
        {
            "box": [21.0, 15.0, 29.0, 31.0],
            "score": 0.875,
            "label": "face",
            "landmarks": [[21.0, 15.0], [23.0, 19.0], [25.0, 23.0], [27.0, 27.0], [29.0, 31.0]],
        }
    ]


def test_centerface_keeps_the_best_of_neighbouring_cells_and_all_that_are_apart() -> None:
    found = detections(faces(), face_maps((5, 6), (6, 6), (12, 12)), (64, 64))
    assert [d["score"] for d in found] == [0.875, 0.75]


def test_a_face_over_the_edge_is_cut_and_not_moved() -> None:
    # Centre (25, 3), 16 high: it begins at -5 and ends at 11.
    (found,) = detections(faces(), face_maps((0, 6)), (64, 64))
    assert found["box"] == [21.0, 0.0, 29.0, 11.0]
    assert found["landmarks"][0] == [21.0, 0.0]
    assert found["landmarks"][4] == [29.0, 11.0]


def test_landmarks_come_back_in_the_pictures_pixels_too() -> None:
    (found,) = detections(faces(size=(64, 64), resize="stretch"), face_maps((5, 6)), (32, 128))
    assert found["box"] == [42.0, 7.5, 58.0, 15.5]
    assert found["landmarks"][2] == [50.0, 11.5]


def test_a_face_of_absurd_size_is_clipped_without_a_warning() -> None:
    (found,) = detections(faces(), face_maps((5, 6), size=(1e30, 1e30)), (64, 64))
    assert found["box"] == [0.0, 0.0, 64.0, 64.0]


def test_centerface_maps_of_another_size_fail_the_item() -> None:
    maps = face_maps((5, 6)) | {"o": np.zeros((2, 8, 8), np.float32)}
    with pytest.raises(
        ItemError, match=r"'o' \(offset\): got \(2, 8, 8\), needs \(2, 16, 16\).* at stride 4"
    ):
        detections(faces(), maps, (64, 64))


def test_a_card_that_lacks_an_output_is_refused_at_once() -> None:
    with pytest.raises(CardError, match="lacks size, landmarks; decoder 'centerface' needs score"):
        detector("centerface", labels=("face",), outputs={"score": "s", "offset": "o"})


def test_a_detector_without_labels_is_refused_at_once() -> None:
    with pytest.raises(CardError, match="labels is empty"):
        detector("yolov8", labels=(), outputs={"boxes": "b"})
