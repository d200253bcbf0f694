"""Who makes and who uses each tensor of a graph: what every rewrite of precision asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtfuse.core.specs import Array
from trtfuse.graph.model import set_dims

# For rooms that hand graphs on, and have nothing else to do with ONNX.
Graph = onnx.ModelProto

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
    whole = onnx.GraphProto(node=nodes)  # copies: the old ones vanish with the field
    del model.graph.node[:]
    model.graph.node.extend(whole.node)


def rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    """Have nodes, and those of their sub-graphs, read `new` where they read `old`."""
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                rename(inner.node, old, new)


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


def needed(model: onnx.ModelProto, names: Collection[str]) -> list[onnx.NodeProto]:
    """The nodes that `names` depend on, in their order. A runtime would run the others too."""
    wanted = set(names)
    kept = []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input, captured(node))
    return kept[::-1]


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
    return {
        value.name: value.type.tensor_type.elem_type
        for value in _inferred(model, {})
        if value.type.HasField("tensor_type")
    }


def sizes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How many elements each tensor has when the inputs have these shapes, where ONNX can tell."""
    counted = {}
    for value in _inferred(model, shapes):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            counted[value.name] = prod(d.dim_value for d in dims)
    return counted


def _inferred(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> Iterator[onnx.ValueInfoProto]:
    """All tensors of the top level with the types and shapes that ONNX infers for them.

    Weights take part by their shapes alone: inference copies what it is given, twice.
    """
    graph = model.graph
    # Scales and sizes, which settle shapes, are smaller.
    weights = [tensor for tensor in graph.initializer if prod(tensor.dims) > 256]
    large = {tensor.name for tensor in weights}
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.input.extend(graph.input)
    light.graph.output.extend(graph.output)
    light.graph.initializer.extend(one for one in graph.initializer if one.name not in large)
    for value in light.graph.input:
        if value.name in shapes:
            set_dims(value, shapes[value.name])
    for value in light.graph.output if shapes else ():
        value.type.tensor_type.ClearField("shape")
    listed = {value.name for value in graph.input}
    light.graph.input.extend(
        helper.make_tensor_value_info(one.name, one.data_type, one.dims)
        for one in weights
        if one.name not in listed
    )
    found = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    yield from (*found.input, *found.value_info, *found.output)
    yield from (
        helper.make_tensor_value_info(one.name, one.data_type, one.dims)
        for one in light.graph.initializer
    )


def _constant(node: onnx.NodeProto) -> Array | None:
    """What a Constant node holds, in any of its forms; None for other nodes and sparse tensors."""
    if node.op_type != "Constant":
        return None
    (attribute,) = node.attribute
    if attribute.name == "value":
        return numpy_helper.to_array(attribute.t)
    if attribute.name in ("value_float", "value_floats"):
        return np.array(helper.get_attribute_value(attribute), np.float32)
    return None
