"""A baked-in batch made dynamic: axis 0 of inputs and outputs gets the name `BATCH`.

Declaring it is half the work. Reshape nodes whose target holds the batch as a number must follow,
or the graph runs at that one size only (or, in YOLOX, at every size, with wrong answers). What
was changed here is proven in `trtfuse.graph.check`, never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference

from trtfuse.core.card import InputCard
from trtfuse.core.specs import BATCH, TensorSpec
from trtfuse.graph.card import AXES
from trtfuse.graph.model import dims, node_name, set_dims, set_ir_version, signature

Dims = tuple["int | str", ...]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One thing that was changed: a graph input's axes or a node's target shape."""

    name: str
    before: Dims
    after: Dims


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A rewritten graph, not yet proven, and what was rewritten."""

    model: onnx.ModelProto
    rewrites: tuple[Rewrite, ...]


def planned_inputs(tensors: Sequence[TensorSpec], card: InputCard | None) -> tuple[TensorSpec, ...]:
    """The inputs that the exported graph is to have.

    Those that carry the batch get `BATCH` on axis 0. The card's size replaces fixed sizes of the
    graph: "dynamic" opens them. Sizes that the graph leaves open stay so.
    """
    batched = {card.name} if card else _batched(tensors)
    planned = []
    for tensor in tensors:
        shape = list(tensor.shape)
        if tensor.name in batched:
            shape[0] = BATCH
        if card and tensor.name == card.name:
            _take_size(shape, card)
        planned.append(replace(tensor, shape=tuple(shape)))
    return tuple(planned)


def baked_batch(tensors: Sequence[TensorSpec], planned: Sequence[TensorSpec]) -> int | None:
    """The batch that the graph's inputs are fixed to; None if they declare it open."""
    for tensor, plan in zip(tensors, planned, strict=True):
        if plan.shape[:1] == (BATCH,) and isinstance(tensor.shape[0], int):
            return tensor.shape[0]
    return None


def make_dynamic(
    model: onnx.ModelProto, planned: Sequence[TensorSpec], *, repair: int | None
) -> Dynamic:
    """A copy of `model` with the inputs `planned`.

    `repair` is the batch that the graph was traced at: Reshape targets that lead with it follow
    the batch instead. None leaves all nodes as they are.
    """
    new = _tidied(model)
    rewrites = _repair_reshapes(new, planned, repair) if repair else []
    before = {tensor.name: tensor.shape for tensor in signature(new).inputs}
    rewrites += [
        Rewrite(f"input {tensor.name!r}", before[tensor.name], tensor.shape)
        for tensor in planned
        if before[tensor.name] != tensor.shape
    ]
    return Dynamic(declare(new, planned), tuple(rewrites))


