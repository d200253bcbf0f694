"""A foreign graph made plain before anything is read from it: sorted, and without leftovers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import onnx

from trtfuse.core.errors import ExportFailed, UsageError
from trtfuse.graph.model import node_name, opset, set_ir_version
from trtfuse.graph.weights import array
from trtfuse.graph.wiring import captured, set_nodes


def tidied(model: onnx.ModelProto, *, source: str) -> onnx.ModelProto:
    """A copy whose nodes are in order, without Dropout, stale shapes, or traces of its machine.

    Raises `UsageError` for a graph that cannot be run: a cycle; `ExportFailed` for one in training
    mode, which answers at random or from its batch.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    graph = new.graph
    filled = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in filled]
    del graph.input[:], graph.value_info[:]
    graph.input.extend(kept)
    _require_evaluation(new, source)
    _drop_dropout(graph)
    set_nodes(new, _sorted(graph, source))
    if opset(new) < 18:
        _drop_later_attribute(graph)
    for node in graph.node:
        # torch writes stack traces here, with the paths of the machine it ran on.
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    set_ir_version(new)
    return new


def require_distinct(model: onnx.ModelProto, *, source: str) -> None:
    """Raise `UsageError` where a name stands for two things, or an output for nothing.

    ONNX Runtime takes an output that is listed twice, and answers it once.
    """
    graph = model.graph
    filled = {tensor.name for tensor in graph.initializer}
    filled |= {tensor.values.name for tensor in graph.sparse_initializer}
    inputs = [value.name for value in graph.input]
    made = [name for node in graph.node for name in node.output if name]
    outputs = [value.name for value in graph.output]
    for kind, names in (
        ("inputs", inputs),
        ("inputs and results of nodes", [*{*inputs, *filled}, *made]),
        ("outputs", outputs),
    ):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise UsageError(
                f"{source}: {', '.join(twice[:5])} stands twice among its {kind}; each needs a "
                f"name of its own. Rename one, or leave it out."
            )
    if missing := [name for name in outputs if name not in {*inputs, *filled, *made}]:
        raise UsageError(
            f"{source}: no node makes its output {', '.join(missing[:5])}. Leave it out, or export "
            f"the model again."
        )


def open_empty_axes(model: onnx.ModelProto) -> tuple[str, ...]:
    """Leave axes of inputs and outputs open that are declared as 0 or less, in place; a note each.

    Older exporters wrote so what they did not know. Taken for a size, nothing could be fed.
    """
    notes = []
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.HasField("dim_value") and dim.dim_value <= 0:
                    notes.append(
                        f"{kind} {value.name!r} declares its axis {axis} as {dim.dim_value}, which "
                        f"was taken for an open size"
                    )
                    dim.ClearField("dim_value")
    return tuple(notes)


def _require_evaluation(model: onnx.ModelProto, source: str) -> None:
    if opset(model) < 12:
        return
    constants = _flags(model.graph)
    training = [
        node_name(node)
        for node in model.graph.node
        if (node.op_type == "BatchNormalization" and _attribute(node, "training_mode"))
        or (node.op_type == "Dropout" and _is_live(node, constants))
    ]
    if training:
        raise ExportFailed(
            f"{source}: is in training mode, so its answers are random or depend on the batch: "
            f"{', '.join(training)}. Export it in evaluation mode: model.eval() in PyTorch."
        )


def _flags(graph: onnx.GraphProto) -> dict[str, bool]:
    """Single boolean constants by name."""
    stored = {one.name: one for one in graph.initializer} | {
        node.output[0]: one.t
        for node in graph.node
        if node.op_type == "Constant"
        for one in node.attribute
        if one.name == "value"
    }
    return {
        name: bool(array(tensor, None).any())
        for name, tensor in stored.items()
        if tensor.data_type == onnx.TensorProto.BOOL and not tensor.external_data
    }


def _is_live(node: onnx.NodeProto, flags: dict[str, bool]) -> bool:
    return len(node.input) > 2 and node.input[2] != "" and flags.get(node.input[2], True)


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((one.i for one in node.attribute if one.name == name), 0)


def _drop_dropout(graph: onnx.GraphProto) -> None:
    """Make Dropout, which passes its input on in evaluation, an Identity, or nothing."""
    ends = {value.name for value in graph.output}
    read = {name for node in graph.node for name in (*node.input, *captured(node))}
    inner = {name for node in graph.node for name in captured(node)}
    passed: dict[str, str] = {}
    for index, node in reversed(list(enumerate(graph.node))):
        if node.op_type != "Dropout" or set(node.output[1:]) & (ends | read) - {""}:
            continue
        if node.output[0] in ends | inner:
            identity = onnx.helper.make_node("Identity", node.input[:1], node.output[:1])
            node.CopyFrom(identity)
        else:
            # The last of a chain was met first: what it passed on now passes on from further up.
            source = node.input[0]
            passed = {new: source if old == node.output[0] else old for new, old in passed.items()}
            passed[node.output[0]] = source
            del graph.node[index]
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = passed.get(name, name)


def _drop_later_attribute(graph: onnx.GraphProto) -> None:
    """Take from reductions what came with opset 18, where it says what went without saying.

    torch.onnx leaves it when it goes down to 17 (seen with torch 2.13), and no runtime loads it.
    """
    for node in graph.node:
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum":
            for index, one in reversed(list(enumerate(node.attribute))):
                if one.name == "noop_with_empty_axes" and not one.i:
                    del node.attribute[index]


def _sorted(graph: onnx.GraphProto, source: str) -> list[onnx.NodeProto]:
    """The nodes, each after those it reads from, otherwise in the order they were in."""
    nodes = list(graph.node)
    maker = {name: n for n, node in enumerate(nodes) for name in node.output if name}
    needs = [{maker[name] for name in _read(node) if name in maker} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for n, needed in enumerate(needs):
        for one in needed:
            readers[one].append(n)
    ready = [n for n, needed in enumerate(needs) if not needed]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(n := heappop(ready))
        for reader in readers[n]:
            needs[reader].discard(n)
            if not needs[reader]:
                heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = sorted(set(range(len(nodes))) - set(order))
        raise UsageError(
            f"{source}: {len(stuck)} nodes wait for each other in a cycle, or behind one: "
            f"{', '.join(node_name(nodes[n]) for n in stuck[:5])}. It cannot be run."
        )
    return [nodes[n] for n in order]


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    yield from captured(node)
