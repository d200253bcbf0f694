"""ONNX Runtime as people use it without trtfuse: what its speed is measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnxruntime

from trtfuse.core.errors import DeviceError
from trtfuse.core.specs import Array, Arrays
from trtfuse.cpu import session


@contextmanager
def plain(model: Path) -> Iterator[Callable[[Arrays], dict[str, Array]]]:
    """`InferenceSession(model).run`, with every default of ONNX Runtime, on the CPU.

    Takes inputs by name, gives outputs by name, which it owns. Raises DeviceError with ONNX
    Runtime's message.
    """
    with session.translating(DeviceError, f"{model}: ONNX Runtime failed"):
        loaded = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        names = [output.name for output in loaded.get_outputs()]
        yield lambda inputs: dict(zip(names, loaded.run(None, inputs), strict=True))
