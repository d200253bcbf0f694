"""Pre- and post-processing brought into the graph: uint8 NHWC pictures in, and out.

A quarter of the bytes to the device, and no arithmetic on the host. The card that goes with the
fused graph says what is left to do: the host does the rest, and nothing twice.

TensorRT takes uint8 at the edge of a network alone, and there next to a Cast only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.errors import CardError
from trtfuse.core.specs import BATCH, Array
from trtfuse.graph.card import AXES
from trtfuse.graph.model import opset, set_dims, signature

# Since when ReduceSum, Clip and Squeeze take what is used here.
_OPSET = 13

_TO_PLANES, _TO_PIXELS = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True, slots=True)
class Fused:
    """A graph with its processing inside, not yet proven, and the card of what is left."""

    model: onnx.ModelProto
    card: Card


def fuse(model: onnx.ModelProto, card: Card, parts: Sequence[str]) -> Fused:
    """A copy of `model` that does `parts` of what `card` asks of the host.

    "pre": uint8 NHWC in, colour, range, mean and std. "resize": pictures of any size in, "stretch"
    to the card's size. "post", for the task `image`: uint8 NHWC out, rounded and clipped. Raises
    `CardError` where the card or the graph has no place for a part.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    before = _Nodes("trtfuse_pre", card.input.name)
    if "pre" in parts:
        _require_free_input(new, card.input)
        before.fill(card.input, _dtype(new, card.input.name), resize="resize" in parts)
        _put_before(new, card.input, before, resize="resize" in parts)
        card = replace(card, input=_left_of(card.input, resize="resize" in parts))
    if "post" in parts and isinstance(card.task, ImageTask):
        card = replace(card, task=_put_behind(new, card.task))
    return Fused(new, card)


def require_fusable(card: Card | None, parts: Sequence[str]) -> None:
    """Raise `CardError` unless there is a card that leaves to the host what `parts` take."""
    if card is None:
        raise CardError(
            "--fuse: needs a card, which says what there is to fuse. Give one with --card."
        )
    if "resize" not in parts:
        return
    if "pre" not in parts:
        raise CardError("--fuse resize: needs pre too, as what is resized are bytes.")
    if card.input.size == "dynamic" or card.input.resize != "stretch":
        raise CardError(
            f"--fuse resize: the card says size {card.input.size} and resize "
            f"{card.input.resize!r}; needs a fixed size and 'stretch'. Leave resize to the host."
        )


