"""The outputs are kept as arrays."""

from __future__ import annotations

from functools import partial

import numpy as np

from trtfuse.core.card import TensorTask
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, ArraysFile, Geometry
from trtfuse.core.specs import Array, Arrays
from trtfuse.tasks.reading import Decode, present


def reader(task: TensorTask) -> Decode:
    """Decoding of a model whose outputs are kept as they are."""
    return partial(_decode, task)


def _decode(task: TensorTask, outputs: Arrays, _geometry: Geometry) -> Answer:
    return Answer(
        file=ArraysFile(arrays={name: _kept(outputs, name) for name in task.outputs or outputs})
    )


def _kept(outputs: Arrays, name: str) -> Array:
    """A copy. NaN is never an answer; an infinity may be one (the logarithm of 0, a mask)."""
    array = present(outputs, name)
    if bad := int(np.count_nonzero(np.isnan(array))):
        raise ItemError(f"output {name!r}: {bad} of {array.size} values are NaN.")
    return np.array(array)
