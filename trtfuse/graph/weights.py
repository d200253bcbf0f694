"""Where the large tensors of a graph lie: in a file beside it, never in its protobuf.

    outline(path) ──► gathered into a scratch folder ──► rewrites, proofs ──► written

A graph in memory is a skeleton of some hundred kilobytes: copying it is cheap, and ONNX Runtime
maps the weights instead of holding them. Bytes are copied a piece at a time, so that models beyond
protobuf's 2 GiB pass like any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import numpy_helper

from trtfuse.core.errors import UsageError
from trtfuse.core.specs import Array
from trtfuse.graph.wire import LARGE, bytes_of, external, inner_tensors, tensors, varint

# As ONNX Runtime and TensorRT like their constants; more than a cache line gains nothing on a CPU.
_ALIGNMENT = 64

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a file that are one tensor's."""

    path: Path
    offset: int
    length: int

    def chunks(self) -> Iterator[bytes]:
        """The bytes, a piece at a time."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            left = self.length
            while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the bytes lie in a file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def extent(tensor: onnx.TensorProto, folder: Path, *, source: str) -> Extent:
    """Where in `folder` an external tensor's bytes are. `source` names the model in errors.

    Raises `UsageError` where that is outside the folder, not there, or too short.
    """
    entries = {one.key: one.value for one in tensor.external_data}
    name, offset = entries.get("location", ""), entries.get("offset", "0")
    path, root = folder / name, folder.resolve()
    # A graph is foreign data: it may not make us read, or hash, files elsewhere.
    if not path.resolve().is_relative_to(root):
        raise UsageError(f"{source}: external data {name!r} lies outside the model's folder.")
    if not path.is_file():
        raise UsageError(
            f"{source}: external data file {name!r} is missing beside it. "
            f"Copy the .onnx and its data files together."
        )
    length = bytes_of(tensor)
    if not offset.isdecimal() or int(offset) + length > path.stat().st_size:
        raise UsageError(
            f"{source}: external data {name!r} ends before tensor {tensor.name!r}, "
            f"{length} bytes from {offset}. Copy the file again."
        )
    return Extent(path, int(offset), length)


def external_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Files beside `path` that hold weights of the graph, sorted. Raises as `extent` does."""
    outside = (one for one in tensors(model.graph) if is_external(one))
    found = {extent(one, path.parent, source=str(path)).path for one in outside}
    return sorted(found - {path})


def gather(model: onnx.ModelProto, folder: Path, scratch: Path, *, source: str) -> None:
    """Bring all large initializers of `model` into one new file in `scratch`, in place.

    `folder` is where its external data is now. What is small, or not an initializer, comes into
    the graph itself. Raises as `extent` does.
    """
    _hoist(model.graph)
    name = f"weights-{secrets.token_hex(6)}.data"
    with (scratch / name).open("wb") as file:
        for tensor in model.graph.initializer:
            if _is_large(tensor):
                _move(tensor, file, folder, source)
                _point(tensor, file, name)
            elif is_external(tensor):
                inline(tensor, extent(tensor, folder, source=source))
    for tensor in inner_tensors(model.graph):
        if is_external(tensor):
            inline(tensor, extent(tensor, folder, source=source))


def append(tensor: onnx.TensorProto, file: BinaryIO, name: str) -> None:
    """Move the bytes of a large tensor to the end of `file`, called `name`; a small one stays."""
    if _is_large(tensor):
        _move(tensor, file, Path(), "")
        _point(tensor, file, name)


def _point(tensor: onnx.TensorProto, file: BinaryIO, name: str) -> None:
    """Say that the tensor's bytes are the last of `file`."""
    external(tensor, name, file.tell() - bytes_of(tensor), bytes_of(tensor))


def _hoist(graph: onnx.GraphProto) -> None:
    """Make large Constant nodes initializers, which may lie in a file."""
    ends = {value.name for value in graph.output}
    for index, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "Constant" and node.output[0] not in ends:
            (attribute,) = node.attribute
            if attribute.name == "value" and _is_large(attribute.t):
                attribute.t.name = node.output[0]
                graph.initializer.append(attribute.t)
                del graph.node[index]


