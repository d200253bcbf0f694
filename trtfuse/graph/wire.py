"""ONNX files read without their weights: protobuf's wire format, walked over a memory map.

protobuf reads a message whole, so an .onnx costs its bytes and its tensors, twice the model, before
anything is known of it. Here the message is walked first. Tensors of `LARGE` bytes and more stay
where they are: the graph gets them as external data that points into the .onnx itself. What is
absurd is refused before it is parsed: an .onnx is foreign data.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper

from trtfuse.core.errors import UsageError

# Shapes, scales and thresholds, which rewrites read, are smaller; weights that count are larger.
LARGE = 1 << 10

# The largest nets of image work that we know have 5 000; one of 10^6 would take gigabytes to parse.
MOST_NODES = 100_000

# What is left without the large tensors. 100 000 nodes take 30 MB.
_MOST_SKELETON_BYTES = 512 << 20

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5  # ModelProto.graph; GraphProto.node, .initializer
_RAW = 9  # TensorProto.raw_data
# Typed fields whose packed form is the bytes of the array: float_data and double_data.
_TYPED = {4: onnx.TensorProto.FLOAT, 10: onnx.TensorProto.DOUBLE}

# A tensor with its numbers one a field would be walked for minutes; it is parsed instead.
_MOST_TENSOR_FIELDS = 256


class Malformed(ValueError):
    """Not the wire format, or not what an ONNX file may hold; the text says which."""


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    wire_type: int
    start: int
    """Where its tag begins."""
    value: int
    """Where its value begins, behind tag and length."""
    end: int


def outline(path: Path) -> onnx.ModelProto:
    """The graph, with its large tensors left in their files as external data.

    Every tensor's bytes are as many as its shape needs; files of external data are not opened.
    Raises `UsageError` if there is no such file or it is no whole ONNX file.
    """
    if not path.is_file():
        raise UsageError(f"{path}: {'is not a file' if path.exists() else 'does not exist'}.")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            model = _model(data, path.name)
        for tensor in tensors(model.graph):
            _require_whole(tensor)
        _require_nodes(model)
    except (DecodeError, ValueError) as error:  # an empty file cannot be mapped: ValueError
        raise UsageError(f"{path}: not an ONNX file, or cut short ({error}).") from error
    # Few bytes are no valid protobuf at all, and almost any text is some message.
    if not model.ir_version or not model.graph.output:
        raise UsageError(f"{path}: not an ONNX file, or cut short (it holds no graph).")
    return model


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in the graph, in nodes and sub-graphs too."""
    yield from graph.initializer
    yield from inner_tensors(graph)


