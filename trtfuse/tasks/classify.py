"""The output is one score a class."""

from __future__ import annotations

from functools import partial

import numpy as np

from trtfuse.core.card import ClassifyTask
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, Geometry
from trtfuse.core.specs import Array, Arrays
from trtfuse.tasks.reading import Decode, finite


def reader(task: ClassifyTask) -> Decode:
    """Decoding of a classifier."""
    return partial(_decode, task)


def _decode(task: ClassifyTask, outputs: Arrays, _geometry: Geometry) -> Answer:
    scores = finite(outputs, task.output).astype(np.float64).ravel()
    if len(scores) != len(task.labels):
        raise ItemError(
            f"output {task.output!r} has {len(scores)} scores, and the card {len(task.labels)} "
            f"labels. Export the model again with a card of {len(scores)} labels."
        )
    if task.scores == "logits":
        scores = _softmax(scores)
    # Stable: of equal scores the first label comes first, on every machine.
    best = np.argsort(-scores, kind="stable")[: task.top]
    classes = [{"label": task.labels[i], "score": round(float(scores[i]), 6)} for i in best]
    return Answer(fields={"classes": classes})


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())
