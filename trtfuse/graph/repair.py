"""Constants that hold the batch as a number, made to follow it.

A graph traced at batch 1 says so in many places: the target of a Reshape, the end of a Slice, the
zeros that are joined to the data. What is changed here is proven in `trtfuse.graph.check`, never
assumed; so the rules may be bold. The shallow ones touch nodes whose data carries the batch. The
deep ones let what only meets such data grow with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtfuse.core.specs import BATCH, TensorSpec
from trtfuse.graph.model import dims, inferred, node_name
from trtfuse.graph.wiring import set_nodes

Dims = tuple["int | str", ...]

# "To the end", for a Slice. Larger ones do not fit the 32 bits that TensorRT 8.6 computes in.
_END = (1 << 31) - 1

# Where a node keeps a shape: the input that may be a constant leading with the batch.
_SHAPE_INPUT = {"Reshape": 1, "Expand": 1, "Tile": 1, "ConstantOfShape": 0, "Resize": 3, "Slice": 2}


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One thing that was changed: a graph input's axes or a node's target shape."""

    name: str
    before: Dims
    after: Dims


def repair(
    model: onnx.ModelProto, planned: Sequence[TensorSpec], batch: int, *, deep: bool
) -> list[Rewrite]:
    """Let constants that hold `batch` follow the batch of the inputs `planned`, in place."""
    return _Repair(model, planned, batch, deep).run()


def nodes_with_fixed_size(model: onnx.ModelProto) -> list[str]:
    """Resize nodes to a constant size: at another input size they run, and answer wrongly."""
    constants = int_vectors(model.graph)
    return [
        node_name(node)
        for node in model.graph.node
        if node.op_type == "Resize" and len(node.input) > 3 and node.input[3] in constants
    ]


def nodes_with_fixed_batch(
    model: onnx.ModelProto, planned: Sequence[TensorSpec], batch: int
) -> list[str]:
    """Nodes whose constant shape holds `batch`: the suspects when a proof fails."""
    constants = int_vectors(model.graph)
    carried = _carried(model.graph, planned)
    suspects = []
    for node in model.graph.node:
        place = _SHAPE_INPUT.get(node.op_type)
        if place is None or place >= len(node.input):
            continue
        shape = constants.get(node.input[place])
        alone = node.op_type in ("ConstantOfShape", "Expand", "Tile")
        # A target without an open size is of one number of items, also where it hides which.
        whole = node.op_type == "Reshape" and min(shape or (0,)) > 0
        if shape and (batch in shape or whole) and (alone or node.input[0] in carried):
            suspects.append(node_name(node))
    return suspects


def int_vectors(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
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
        if tensor.data_type == onnx.TensorProto.INT64
        and len(tensor.dims) == 1
        and not tensor.external_data
    }


