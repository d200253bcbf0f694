"""ONNX files: read, described and written whole; and the card that a graph carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper

from trtfuse.core import card as cards
from trtfuse.core.card import Card
from trtfuse.core.errors import UsageError
from trtfuse.core.files import replacing, sha256
from trtfuse.core.specs import ModelSpec, TensorSpec

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
    model = _parse(path)
    files = (path, *_external_files(model, path))
    if (size := sum(file.stat().st_size for file in files)) > _PROTOBUF_BYTES:
        raise UsageError(
            f"{path}: {size / 2**30:.1f} GB with its weights, needs to be below 2 GB "
            f"(the limit of one protobuf message). Export in half precision or in parts."
        )
    onnx.load_external_data_for_model(model, str(path.parent))
    return model


def describe(path: Path) -> ModelSpec:
    """Inputs, outputs, card and fingerprint of a file; weights are hashed, not loaded.

    Raises `UsageError` if the file or its external data is missing or not whole, `CardError` if
    the card inside is malformed.
    """
    model = _parse(path)
    ends = signature(model)
    return ModelSpec(
        path=path,
        sha256=sha256(path, *_external_files(model, path)),
        inputs=ends.inputs,
        outputs=ends.outputs,
        card=get_card(model, source=str(path)),
    )


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write one file, atomically."""
    with replacing(path) as part:
        write(model, part)


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write one file in place: for callers that hold a temporary path already."""
    onnx.save(model, str(path), format="protobuf")


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


def node_name(node: onnx.NodeProto) -> str:
    """How messages call a node; many exporters leave them unnamed."""
    return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} of {node.output[0]!r}"


def _parse(path: Path) -> onnx.ModelProto:
    """The graph without its external data."""
    if not path.is_file():
        raise UsageError(f"{path}: {'is not a file' if path.exists() else 'does not exist'}.")
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise UsageError(f"{path}: not an ONNX file, or cut short ({error}).") from error
    # Few bytes are no valid protobuf at all: an empty file is an empty message.
    if not model.ir_version or not model.graph.output:
        raise UsageError(f"{path}: not an ONNX file, or cut short (it holds no graph).")
    return model


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "nothing"
        raise UsageError(f"{value.name!r} is of type {kind}, needs to be a tensor.")
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
    return TensorSpec(name=value.name, dtype=dtype, shape=dims(value))


def _external_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Files beside `path` that hold weights, sorted. Raises `UsageError` if one is not there."""
    names = {
        entry.value
        for tensor in _tensors(model.graph)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    folder = path.parent.resolve()
    for name in sorted(names):
        # A graph is foreign data: it may not make us read, or hash, files elsewhere.
        if not (folder / name).resolve().is_relative_to(folder):
            raise UsageError(f"{path}: external data {name!r} lies outside the model's folder.")
        if not (folder / name).is_file():
            raise UsageError(
                f"{path}: external data file {name!r} is missing beside it. "
                f"Copy the .onnx and its data files together."
            )
    return [path.parent / name for name in sorted(names)]


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in the graph, in nodes and sub-graphs too."""
    yield from graph.initializer
    for attribute in _attributes(graph.node):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _tensors(inner)


def _attributes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.AttributeProto]:
    for node in nodes:
        yield from node.attribute
