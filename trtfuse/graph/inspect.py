"""What an ONNX file is, from the file alone: nothing is run, and its weights are not read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import onnx
from onnx import helper

from trtfuse.core.card import Card
from trtfuse.core.specs import BATCH, TensorSpec
from trtfuse.graph import target
from trtfuse.graph.cost import Cost, cost
from trtfuse.graph.model import get_card, opset, signature
from trtfuse.graph.probe import sized
from trtfuse.graph.weights import external_files
from trtfuse.graph.wire import outline


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """An ONNX file, described."""

    path: Path
    file_bytes: int
    external: tuple[Path, ...]
    """Files of weights beside it."""
    producer: str
    opset: int
    ir: int
    domains: tuple[str, ...]
    """Operator sets other than ONNX's own."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    open_axes: tuple[str, ...]
    """Names of axes that have no size, in the order of inputs."""
    card: Card | None
    precision: str
    """In what its weights are, and whether it holds Q/DQ nodes."""
    nodes: int
    operators: tuple[tuple[str, int], ...]
    """How often each is used, the most frequent first."""
    sizes: tuple[TensorSpec, ...]
    """The inputs that `cost` is of."""
    cost: Cost
    refusals: tuple[tuple[str, tuple[str, ...]], ...]
    """By target: what it will not take, one sentence each."""
    remarks: tuple[str, ...]


def inspect(path: Path, *, batch: int = 1, size: tuple[int, int] | None = None) -> Inspection:
    """Describe the file. Cost is counted for `batch` items, and `size` where the graph is open.

    Raises `UsageError` for a file that is missing or not whole, `CardError` for a malformed card.
    """
    model = outline(path)
    external = tuple(external_files(model, path))
    ends = signature(model)
    card = get_card(model, source=str(path))
    sizes = _sizes(ends.inputs, card, batch, size)
    names = dict.fromkeys(n for one in ends.inputs for n in one.shape if isinstance(n, str))
    kinds = Counter(node.op_type for node in model.graph.node)
    folder = path.parent
    return Inspection(
        path=path,
        file_bytes=path.stat().st_size + sum(one.stat().st_size for one in external),
        external=external,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        opset=opset(model),
        ir=model.ir_version,
        domains=tuple(sorted({one.domain for one in model.opset_import} - {"", "ai.onnx"})),
        inputs=ends.inputs,
        outputs=ends.outputs,
        open_axes=tuple(names),
        card=card,
        precision=_precision(model),
        nodes=len(model.graph.node),
        operators=tuple(kinds.most_common()),
        sizes=sizes,
        cost=cost(model, sizes),
        refusals=tuple(
            (name, target.refusals(model, aim, folder))
            for name, aim in target.TARGETS.items()
            if name != "any"
        ),
        remarks=target.remarks(model, target.TARGETS["any"], folder),
    )


def _sizes(
    inputs: tuple[TensorSpec, ...], card: Card | None, batch: int, size: tuple[int, int] | None
) -> tuple[TensorSpec, ...]:
    """Numbers for all axes: `batch` on open first axes, `size` on the last two others in turn."""
    first = tuple(
        replace(one, shape=(BATCH, *one.shape[1:]))
        if one.shape and isinstance(one.shape[0], str)
        else one
        for one in inputs
    )
    if size:
        first = tuple(_filled(one, size) for one in first)
    known = sized(first, card=card.input if card and not size else None)
    return tuple(
        replace(one, shape=tuple(batch if n == BATCH else n for n in one.shape)) for one in known
    )


def _filled(tensor: TensorSpec, size: tuple[int, int]) -> TensorSpec:
    """The first two open sizes behind the batch are height and width."""
    given = iter(size)
    shape = (n if isinstance(n, int) or n == BATCH else next(given, n) for n in tensor.shape)
    return replace(tensor, shape=tuple(shape))


def _precision(model: onnx.ModelProto) -> str:
    kinds = Counter[str]()
    for tensor in model.graph.initializer:
        kinds[helper.tensor_dtype_to_np_dtype(tensor.data_type).name] += prod(tensor.dims)
    floats = [name for name, _ in kinds.most_common() if "float" in name]
    quantized = sum(node.op_type == "QuantizeLinear" for node in model.graph.node)
    weights = " and ".join(floats[:2]) if floats else "no float weights"
    return f"{weights}, {quantized} Q/DQ pairs" if quantized else weights
