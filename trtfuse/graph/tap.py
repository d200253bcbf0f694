"""A graph run as it is, with tensors from its inside brought out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnxruntime as ort

from trtfuse.core.specs import Array, Arrays
from trtfuse.graph.check import NOT_RUN, NotRunnable


class Tap:
    """`model` in ONNX Runtime, FP32 as written, with `names` as its only outputs.

    What no tensor of `names` needs is not computed. Names of graph inputs are allowed.
    """

    def __init__(self, model: onnx.ModelProto, names: Sequence[str], *, threads: int) -> None:
        self._inputs = {value.name for value in model.graph.input}
        self._names = tuple(name for name in names if name not in self._inputs)
        self._passed = tuple(name for name in names if name in self._inputs)
        tapped = onnx.ModelProto()
        tapped.CopyFrom(model)
        del tapped.graph.output[:]
        tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._names)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        # Without the arena what a run brings out is given back with it: memory stays flat.
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        self._session = (
            ort.InferenceSession(
                tapped.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            if self._names
            else None
        )

    def __call__(self, feeds: Arrays) -> dict[str, Array]:
        """The tensors by name. Raises NotRunnable."""
        passed = {name: feeds[name] for name in self._passed}
        if self._session is None:
            return passed
        try:
            answers = self._session.run(list(self._names), dict(feeds))
        except NOT_RUN as error:
            raise NotRunnable(str(error)) from error
        return passed | dict(zip(self._names, answers, strict=True))


def sizes(model: onnx.ModelProto, names: Sequence[str], feeds: Arrays, *, threads: int) -> list[int]:
    """How many elements each tensor has for these inputs: measured, for shapes may be open."""
    counted = onnx.ModelProto()
    counted.CopyFrom(model)
    counted.graph.node.extend(
        onnx.helper.make_node("Size", [name], [f"{name}:size"]) for name in names
    )
    answers = Tap(counted, [f"{name}:size" for name in names], threads=threads)(feeds)
    return [int(answers[f"{name}:size"]) for name in names]