@dataclass
class _Nodes:
    """Nodes in the making, each reading what the one before made."""

    prefix: str
    last: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op_type: str, *others: str, **attributes: Any) -> str:
        """A node on `last` and `others`; the name of what it makes, which is `last` from now on."""
        self.last = self.make(op_type, self.last, *others, **attributes)
        return self.last

    def make(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node on `inputs` alone."""
        name = f"{self.prefix}_{len(self.nodes)}_{op_type}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def store(self, values: Array) -> str:
        """The name of a constant."""
        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def fill(self, card: InputCard, dtype: int, *, resize: bool) -> None:
        """Bytes [batch, height, width, channels] to what the network takes."""
        self.add("Cast", to=TensorProto.FLOAT)
        if resize or card.layout == "NCHW":
            self.add("Transpose", perm=_TO_PLANES)
        if resize:
            self.stretch(card.size)
        if resize and card.layout == "NHWC":
            self.add("Transpose", perm=_TO_PIXELS)
        channels = AXES[card.layout][0]
        if card.colour == "BGR":
            self.swap(channels)
        factor, offset = _affine(card)
        self.add("Mul", self.store(_along(factor, channels)))
        self.add("Add", self.store(_along(offset, channels)))
        if dtype != TensorProto.FLOAT:
            self.add("Cast", to=dtype)

    def swap(self, axis: int) -> None:
        """The first and the last of three channels change places."""
        self.add("Gather", self.store(np.array([2, 1, 0])), axis=axis)

    def stretch(self, size: tuple[int, int] | Literal["dynamic"]) -> None:
        """Planes of any size to `size`, as two matrix products.

        Each axis gets the filter that the host would give it: area where it shrinks, linear where
        it grows. What the host rounds to bytes in between is not rounded here.
        """
        assert size != "dynamic", "require_fusable refuses it"
        picture = self.last
        shape = self.make("Shape", picture)
        for axis, pixels in zip((2, 3), size, strict=True):
            length = self.make("Gather", shape, self.store(np.array([axis])))
            matrix = self.matrix(length, pixels, upright=axis == 2)
            pair = (matrix, picture) if axis == 2 else (picture, matrix)
            picture = self.make("MatMul", *pair)
        self.last = picture

    def matrix(self, length: str, size: int, *, upright: bool) -> str:
        """Weights that bring `length` pixels to `size`: [size, length] upright, else turned.

        In whole numbers up to the last division, so that half precision does no harm to places:
        pixel k of the result covers k * length to (k + 1) * length of a line in which pixel j of
        the picture covers j * size to (j + 1) * size.
        """
        k = np.arange(size)[:, None] if upright else np.arange(size)[None, :]
        numbers = self.make(
            "Range",
            self.store(np.array(0)),
            self.make("Squeeze", length),
            self.store(np.array(1)),
        )
        form = self.store(np.array([1, -1] if upright else [-1, 1]))
        j = self.make("Reshape", numbers, form)
        ends = (self.make("Mul", self.store(k + n), length) for n in (0, 1))
        covered_from, covered_to = ends
        pixel_from = self.make("Mul", j, self.store(np.array([size])))
        pixel_to = self.make("Add", pixel_from, self.store(np.array([size])))
        shared = self.make(
            "Sub",
            self.make("Min", covered_to, pixel_to),
            self.make("Max", covered_from, pixel_from),
        )
        zero = self.store(np.array([0]))
        area = self.ratio(self.make("Max", shared, zero), length)
        # Linear: the centre of k lies at ((2 k + 1) length - size) / (2 size) of the picture.
        odd = self.make("Mul", self.store(2 * k + 1), length)
        centre = self.make("Max", self.make("Sub", odd, self.store(np.array([size]))), zero)
        last = self.make(
            "Mul", self.make("Sub", length, self.store(np.array([1]))), self.double(size)
        )
        centre = self.make("Min", centre, last)
        apart = self.make("Abs", self.make("Sub", centre, self.make("Mul", j, self.double(size))))
        near = self.make("Max", self.make("Sub", self.double(size), apart), zero)
        linear = self.ratio(near, self.double(size))
        shrinks = self.make("Greater", length, self.store(np.array([size])))
        return self.make("Where", shrinks, area, linear)

    def double(self, size: int) -> str:
        """2 * size, as a constant."""
        return self.store(np.array([2 * size]))

    def ratio(self, number: str, of: str) -> str:
        """Two whole numbers divided, as float32."""
        casts = (self.make("Cast", name, to=TensorProto.FLOAT) for name in (number, of))
        return self.make("Div", *casts)


def _affine(card: InputCard) -> tuple[Array, Array]:
    """Factor and offset a channel, so that byte * factor + offset is what the network takes."""
    low, high = card.range
    mean = np.array(card.mean or (0.0,) * card.channels)
    std = np.array(card.std or (1.0,) * card.channels)
    return (high - low) / 255 / std, (low - mean) / std


def _along(values: Array, axis: int) -> Array:
    """A vector of channels that broadcasts along `axis` of a batch of pictures, as float32."""
    form = [-1 if n == axis else 1 for n in range(4)]
    return values.astype(np.float32).reshape(form)


def _put_before(model: onnx.ModelProto, card: InputCard, made: _Nodes, *, resize: bool) -> None:
    """Have the nodes stand between a new input of bytes and all that read the old one, in place."""
    graph = model.graph
    (value,) = [one for one in graph.input if one.name == card.name]
    shape = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    sizes = [shape[axis] for axis in AXES[card.layout][1:]]
    value.type.tensor_type.elem_type = TensorProto.UINT8
    set_dims(value, [BATCH, *(("height", "width") if resize else sizes), card.channels])
    _rename(graph.node, card.name, made.last)
    graph.initializer.extend(made.constants)
    whole = onnx.GraphProto(node=[*made.nodes, *graph.node])
    del graph.node[:]
    graph.node.extend(whole.node)


def _rename(nodes: Iterable[onnx.NodeProto], old: str, new: str) -> None:
    """Have nodes, and those of their sub-graphs, read `new` where they read `old`."""
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _rename(inner.node, old, new)


def _put_behind(model: onnx.ModelProto, task: ImageTask) -> ImageTask:
    """Turn the task's output into bytes, in place, and count what bytes cannot show."""
    graph = model.graph
    (value,) = [one for one in graph.output if one.name == task.output]
    inner = f"{task.output}_trtfuse"
    for node in graph.node:
        node.output[:] = [inner if name == task.output else name for name in node.output]
    _rename(graph.node, task.output, inner)
    made = _Nodes("trtfuse_post", inner)
    made.add("Cast", to=TensorProto.FLOAT)
    invalid = f"{task.output}_invalid"
    _count(made, made.last, invalid)
    low, high = task.range
    made.add("Mul", made.store(np.array(255 / (high - low), np.float32)))
    made.add("Add", made.store(np.array(0.5 - low * 255 / (high - low), np.float32)))
    made.add("Floor")
    made.add("Clip", *(made.store(np.array(end, np.float32)) for end in (0, 255)))
    if task.colour == "BGR":
        made.swap(AXES[task.layout][0])
    if task.layout == "NCHW":
        made.add("Transpose", perm=_TO_PIXELS)
    made.add("Cast", to=TensorProto.UINT8)
    made.nodes[-1].output[0] = task.output
    graph.node.extend(made.nodes)
    graph.initializer.extend(made.constants)
    shape = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    value.type.tensor_type.elem_type = TensorProto.UINT8
    if task.layout == "NCHW":
        set_dims(value, [shape[axis] for axis in _TO_PIXELS])
    graph.output.append(helper.make_tensor_value_info(invalid, TensorProto.FLOAT, [BATCH]))
    colour: Literal["RGB", "GRAY"] = "GRAY" if task.colour == "GRAY" else "RGB"
    return replace(task, layout="NHWC", colour=colour, range=(0.0, 255.0), invalid=invalid)


def _count(made: _Nodes, picture: str, name: str) -> None:
    """How many values of each item's picture are NaN or infinite: as bytes they would be black."""
    # The largest float32 is infinity in float16, so this holds in a graph of half precision too.
    largest = made.store(np.array(np.finfo(np.float32).max, np.float32))
    endless = made.make("GreaterOrEqual", made.make("Abs", picture), largest)
    bad = made.make("Or", made.make("IsNaN", picture), endless)
    number = made.make("Cast", bad, to=TensorProto.FLOAT)
    made.make("ReduceSum", number, made.store(np.array([1, 2, 3])), keepdims=0)
    made.nodes[-1].output[0] = name


def _left_of(card: InputCard, *, resize: bool) -> InputCard:
    """What is left to the host: to bring bytes into place."""
    return replace(
        card,
        layout="NHWC",
        colour="GRAY" if card.colour == "GRAY" else "RGB",
        range=(0.0, 255.0),
        mean=(),
        std=(),
        resized_by="graph" if resize else "host",
    )


def _dtype(model: onnx.ModelProto, name: str) -> int:
    (found,) = [one for one in model.graph.input if one.name == name]
    return int(found.type.tensor_type.elem_type)


def _require_free_input(model: onnx.ModelProto, card: InputCard) -> None:
    (tensor,) = [one for one in signature(model).inputs if one.name == card.name]
    if tensor.dtype == "uint8":
        raise CardError(f"--fuse pre: input {card.name!r} takes bytes already. Leave pre out.")
    if opset(model) < _OPSET:
        raise CardError(f"--fuse: the graph is of opset {opset(model)}, needs {_OPSET} or newer.")
