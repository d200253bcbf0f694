"""The output is one vector a picture."""

from __future__ import annotations

from functools import partial

import numpy as np

from trtfuse.core.card import EmbedTask
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, ArrayFile, Geometry
from trtfuse.core.specs import Arrays
from trtfuse.tasks.reading import Decode, finite


def reader(task: EmbedTask) -> Decode:
    """Decoding of an embedding model: a float32 vector (n,)."""
    return partial(_decode, task)


def _decode(task: EmbedTask, outputs: Arrays, _geometry: Geometry) -> Answer:
    vector = finite(outputs, task.output).astype(np.float64).ravel()
    if task.normalize:
        length = np.linalg.norm(vector)
        if length == 0:
            raise ItemError(f"output {task.output!r}: all zeros, which no length can be given to.")
        vector /= length
    return Answer(file=ArrayFile(array=vector.astype(np.float32)))