def _is_large(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type == onnx.TensorProto.STRING or bytes_of(tensor) < LARGE:
        return False
    # Values of 4 bits outside raw_data are the one form whose bytes NumPy does not give back.
    raw = is_external(tensor) or tensor.HasField("raw_data")
    return raw or numpy_helper.to_array(tensor).nbytes == bytes_of(tensor)


def inline(tensor: onnx.TensorProto, where: Extent) -> None:
    """Bring the bytes into the tensor, in place."""
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")
    tensor.raw_data = b"".join(where.chunks())


def array(tensor: onnx.TensorProto, scratch: Path | None) -> Array:
    """The values of a tensor whose bytes may lie in `scratch`."""
    whole = onnx.TensorProto()
    whole.CopyFrom(tensor)
    if is_external(whole):
        assert scratch, "a graph with external data was gathered into a folder"
        inline(whole, extent(whole, scratch, source=str(scratch)))
    values: Array = numpy_helper.to_array(whole)
    return values


def stored_bytes(model: onnx.ModelProto) -> int:
    """Bytes of all initializers."""
    return sum(bytes_of(one) for one in model.graph.initializer)


def write(model: onnx.ModelProto, scratch: Path | None, path: Path) -> None:
    """Write one file with everything in it, a tensor at a time.

    The bytes are those of protobuf: fields of a message may come in any order, and do here.
    """
    outer = onnx.ModelProto()
    outer.CopyFrom(model)
    outer.ClearField("graph")
    inner = onnx.GraphProto()
    inner.CopyFrom(model.graph)
    inner.ClearField("initializer")
    stored = [_Stored.of(one, scratch) for one in model.graph.initializer]
    graph_bytes = inner.SerializeToString(deterministic=True)
    with path.open("wb") as file:
        file.write(outer.SerializeToString(deterministic=True))
        file.write(_length(_MODEL_GRAPH, len(graph_bytes) + sum(one.framed for one in stored)))
        file.write(graph_bytes)
        for one in stored:
            one.write(file)


def write_beside(model: onnx.ModelProto, scratch: Path, path: Path, data: Path, name: str) -> None:
    """Write the graph to `path` and its large tensors to `data`, which the graph calls `name`."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    with data.open("wb") as file:
        for tensor in (one for one in new.graph.initializer if is_external(one)):
            _move(tensor, file, scratch, str(path))
            _point(tensor, file, name)
    write(new, None, path)


_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW = 7, 5, 9


@dataclass(frozen=True, slots=True)
class _Stored:
    """An initializer as it is to be written: its message, and the bytes that belong into it."""

    head: bytes
    body: Extent | None

    @classmethod
    def of(cls, tensor: onnx.TensorProto, scratch: Path | None) -> _Stored:
        if scratch is None or not is_external(tensor):
            return cls(tensor.SerializeToString(deterministic=True), None)
        bare = onnx.TensorProto()
        bare.CopyFrom(tensor)
        bare.ClearField("data_location")
        bare.ClearField("external_data")
        where = extent(tensor, scratch, source=str(scratch))
        head = bare.SerializeToString(deterministic=True) + _length(_TENSOR_RAW, where.length)
        return cls(head, where)

    @property
    def size(self) -> int:
        return len(self.head) + (self.body.length if self.body else 0)

    @property
    def framed(self) -> int:
        return len(_length(_GRAPH_INITIALIZER, self.size)) + self.size

    def write(self, file: BinaryIO) -> None:
        file.write(_length(_GRAPH_INITIALIZER, self.size))
        file.write(self.head)
        for chunk in self.body.chunks() if self.body else ():
            file.write(chunk)


def _length(number: int, size: int) -> bytes:
    """The start of a field that holds `size` bytes."""
    return varint(number << 3 | 2) + varint(size)


def _move(tensor: onnx.TensorProto, file: BinaryIO, folder: Path, source: str) -> None:
    """Append the tensor's bytes, aligned, and take them out of the tensor."""
    file.write(bytes(-file.tell() % _ALIGNMENT))
    if is_external(tensor):
        for chunk in extent(tensor, folder, source=source).chunks():
            file.write(chunk)
        return
    raw = (
        tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()
    )
    file.write(raw)
    for field in (
        "raw_data",
        "float_data",
        "int32_data",
        "int64_data",
        "double_data",
        "uint64_data",
    ):
        tensor.ClearField(field)
