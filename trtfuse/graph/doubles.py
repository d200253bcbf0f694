"""float64 made float32: TensorRT computes in no more, and pictures have no more to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from trtfuse.core.specs import Array, Arrays, TensorSpec
from trtfuse.graph.check import Run
from trtfuse.graph.model import node_name
from trtfuse.graph.weights import array, gather
from trtfuse.graph.wire import inner_tensors

_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE

# Attributes that name an element type: of Cast, and of nodes that make values of nothing.
_TYPE_ATTRIBUTES = ("to", "dtype")

_MOST_NAMED = 4


def narrow(model: onnx.ModelProto, folder: Path) -> tuple[str, ...]:
    """Make every float64 of the graph float32, in place; a note that says where there were any."""
    found = [*_ends(model.graph), *_weights(model.graph, folder), *_nodes(model.graph)]
    if not found:
        return ()
    if any(not tensor.external_data for tensor in model.graph.initializer):
        gather(model, folder, folder, source="")
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (f"float64 was made float32: {', '.join(found[:_MOST_NAMED])}{more}",)


def in_float32(run: Run, takes: Sequence[TensorSpec]) -> Run:
    """`run`, which takes and gives float64 where it likes, as a function of float32."""
    wide = {tensor.name for tensor in takes if tensor.dtype == "float64"}

    def narrowed(feeds: Arrays) -> Arrays:
        fed = {n: a.astype(np.float64) if n in wide else a for n, a in feeds.items()}
        return {name: _narrow(answer) for name, answer in run(fed).items()}

    return narrowed


def _narrow(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float64 else values


def _ends(graph: onnx.GraphProto) -> Iterator[str]:
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if value.type.tensor_type.elem_type == _DOUBLE:
                value.type.tensor_type.elem_type = _FLOAT
                yield f"{kind} {value.name!r}"


def _weights(graph: onnx.GraphProto, folder: Path) -> Iterator[str]:
    for tensor in (*graph.initializer, *inner_tensors(graph)):
        if tensor.data_type == _DOUBLE:
            narrowed = array(tensor, folder).astype(np.float32)
            yield f"constant {tensor.name!r}"
            tensor.CopyFrom(numpy_helper.from_array(narrowed, tensor.name))


def _nodes(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == _DOUBLE:
                attribute.i = _FLOAT
                yield node_name(node)
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _ends(inner)
                yield from _nodes(inner)
