"""ONNX files: read, described and written whole; and the card that a graph carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper, shape_inference

from trtfuse.core import card as cards
from trtfuse.core.card import Card
from trtfuse.core.errors import UsageError
from trtfuse.core.files import replacing, sha256
from trtfuse.core.specs import ModelSpec, TensorSpec
from trtfuse.graph import weights
from trtfuse.graph.weights import extent, external_files, inline, is_external
from trtfuse.graph.wire import bytes_of, outline, tensors

# protobuf's own limit on one message. Larger graphs would need their weights kept out of memory.
_PROTOBUF_BYTES = (1 << 31) - 1

# The newest IR that TensorRT 8.6 reads. Older graphs may claim it, for it only adds.
_IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a graph, in its order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class NotApplied(Exception):
    """An optional rewrite could not be made; the text says why. The graph stays as it was."""


def load(path: Path) -> onnx.ModelProto:
    """The graph with all its weights. Raises `UsageError` if it is missing or not whole."""
    model = outline(path)
    held = [one for one in tensors(model.graph) if is_external(one)]
    if (size := sum(map(bytes_of, held))) > _PROTOBUF_BYTES:
        raise UsageError(
            f"{path}: {size / 2**30:.1f} GB with its weights, needs to be below 2 GB "
            f"(the limit of one protobuf message). Export in half precision or in parts."
        )
    for tensor in held:
        inline(tensor, extent(tensor, path.parent, source=str(path)))
    return model


def describe(path: Path) -> ModelSpec:
    """Inputs, outputs, card and fingerprint of a file; weights are hashed, not loaded.

    Raises `UsageError` if the file or its external data is missing or not whole, `CardError` if
    the card inside is malformed.
    """
    model = outline(path)
    ends = signature(model)
    return ModelSpec(
        path=path,
        sha256=sha256(path, *external_files(model, path)),
        inputs=ends.inputs,
        outputs=ends.outputs,
        card=get_card(model, source=str(path)),
    )


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a graph with all its weights in it to one file, atomically."""
    with replacing(path) as part:
        write(model, part)


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write one file in place: for callers that hold a temporary path already."""
    weights.write(model, None, path)


def signature(model: onnx.ModelProto) -> Signature:
    """What a caller feeds and gets. An initializer that is listed as an input is none."""
    filled = {tensor.name for tensor in model.graph.initializer}
    return Signature(
        inputs=tuple(_spec(value) for value in model.graph.input if value.name not in filled),
        outputs=tuple(_spec(value) for value in model.graph.output),
    )


def get_card(model: onnx.ModelProto, *, source: str) -> Card | None:
    """The card in the graph's metadata, if any. Raises `CardError` if it is malformed."""
    for prop in model.metadata_props:
        if prop.key == cards.METADATA_KEY:
            return cards.loads(prop.value, source=f"{source}, metadata {prop.key}")
    return None


def put_card(model: onnx.ModelProto, card: Card) -> None:
    """Set the card in the graph's metadata, in place; other metadata stays."""
    kept = {prop.key: prop.value for prop in model.metadata_props}
    helper.set_model_props(model, kept | {cards.METADATA_KEY: cards.dumps(card)})


def opset(model: onnx.ModelProto) -> int:
    """Version of the default operator set."""
    return next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)


def set_ir_version(model: onnx.ModelProto) -> None:
    """Declare the oldest file format that TensorRT reads and the operator sets allow, in place."""
    needed = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    model.ir_version = max(_IR_VERSION, needed)


def dims(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    """Sizes and names of the axes. An axis without either, or named "?", gets a name of its own.

    Two unknown sizes that share the name "?" would be one and the same size to TensorRT.
    """
    return tuple(
        dim.dim_value
        if dim.dim_value > 0
        else (f"{value.name}_{axis}" if dim.dim_param in ("", "?") else dim.dim_param)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )


def set_dims(value: onnx.ValueInfoProto, shape: Sequence[int | str]) -> None:
    """Declare the axes of a graph input or output, in place."""
    declared = value.type.tensor_type.shape
    declared.ClearField("dim")
    for size in shape:
        declared.dim.add(**{"dim_param" if isinstance(size, str) else "dim_value": size})


def inferred(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph with the shapes that ONNX can infer; as it is where inference gives up."""
    try:
        return shape_inference.infer_shapes(model, data_prop=True).graph
    # Its C++ raises more than its own class for what a foreign graph may hold.
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return model.graph


def node_name(node: onnx.NodeProto) -> str:
    """How messages call a node; many exporters leave them unnamed."""
    return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} of {node.output[0]!r}"


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        kind = (value.type.WhichOneof("value") or "nothing").removesuffix("_type")
        raise UsageError(
            f"{value.name!r} is of type {kind}, needs to be a tensor. Export the model without it; "
            f"skl2onnx leaves out maps with options={{'zipmap': False}}."
        )
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
    return TensorSpec(name=value.name, dtype=dtype, shape=dims(value))
