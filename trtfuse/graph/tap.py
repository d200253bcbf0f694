"""A graph run as it is, with tensors from its inside brought out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnxruntime as ort

from trtfuse.core.specs import Array, Arrays
from trtfuse.graph import wiring
from trtfuse.graph.check import NOT_RUN, NotRunnable


class Tap:
    """`model` in ONNX Runtime with `names`, of its inside or its ends, as its only outputs.

    What no tensor of `names` needs is not computed. Without `optimize` it runs as written: kernels
    that ONNX Runtime puts in for INT8 round otherwise (3 to 6 dB on a transformer, AVX2). Raises
    NotRunnable where it cannot be loaded.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        names: Sequence[str],
        *,
        threads: int,
        optimize: bool = True,
    ) -> None:
        inputs = {value.name for value in model.graph.input}
        self._made = [name for name in names if name not in inputs]
        self._passed = [name for name in names if name in inputs]
        self._session = _session(model, self._made, threads, optimize) if self._made else None

    def __call__(self, feeds: Arrays) -> dict[str, Array]:
        """The tensors by name. Raises NotRunnable."""
        passed = {name: feeds[name] for name in self._passed}
        if self._session is None:
            return passed
        try:
            answers = self._session.run(self._made, dict(feeds))
        except NOT_RUN as error:
            raise NotRunnable(str(error)) from error
        return passed | dict(zip(self._made, answers, strict=True))


def _session(
    model: onnx.ModelProto, names: Sequence[str], threads: int, optimize: bool
) -> ort.InferenceSession:
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    wiring.set_nodes(tapped, wiring.needed(tapped, names))
    declared = {value.name: value for value in model.graph.output}
    del tapped.graph.output[:]
    tapped.graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    # Without the arena what a run brings out is given back with it: memory stays flat.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # errors arrive as exceptions
    try:
        return ort.InferenceSession(
            tapped.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except NOT_RUN as error:
        raise NotRunnable(str(error)) from error
