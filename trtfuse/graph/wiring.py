"""Who makes and who uses each tensor of a graph: what every rewrite of precision asks."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import numpy_helper

from trtfuse.core.specs import Array

FLOAT = onnx.TensorProto.FLOAT


def layer(node: onnx.NodeProto) -> str:
    """What options and tables call a node: its name, or its first output where it has none."""
    return node.name or node.output[0]


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy to rewrite, whose float constants are initializers and not nodes."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    kept = []
    for node in new.graph.node:
        array = _constant(node)
        if array is None or array.dtype.name != "float32":
            kept.append(node)
        else:
            new.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    set_nodes(new, kept)
    return new


def set_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    """Make `nodes`, which may be the graph's own, the nodes of the graph, in place."""
    if len(nodes) == len(model.graph.node) and all(
        one is other for one, other in zip(nodes, model.graph.node, strict=True)
    ):
        return
    whole = onnx.GraphProto(node=nodes)  # copies: the old ones vanish with the field
    del model.graph.node[:]
    model.graph.node.extend(whole.node)


class Wiring:
    """An index of the graph's top level. Valid as long as the graph is not rewritten."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.order = {layer(node): n for n, node in enumerate(graph.node)}
        self.producer = {name: node for node in graph.node for name in node.output if name}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in filter(None, (*node.input, *captured(node))):
                self.consumers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in graph.output}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}

    def is_constant(self, tensor: str) -> bool:
        """Whether `tensor` is the same in every run."""
        made = self.producer.get(tensor)
        return tensor in self._initializers or (made is not None and made.op_type == "Constant")

    def constant(self, tensor: str) -> Array | None:
        """The initializer's values; None where `tensor` is none."""
        found = self._initializers.get(tensor)
        return None if found is None else numpy_helper.to_array(found)

    def source(self, tensor: str, through: frozenset[str]) -> onnx.NodeProto | None:
        """The node that made `tensor`, seen through nodes of the kinds in `through`."""
        made = self.producer.get(tensor)
        while made is not None and made.op_type in through:
            made = self.producer.get(made.input[0])
        return made


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Names that the sub-graphs of a node read; those of the outer graph are among them."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from captured(inner)
            yield from (value.name for value in graph.output)


def float_activations(model: onnx.ModelProto) -> tuple[str, ...]:
    """Float32 tensors that change from run to run, in the order in which they are made.

    Tensors whose type ONNX cannot infer are left out; they are made by operators it does not know.
    """
    types = elem_types(model)
    wiring = Wiring(model)
    filled = {tensor.name for tensor in model.graph.initializer}
    inputs = (value.name for value in model.graph.input if value.name not in filled)
    made = (name for node in wiring.nodes for name in node.output if name)
    return tuple(
        name
        for name in (*inputs, *made)
        if types.get(name) == FLOAT and not wiring.is_constant(name)
    )


def elem_types(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of every tensor of the top level that ONNX can infer."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.HasField("tensor_type")
    }
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _constant(node: onnx.NodeProto) -> Array | None:
    """What a Constant node holds, in any of its forms; None for other nodes and sparse tensors."""
    if node.op_type != "Constant":
        return None
    (attribute,) = node.attribute
    if attribute.name == "value":
        return numpy_helper.to_array(attribute.t)
    if attribute.name in ("value_float", "value_floats"):
        import numpy as np

        return np.array(onnx.helper.get_attribute_value(attribute), np.float32)
    return None
