"""Boxes: what a decoder is, what it finds, and which of those that overlap stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trtfuse.core.card import DetectTask
from trtfuse.core.specs import Array, Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """n boxes of one picture, in no order. Coordinates are float64."""

    boxes: Array
    """(n, 4): x1, y1, x2, y2."""
    scores: Array
    """(n,), float64."""
    labels: Array
    """(n,), index into the card's labels."""
    landmarks: Array | None = None
    """(n, points, 2): x, y."""

    def pick(self, rows: Array) -> Found:
        """The boxes at `rows`, an index or a mask."""
        return Found(
            boxes=self.boxes[rows],
            scores=self.scores[rows],
            labels=self.labels[rows],
            landmarks=None if self.landmarks is None else self.landmarks[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """How one kind of detector writes its boxes."""

    needs: tuple[str, ...]
    """The names that the card's `outputs` must map to the graph's."""
    find: Callable[[DetectTask, Arrays, tuple[int, int]], Found]
    """Boxes above the card's score, in pixels of the input of (height, width). Raises ItemError."""


def nms(found: Found, *, iou: float) -> Array:
    """Rows that stay, best score first: greedy, label by label.

    Of two boxes of one label that overlap by `iou` or more the lower score goes; of two equal
    scores the later row.
    """
    rest = np.argsort(-found.scores, kind="stable")
    kept = []
    while rest.size:
        best, rest = rest[0], rest[1:]
        kept.append(best)
        rival = found.labels[rest] == found.labels[best]
        rest = rest[~(rival & (overlap(found.boxes[best], found.boxes[rest]) >= iou))]
    return np.array(kept, np.intp)


def overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box (4,) with each of `others` (n, 4); none may be empty."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    result: Array = shared / (np.prod(box[2:] - box[:2]) + areas - shared)
    return result
