"""What the runtimes that may read the graph can read: operator sets, types, operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.specs import Array
from trtfuse.graph.model import node_name
from trtfuse.graph.weights import array
from trtfuse.graph.wiring import captured

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime, or several."""

    name: str
    opset: int
    """What a graph is written in for it."""
    newest: int
    """The newest operator set that it reads."""
    computes_int64: bool = True
    """Whether whole numbers keep their 64 bits; else they are cut to 32."""
    is_tensorrt: bool = True


# TensorRT 8.6: its operators.md says opset 17, and IR 8 goes with it. 10: opset 20 from 10.0 on,
# and real INT64. 11: opset 25. RTX 1.7 parsed every opset up to 27 (a Relu: no hard gate); what it
# computes is that of 10. ONNX Runtime 1.20, the oldest that we take: opset 21.
TARGETS = {
    one.name: one
    for one in (
        Target("any", 17, 17, computes_int64=False),
        Target("tensorrt8.6", 17, 17, computes_int64=False),
        Target("tensorrt10", 19, 20),
        Target("tensorrt11", 21, 25),
        Target("rtx", 19, 23),
        Target("ort", 21, 21, is_tensorrt=False),
    )
}

# ONNX Runtime reads no older one by its own word, and the proof is done there.
_OLDEST = 7

# Marked "N" in the parser's own operators.md: strings, sequences, and integer arithmetic, which
# TensorRT has as Q/DQ only.
_NO_IMPORTER = frozenset(
    {
        *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
        *("SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence"),
        *("StringNormalizer", "TfIdfVectorizer", "Multinomial", "Unique", "Compress", "Det"),
        *("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
        *("BitShift", "MaxRoiPool", "MaxUnpool"),
    }
)

_CONTROL_FLOW = ("If", "Loop", "Scan")


def named(name: str) -> Target:
    """The target of `--target`. Raises `UnknownName`."""
    if name not in TARGETS:
        raise UnknownName.among("--target", name, TARGETS)
    return TARGETS[name]


def version(name: str, asked: int | None) -> int:
    """The operator set to write for the target `name`: the one asked for with --opset, or its own.

    Raises `UsageError` for one that it does not read.
    """
    aim = named(name)
    newest = aim.newest if name != "any" else max(one.newest for one in TARGETS.values())
    if asked is not None and not _OLDEST <= asked <= newest:
        raise UsageError(f"--opset {asked}: --target {name} needs one from {_OLDEST} to {newest}.")
    return asked or aim.opset


def refusals(model: onnx.ModelProto, target: Target, folder: Path | None) -> tuple[str, ...]:
    """What of the graph the target will not take, or take for something else; one sentence each."""
    found = [*_operator_sets(model, target)]
    if target.is_tensorrt:
        found += [
            *_operators(model.graph),
            *_uint8(model.graph),
            *_zero_points(model, folder),
        ]
    if not target.computes_int64:
        found += large_integers(model, folder).refusals()
    return tuple(found)


def remarks(model: onnx.ModelProto, target: Target, folder: Path | None) -> tuple[str, ...]:
    """What of the graph is worth knowing for the target, and stops nothing."""
    found = []
    if flow := [node_name(n) for n in model.graph.node if n.op_type in _CONTROL_FLOW]:
        found.append(f"control flow, which TensorRT runs with limits: {_some(flow)}")
    integers = large_integers(model, folder)
    if not target.computes_int64 and integers.harmless:
        found.append(
            f"{integers.count} INT64 constants, {len(integers.harmless)} of them beyond 32 bits as "
            f"ends of a Slice, where cutting them changes nothing"
        )
    return tuple(found) if target.is_tensorrt else ()


@dataclass(frozen=True, slots=True)
class LargeIntegers:
    """INT64 constants of a graph, and which do not fit 32 bits."""

    count: int
    harmless: tuple[str, ...]
    """Ends and starts of Slice: beyond any axis before and after."""
    harmful: tuple[str, ...]

    def refusals(self) -> list[str]:
        """One sentence, if any is harmful."""
        if not self.harmful:
            return []
        return [
            f"{len(self.harmful)} of {self.count} INT64 constants do not fit 32 bits, and would be "
            f"cut to other values: {_some(list(self.harmful))}"
        ]


def large_integers(model: onnx.ModelProto, folder: Path | None) -> LargeIntegers:
    """Which INT64 constants a runtime of 32 bits would change."""
    stored = {
        tensor.name: tensor
        for tensor in _named_tensors(model.graph)
        if tensor.data_type == onnx.TensorProto.INT64
    }
    beyond = {name for name, tensor in stored.items() if _exceeds(array(tensor, folder))}
    uses: dict[str, set[bool]] = {name: set() for name in beyond}
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in beyond:
                uses[name].add(node.op_type == "Slice" and place in (1, 2))
        for name in captured(node):
            if name in beyond:
                uses[name].add(False)
    harmless = tuple(sorted(name for name, use in uses.items() if use == {True}))
    harmful = tuple(sorted(name for name, use in uses.items() if False in use))
    return LargeIntegers(len(stored), harmless, harmful)


def _exceeds(values: Array) -> bool:
    return bool(((values > _INT32.max) | (values < _INT32.min)).any())


def _named_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Initializers, and what Constant nodes hold, by the name of their output."""
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            yield tensor


def _operator_sets(model: onnx.ModelProto, target: Target) -> Iterator[str]:
    for one in model.opset_import:
        if one.domain in ("", "ai.onnx") and one.version > target.newest:
            yield f"opset {one.version} is newer than the {target.newest} that it reads"
    foreign = {node.domain for node in model.graph.node} - {"", "ai.onnx"}
    local = {function.domain for function in model.functions}
    for domain in sorted(foreign - local):
        used = sorted({node.op_type for node in model.graph.node if node.domain == domain})
        yield f"operators of the domain {domain}, which are not ONNX's: {_some(used)}"


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    if found := [node_name(node) for node in graph.node if node.op_type in _NO_IMPORTER]:
        yield f"operators that its parser does not know: {_some(found)}"


def _uint8(graph: onnx.GraphProto) -> Iterator[str]:
    """TensorRT takes bytes at the edge of a network alone: into and out of a Cast."""
    ends = {
        value.name: kind
        for kind, values in (("input", graph.input), ("output", graph.output))
        for value in values
        if value.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    }
    for node in graph.node:
        for name in {*node.input, *node.output} & set(ends):
            if node.op_type not in ("Cast", "QuantizeLinear", "DequantizeLinear"):
                yield f"{ends[name]} {name!r} is uint8 and meets {node_name(node)}, not a Cast"


def _zero_points(model: onnx.ModelProto, folder: Path | None) -> Iterator[str]:
    stored = {tensor.name: tensor for tensor in _named_tensors(model.graph)}
    shifted = [
        node_name(node)
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
        and len(node.input) > 2
        and node.input[2] in stored
        and array(stored[node.input[2]], folder).any()
    ]
    if shifted:
        yield f"zero points other than 0: {_some(shifted)}"


def _some(names: list[str]) -> str:
    """The first of `names`, and how many more."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"
