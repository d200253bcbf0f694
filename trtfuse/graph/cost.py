"""What a graph costs, counted from its shapes: multiply-adds, weights and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from trtfuse.core.specs import TensorSpec
from trtfuse.graph.model import inferred, set_dims
from trtfuse.graph.wire import bytes_of

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one run at stated sizes. What shape inference cannot tell is left out, and counted."""

    parameters: int
    weight_bytes: int
    flops: int
    """Two for each multiply-add of convolutions and matrix products, one a value of other nodes."""
    activation_bytes: int
    """Of all tensors that nodes make, together: what moves, not what is held at a time."""
    largest_bytes: int
    """Of the largest of these."""
    unknown: tuple[str, ...]
    """Operators with an output whose shape is not known."""


def cost(model: onnx.ModelProto, sizes: tuple[TensorSpec, ...]) -> Cost:
    """Cost of a run with the inputs `sizes`, all of whose axes are numbers."""
    known = _shapes(model, sizes)
    stored = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes = known | {name: (shape, 0) for name, shape in stored.items()}
    flops, made, unknown = 0, [], []
    for node in model.graph.node:
        if node.op_type == "Constant":
            continue
        outputs = [known.get(name) for name in node.output if name]
        if None in outputs:
            unknown.append(node.op_type)
        whole = [one for one in outputs if one is not None]
        made += [prod(shape) * width for shape, width in whole]
        if whole:
            flops += _flops(node, {n: s for n, (s, _) in shapes.items()}, whole[0][0])
    return Cost(
        parameters=sum(prod(shape) for shape in stored.values()),
        weight_bytes=sum(map(bytes_of, model.graph.initializer)),
        flops=flops,
        activation_bytes=sum(made),
        largest_bytes=max(made, default=0),
        unknown=tuple(sorted(set(unknown))),
    )


def _shapes(model: onnx.ModelProto, sizes: tuple[TensorSpec, ...]) -> dict[str, tuple[Shape, int]]:
    """Shape and bytes a value of every tensor that inference can tell, by name."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    given = {one.name: one.shape for one in sizes}
    for value in new.graph.input:
        if value.name in given:
            set_dims(value, given[value.name])
    for value in new.graph.output:
        value.type.tensor_type.ClearField("shape")
    del new.graph.value_info[:]
    graph = inferred(new)
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            width = helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
            found[value.name] = (tuple(d.dim_value for d in tensor.shape.dim), width)
    return found


def _flops(node: onnx.NodeProto, shapes: Mapping[str, Shape], output: Shape) -> int:
    count = _COUNTED.get(node.op_type)
    if count is None:
        return 0 if node.op_type in _FREE else prod(output)
    weight = shapes.get(node.input[1]) if len(node.input) > 1 else None
    data = shapes.get(node.input[0])
    return 0 if weight is None or data is None else 2 * count(node, data, weight, output)


def _convolution(node: onnx.NodeProto, data: Shape, weight: Shape, output: Shape) -> int:
    del node, data
    return prod(output) * prod(weight[1:])  # weight [outputs, inputs / group, *kernel]


def _transposed(node: onnx.NodeProto, data: Shape, weight: Shape, output: Shape) -> int:
    del node, output
    return prod(data) * prod(weight[1:])  # weight [inputs, outputs / group, *kernel]


def _product(node: onnx.NodeProto, data: Shape, weight: Shape, output: Shape) -> int:
    turned = next((one.i for one in node.attribute if one.name == "transA"), 0)
    return prod(output) * (data[-2] if turned else data[-1]) if data and weight else 0


def _recurrent(node: onnx.NodeProto, data: Shape, weight: Shape, output: Shape) -> int:
    """Input and recurrent products of every step, for all gates."""
    del node
    steps, batch = data[:2]
    hidden = output[-1]
    return steps * batch * weight[0] * weight[1] * (weight[2] + hidden)


_COUNTED: Mapping[str, Callable[[onnx.NodeProto, Shape, Shape, Shape], int]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MatMul": _product,
    "Gemm": _product,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}

# Nodes that move values, or only rename them.
_FREE = frozenset(
    {
        *("Shape", "Reshape", "Transpose", "Concat", "Split", "Slice", "Gather", "Squeeze"),
        *("Unsqueeze", "Flatten", "Identity", "Expand", "Tile", "Pad", "DepthToSpace", "Cast"),
        *("SpaceToDepth", "Constant", "ConstantOfShape", "Size", "Range"),
    }
)