@dataclass
class _Repair:
    model: onnx.ModelProto
    planned: Sequence[TensorSpec]
    batch: int
    deep: bool
    rewrites: list[Rewrite] = field(default_factory=list)
    added: list[onnx.NodeProto] = field(default_factory=list)
    """Nodes to stand before the one that is looked at."""

    def run(self) -> list[Rewrite]:
        graph = self.model.graph
        self.constants = int_vectors(graph)
        self.shapes = _shapes(self.model)
        self.carried = _carried(graph, self.planned)
        self.stored = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if rule := _RULES.get(node.op_type):
                rule(self, node)
            nodes += (*self.added, node)
            self.added.clear()
        set_nodes(self.model, [*self._measured(nodes), *nodes])
        return self.rewrites

    def reshape(self, node: onnx.NodeProto) -> None:
        target = self.constants.get(node.input[1])
        if not target or node.input[0] not in self.carried:
            return
        leads = target[0] == self.batch and self._leads(node.input[0])
        # Windows and heads are folded into the first axis: a multiple of the batch.
        folded = self.deep and target[0] > 0 and target[0] % self.batch == 0 and -1 not in target
        if leads or folded:
            self._set(node, 1, (0 if -1 in target else -1, *target[1:]))
            # Under `allowzero` a 0 is a size. The target had none: -1 excludes it then.
            kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(kept)

    def slice(self, node: onnx.NodeProto) -> None:
        vectors = [self.constants.get(name) for name in node.input[1:4]]
        if len(vectors) < 2 or not vectors[0] or not vectors[1] or not self._leads(node.input[0]):
            return
        starts, ends = vectors[0], vectors[1]
        axes = vectors[2] if len(vectors) > 2 and vectors[2] else tuple(range(len(starts)))
        if 0 not in axes or node.input[0] not in self.carried:
            return
        place = axes.index(0)
        if (starts[place], ends[place]) == (0, self.batch):
            self._set(node, 2, (*ends[:place], _END, *ends[place + 1 :]))

    def expand(self, node: onnx.NodeProto) -> None:
        shape = self.constants.get(node.input[1])
        if not shape or shape[0] != self.batch:
            return
        if node.input[0] in self.carried and self._leads(node.input[0]):
            self._set(node, 1, (1, *shape[1:]))
        elif self.deep and len(shape) > 1:
            self._follow(node, 1, shape)

    def tile(self, node: onnx.NodeProto) -> None:
        repeats = self.constants.get(node.input[1])
        if self.deep and repeats and repeats[0] == self.batch and node.input[0] not in self.carried:
            self._follow(node, 1, repeats)

    def constant_of_shape(self, node: onnx.NodeProto) -> None:
        shape = self.constants.get(node.input[0])
        if self.deep and shape and len(shape) > 1 and shape[0] == self.batch:
            self._follow(node, 0, shape)

    def resize(self, node: onnx.NodeProto) -> None:
        sizes = self.constants.get(node.input[3]) if len(node.input) > 3 else None
        if sizes and sizes[0] == self.batch and node.input[0] in self.carried:
            self._follow(node, 3, sizes)

    def concat(self, node: onnx.NodeProto) -> None:
        """Stored zeros that are joined to the data need a row an item."""
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        if not self.deep or axis == 0 or not self.carried.intersection(node.input):
            return
        for place, name in enumerate(node.input):
            shape = self.stored.get(name, ())
            if len(shape) > 1 and shape[0] == self.batch == 1:
                rows = f"{self._fresh(node)}_rows{place}"
                grow = helper.make_node("Expand", [name, ""], [rows], name=rows)
                self._follow(grow, 1, (self.batch, *(1 for _ in shape[1:])))
                self.added.append(grow)
                node.input[place] = rows

    def _leads(self, name: str) -> bool:
        """Whether this data can have the batch on axis 0. Unknown sizes can."""
        shape = self.shapes.get(name)
        return shape is None or (
            shape != () and (isinstance(shape[0], str) or shape[0] == self.batch)
        )

    def _set(self, node: onnx.NodeProto, place: int, after: tuple[int, ...]) -> None:
        """Give the node another constant; by a name of its own, for others may read the old one."""
        before = self.constants[node.input[place]]
        name = f"{self._fresh(node)}_shape"
        self._store(name, after)
        node.input[place] = name
        self.rewrites.append(Rewrite(node_name(node), before, after))

    def _follow(self, node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> None:
        """Give the node the shape (batch of this run, *shape[1:])."""
        name = f"{self._fresh(node)}_shape"
        self._store(f"{name}_rest", shape[1:])
        parts = [_MEASURED, f"{name}_rest"]
        self.added.append(helper.make_node("Concat", parts, [name], name=name, axis=0))
        node.input[place] = name
        self.rewrites.append(Rewrite(node_name(node), shape, (BATCH, *shape[1:])))

    def _fresh(self, node: onnx.NodeProto) -> str:
        return f"trtfuse_{node.output[0]}"

    def _store(self, name: str, values: Sequence[int]) -> None:
        tensor = numpy_helper.from_array(np.array(values, np.int64), name)
        self.model.graph.initializer.append(tensor)

    def _measured(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """The nodes that measure the batch, if any of `nodes` reads it."""
        if not any(_MEASURED in node.input for node in nodes):
            return []
        source = next(one.name for one in self.planned if one.shape[:1] == (BATCH,))
        self._store(f"{_MEASURED}_axis", (0,))
        shape = f"{_MEASURED}_shape"
        return [
            helper.make_node("Shape", [source], [shape], name=shape),
            helper.make_node("Gather", [shape, f"{_MEASURED}_axis"], [_MEASURED], name=_MEASURED),
        ]


_MEASURED = "trtfuse_batch"

_RULES: Mapping[str, Callable[[_Repair, onnx.NodeProto], None]] = {
    "Reshape": _Repair.reshape,
    "Slice": _Repair.slice,
    "Expand": _Repair.expand,
    "Tile": _Repair.tile,
    "ConstantOfShape": _Repair.constant_of_shape,
    "Resize": _Repair.resize,
    "Concat": _Repair.concat,
}


def _carried(graph: onnx.GraphProto, planned: Sequence[TensorSpec]) -> set[str]:
    """Tensors computed from batched inputs. A shape measured of one is not one."""
    carried = {one.name for one in planned if one.shape[:1] == (BATCH,)}
    for node in graph.node:
        if node.op_type not in ("Shape", "Size") and carried.intersection(node.input):
            carried.update(node.output)
    return carried


def _shapes(model: onnx.ModelProto) -> Mapping[str, Dims]:
    graph = inferred(model)
    return {
        value.name: dims(value)
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
    }