def inner_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Tensors stored in the graph's nodes and sub-graphs."""
    for attribute in (one for node in graph.node for one in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from tensors(inner)


def bytes_of(tensor: onnx.TensorProto) -> int:
    """Bytes that the tensor's shape and type need. Raises `Malformed` for none such."""
    if any(size < 0 for size in tensor.dims):
        raise Malformed(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}")
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        raise Malformed(f"tensor {tensor.name!r} has the unknown type {tensor.data_type}") from None
    bits: int = prod(tensor.dims) * _bits(dtype)
    return -(-bits // 8)


def _bits(dtype: np.dtype[Any]) -> int:
    """Bits of one value. NumPy holds values of 4 and 2 bits in a byte each; ONNX packs them."""
    packed = re.match(r"u?int([24])$|float(4)_", dtype.name)
    return int(packed[1] or packed[2]) if packed else 8 * dtype.itemsize


def external(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Make `tensor` one whose bytes lie in a file, in place."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    tensor.data_location = onnx.TensorProto.EXTERNAL


def varint(value: int) -> bytes:
    """A whole number above or equal 0, as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _model(data: mmap.mmap, name: str) -> onnx.ModelProto:
    rest: list[_Field] = []
    inner: list[_Field] = []
    stored: list[_Field] = []
    nodes = 0
    for field in _fields(data, 0, len(data)):
        if field.number != _GRAPH:
            rest.append(field)
            continue
        for one in _fields(data, field.value, field.end):
            (stored if one.number == _INITIALIZER else inner).append(one)
            nodes += one.number == _NODE
            if nodes > MOST_NODES:
                raise Malformed(f"it has more than {MOST_NODES} nodes")
    small = [one for one in stored if one.end - one.value < LARGE]
    size = sum(one.end - one.start for one in (*rest, *inner, *small))
    if size > _MOST_SKELETON_BYTES:
        raise Malformed(f"it has {size >> 20} MiB without its weights")
    model: onnx.ModelProto = onnx.ModelProto.FromString(_joined(data, rest))
    model.graph.CopyFrom(onnx.GraphProto.FromString(_joined(data, inner)))
    model.graph.initializer.extend(_tensor(data, one, name) for one in stored)
    return model


def _tensor(data: mmap.mmap, field: _Field, name: str) -> onnx.TensorProto:
    """A tensor of the graph; a large one as external data in the file `name`."""
    if field.end - field.value >= LARGE:
        parts: list[_Field] = []
        for one in _fields(data, field.value, field.end):
            parts.append(one)
            if len(parts) > _MOST_TENSOR_FIELDS:
                break
        else:
            held = [one for one in parts if one.number in (_RAW, *_TYPED) and one.wire_type == 2]
            if len(held) == 1 and held[0].end - held[0].value >= LARGE:
                return _pointer(data, parts, held[0], name)
    tensor: onnx.TensorProto = onnx.TensorProto.FromString(data[field.value : field.end])
    return tensor


def _pointer(data: mmap.mmap, parts: list[_Field], held: _Field, name: str) -> onnx.TensorProto:
    tensor: onnx.TensorProto = onnx.TensorProto.FromString(
        _joined(data, (one for one in parts if one is not held))
    )
    if tensor.data_type != _TYPED.get(held.number, tensor.data_type):
        raise Malformed(f"tensor {tensor.name!r} has another type than its numbers")
    external(tensor, name, held.value, held.end - held.value)
    return tensor


def _joined(data: mmap.mmap, fields: Iterable[_Field]) -> bytes:
    return b"".join(data[one.start : one.end] for one in fields)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    """The fields of the message between `start` and `end`. Raises `Malformed`."""
    at = start
    while at < end:
        tag, value = _varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            _, stop = _varint(data, value, end)
        elif wire_type == 1:
            stop = value + 8
        elif wire_type == 2:
            length, value = _varint(data, value, end)
            stop = value + length
        elif wire_type == 5:
            stop = value + 4
        else:
            raise Malformed(f"no field of protobuf at byte {at}")
        if stop > end:
            raise Malformed(f"the field at byte {at} ends {stop - end} bytes behind its message")
        yield _Field(number, wire_type, at, value, stop)
        at = stop


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed(f"no number of protobuf at byte {at}")


def _require_whole(tensor: onnx.TensorProto) -> None:
    """Raise `Malformed` unless the tensor holds as many values as its shape says."""
    needed = bytes_of(tensor)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        length = {one.key: one.value for one in tensor.external_data}.get("length", str(needed))
        if not length.isdecimal() or int(length) != needed:
            raise Malformed(_counted(tensor, f"{length} bytes", f"{needed}"))
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != needed:
            raise Malformed(_counted(tensor, f"{len(tensor.raw_data)} bytes", f"{needed}"))
    else:
        held = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
        # Values of 4 and 2 bits are packed into bytes here too.
        packed = _bits(helper.tensor_dtype_to_np_dtype(tensor.data_type)) < 8
        values = needed if packed else prod(tensor.dims)
        if held not in (values, 2 * values * _is_complex(tensor)):
            raise Malformed(_counted(tensor, f"{held} values", f"{values}"))


def _is_complex(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)


def _require_nodes(model: onnx.ModelProto) -> None:
    """Raise `Malformed` for a node that lacks inputs or outputs: all that read it may rely on them.

    Operators that ONNX does not know have at least an output.
    """
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)
    fewest: dict[str, tuple[int, int]] = {}
    for node in model.graph.node:
        kind = node.op_type if node.domain in ("", "ai.onnx") else ""
        if kind not in fewest:
            fewest[kind] = _fewest(kind, version)
        inputs, outputs = fewest[kind]
        whole = kind != "Constant" or len(node.attribute) == 1
        if len(node.input) < inputs or len(node.output) < outputs or not whole:
            raise Malformed(
                f"a node {node.op_type} {node.name!r} lacks inputs, outputs or its value"
            )


def _fewest(kind: str, version: int) -> tuple[int, int]:
    try:
        schema = onnx.defs.get_schema(kind, version)
    except onnx.defs.SchemaError:
        return 0, 1
    return schema.min_input, max(1, schema.min_output)


def _counted(tensor: onnx.TensorProto, held: str, needed: str) -> str:
    return f"tensor {tensor.name!r} {list(tensor.dims)} holds {held}, needs {needed}"
