"""What every task's decoding starts from: one item's outputs, present and finite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, Geometry
from trtfuse.core.specs import Array, Arrays

Decode = Callable[[Arrays, Geometry], Answer]
"""One item's outputs, without the batch axis and only lent, to what they say of its picture."""


def present(outputs: Arrays, name: str) -> Array:
    """The output `name`, as lent. Raises ItemError where the engine has none such."""
    if name not in outputs:
        raise ItemError(f"output {name!r} is not there; the engine has {', '.join(outputs)}.")
    return outputs[name]


def finite(outputs: Arrays, name: str) -> Array:
    """The output `name`, as lent. Raises ItemError where it is missing, or holds NaN or Inf."""
    array = present(outputs, name)
    if bad := array.size - int(np.count_nonzero(np.isfinite(array))):
        raise ItemError(f"output {name!r}: {bad} of {array.size} values are NaN or infinite.")
    return array