def declare(model: onnx.ModelProto, planned: Sequence[TensorSpec]) -> onnx.ModelProto:
    """A copy of `model` with the inputs `planned`; output axes follow from them.

    Output sizes are inferred anew: declared ones may be of another batch, or plainly wrong.
    What inference cannot tell gets a name.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    shapes = {tensor.name: tensor.shape for tensor in planned}
    for value in new.graph.input:
        set_dims(value, shapes[value.name])
    for value in new.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = shape_inference.infer_shapes(new, data_prop=True).graph.output
    known = {name for shape in shapes.values() for name in shape if isinstance(name, str)}
    for value, old, found in zip(new.graph.output, model.graph.output, inferred, strict=True):
        has_shape = found.type.tensor_type.HasField("shape")
        set_dims(value, _output_dims(found if has_shape else _rank_of(old), known))
    return new


def nodes_with_fixed_size(model: onnx.ModelProto) -> list[str]:
    """Resize nodes to a constant size: at another input size they run, and answer wrongly."""
    constants = _constants(model.graph)
    return [
        node_name(node)
        for node in model.graph.node
        if node.op_type == "Resize" and len(node.input) > 3 and node.input[3] in constants
    ]


def nodes_with_fixed_batch(
    model: onnx.ModelProto, planned: Sequence[TensorSpec], batch: int
) -> list[str]:
    """Nodes whose constant shape leads with `batch`: the suspects when a proof fails."""
    constants = _constants(model.graph)
    carried = _carried(model.graph, planned)
    suspects = []
    for node in model.graph.node:
        reshapes = node.op_type in ("Reshape", "Expand") and node.input[0] in carried
        if reshapes or node.op_type == "ConstantOfShape":
            shape = constants.get(node.input[-1])
            if shape and shape[0] == batch:
                suspects.append(node_name(node))
    return suspects


def _batched(tensors: Sequence[TensorSpec]) -> set[str]:
    """Inputs with an open first axis; if there is none, those as long as the first there is."""
    if opened := {one.name for one in tensors if one.shape and isinstance(one.shape[0], str)}:
        return opened
    # A vector that is as long as the batch may be thresholds or sizes: one axis is too few to tell.
    candidates = [one for one in tensors if len(one.shape) >= 2]
    return {one.name for one in candidates if one.shape[0] == candidates[0].shape[0]}


def _take_size(shape: list[int | str], card: InputCard) -> None:
    size: tuple[int | str, int | str] = ("height", "width") if card.size == "dynamic" else card.size
    for axis, wanted in zip(AXES[card.layout][1:], size, strict=True):
        if isinstance(shape[axis], int):
            shape[axis] = wanted


def _tidied(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without initializers among its inputs, stale shapes, or fields of a newer IR."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    graph = new.graph
    filled = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in filled]
    del graph.input[:], graph.value_info[:]
    graph.input.extend(kept)
    for node in graph.node:
        # torch writes stack traces here, with the paths of the machine it ran on.
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    set_ir_version(new)
    return new


def _repair_reshapes(
    model: onnx.ModelProto, planned: Sequence[TensorSpec], batch: int
) -> list[Rewrite]:
    """Let Reshape targets [batch, …] of data that carries the batch follow it, in place."""
    graph = model.graph
    constants = _constants(graph)
    shapes = _shapes(model)
    carried = _carried(graph, planned)
    rewrites = []
    for index, node in enumerate(graph.node):
        if node.op_type != "Reshape" or node.input[0] not in carried:
            continue
        target = constants.get(node.input[1])
        if not target or target[0] != batch or not _leads_with(shapes.get(node.input[0]), batch):
            continue
        after = _following(target)
        # A name of its own: other nodes may read the same constant and mean it.
        name = f"trtfuse_shape_{index}_{node.output[0]}"
        graph.initializer.append(numpy_helper.from_array(np.array(after, np.int64), name))
        node.input[1] = name
        _let_zero_copy(node)
        rewrites.append(Rewrite(node_name(node), target, after))
    return rewrites


def _following(target: Sequence[int]) -> tuple[int, ...]:
    """The target with its first size taken from the data: -1 where that is free, else 0 (copy)."""
    return (0 if -1 in target else -1, *target[1:])


def _let_zero_copy(node: onnx.NodeProto) -> None:
    """Drop `allowzero`, under which a 0 is a size. The target had no 0: -1 excludes it then."""
    kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
    del node.attribute[:]
    node.attribute.extend(kept)


def _leads_with(shape: Dims | None, batch: int) -> bool:
    """Whether data of this shape can have the batch on axis 0. Unknown sizes can."""
    return shape is None or (shape != () and (isinstance(shape[0], str) or shape[0] == batch))


def _carried(graph: onnx.GraphProto, planned: Sequence[TensorSpec]) -> set[str]:
    """Tensors computed from batched inputs. A shape measured of one is not one."""
    carried = {one.name for one in planned if one.shape[:1] == (BATCH,)}
    for node in graph.node:
        if node.op_type not in ("Shape", "Size") and carried.intersection(node.input):
            carried.update(node.output)
    return carried


def _shapes(model: onnx.ModelProto) -> Mapping[str, Dims]:
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        value.name: dims(value)
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
    }


def _constants(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Integer vectors that the graph stores, by name: what can be a target shape."""
    tensors = {tensor.name: tensor for tensor in graph.initializer} | {
        node.output[0]: attribute.t
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    return {
        name: tuple(numpy_helper.to_array(tensor).tolist())
        for name, tensor in tensors.items()
        if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1
    }


def _output_dims(value: onnx.ValueInfoProto, known: set[str]) -> Dims:
    """Numbers and the inputs' names as inferred; a name of its own for what is only called so."""
    shape = [
        size if isinstance(size, int) or size in known else f"{value.name}_{axis}"
        for axis, size in enumerate(dims(value))
    ]
    if shape and isinstance(shape[0], str):
        shape[0] = BATCH
    return tuple(shape)


def _rank_of(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The value with its rank alone, where inference found nothing."""
    new = onnx.ValueInfoProto()
    new.CopyFrom(value)
    for dim in new.type.tensor_type.shape.dim:
        dim.Clear()
    return new
