"""The outputs are boxes: a decoder finds them, the rest is the same for all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from trtfuse.core.card import DetectTask
from trtfuse.core.errors import CardError
from trtfuse.core.flow import Answer, Geometry, Json
from trtfuse.core.specs import Arrays
from trtfuse.tasks import centerface, yolov8
from trtfuse.tasks.boxes import Decoder, Found, nms
from trtfuse.tasks.fitting import to_picture
from trtfuse.tasks.reading import Decode

_DECODERS: Mapping[str, Decoder] = {"centerface": centerface.DECODER, "yolov8": yolov8.DECODER}


def reader(task: DetectTask) -> Decode:
    """Decoding of a detector. Raises CardError where the card does not name what it needs."""
    decoder = _DECODERS[task.decoder]
    if missing := [name for name in decoder.needs if name not in task.outputs]:
        raise CardError(
            f"card: task.outputs lacks {', '.join(missing)}; decoder {task.decoder!r} needs "
            f"{', '.join(decoder.needs)}, each with the name of the graph's output."
        )
    if not task.labels:
        raise CardError("card: task.labels is empty; a detector needs at least one label.")
    return partial(_decode, task, decoder)


def _decode(task: DetectTask, decoder: Decoder, outputs: Arrays, geometry: Geometry) -> Answer:
    found = _in_picture(decoder.find(task, outputs, geometry.input), geometry)
    found = found.pick(nms(found, iou=task.iou))
    return Answer(fields={"detections": _entries(task, found)})


def _in_picture(found: Found, geometry: Geometry) -> Found:
    """`found` in pixels of the picture, clipped to it; boxes of which nothing is left are gone."""
    boxes = to_picture(found.boxes.reshape(-1, 2, 2), geometry).reshape(-1, 4)
    landmarks = found.landmarks
    if landmarks is not None:
        landmarks = to_picture(landmarks, geometry)
    moved = Found(boxes=boxes, scores=found.scores, labels=found.labels, landmarks=landmarks)
    return moved.pick((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))


def _entries(task: DetectTask, found: Found) -> list[dict[str, Json]]:
    """To a hundredth of a pixel: finer than any detector, and lines that a person can read."""
    columns: dict[str, list[Json]] = {
        "box": np.round(found.boxes, 2).tolist(),
        "score": np.round(found.scores, 6).tolist(),
        "label": [task.labels[label] for label in found.labels],
    }
    if found.landmarks is not None:
        columns["landmarks"] = np.round(found.landmarks, 2).tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
