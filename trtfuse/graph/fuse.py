"""Pre- and post-processing brought into the graph: uint8 NHWC pictures in, and out.

A quarter of the bytes to the device, and no arithmetic on the host. The card that goes with the
fused graph says what is left to do: the host does the rest, and nothing twice.

TensorRT takes uint8 at the edge of a network alone, and there next to a Cast only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.errors import CardError
from trtfuse.core.specs import BATCH, Array
from trtfuse.graph.card import AXES
from trtfuse.graph.model import opset, set_dims, signature
from trtfuse.graph.nodes import Nodes
from trtfuse.graph.resize import resize
from trtfuse.graph.wiring import rename, set_nodes

# Since when ReduceSum, Clip and Squeeze take what is used here.
_OPSET = 13

_TO_PLANES, _TO_PIXELS = (0, 3, 1, 2), (0, 2, 3, 1)

# The axes of a picture of any size: not the input's, whose names the graph may use for others.
_PICTURE = ("picture_height", "picture_width")


@dataclass(frozen=True, slots=True)
class Fused:
    """A graph with its processing inside, not yet proven, and the card of what is left."""

    model: onnx.ModelProto
    card: Card
    resizing: onnx.ModelProto | None = None
    """The part that resizes, alone: pictures in, bytes [batch, channels, height, width] out."""


def fuse(model: onnx.ModelProto, card: Card, parts: Sequence[str]) -> Fused:
    """A copy of `model` that does `parts` of what `card` asks of the host.

    "pre": uint8 NHWC in, colour, range, mean and std. "resize": pictures of any size in, brought to
    the card's size or multiple. "post", for the task `image`: uint8 NHWC out, rounded and clipped.
    Raises `CardError` where the card or the graph has no place for a part.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    before = Nodes("trtfuse_pre", card.input.name)
    resizing = None
    if "pre" in parts:
        resized = "resize" in parts
        _require_free_input(new, card.input)
        if resized:
            resizing = _resizing(new, card.input)
        _fill(before, card.input, _dtype(new, card.input.name), resized=resized)
        _put_before(new, card.input, before, resized=resized)
        card = replace(card, input=_left_of(card.input, resized=resized))
    if "post" in parts and isinstance(card.task, ImageTask):
        card = replace(card, task=_put_behind(new, card.task))
    return Fused(new, card, resizing)


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
    if not card.input.changes_size:
        raise CardError(
            f"--fuse resize: the card says size {card.input.size} and resize "
            f"{card.input.resize!r}, so there is nothing to resize. Leave resize out."
        )


def _fill(made: Nodes, card: InputCard, dtype: int, *, resized: bool) -> None:
    """Bytes [batch, height, width, channels] to what the network takes."""
    made.add("Cast", to=TensorProto.FLOAT)
    if resized or card.layout == "NCHW":
        made.add("Transpose", perm=_TO_PLANES)
    if resized:
        resize(made, card)
    if resized and card.layout == "NHWC":
        made.add("Transpose", perm=_TO_PIXELS)
    channels = AXES[card.layout][0]
    if card.colour == "BGR":
        _swap(made, channels)
    factor, offset = _affine(card)
    made.add("Mul", made.store(_along(factor, channels)))
    made.add("Add", made.store(_along(offset, channels)))
    if dtype != TensorProto.FLOAT:
        made.add("Cast", to=dtype)


def _swap(made: Nodes, axis: int) -> None:
    """The first and the last of three channels change places."""
    made.add("Gather", made.store(np.array([2, 1, 0])), axis=axis)


def _resizing(model: onnx.ModelProto, card: InputCard) -> onnx.ModelProto:
    """A graph that resizes as `card` says, and nothing else: pixels in, planes of bytes out."""
    made = Nodes("trtfuse_pre", card.name)
    made.add("Cast", to=TensorProto.FLOAT)
    made.add("Transpose", perm=_TO_PLANES)
    resize(made, card)
    made.add("Cast", to=TensorProto.UINT8)
    graph = onnx.GraphProto(name="resize", node=made.nodes, initializer=made.constants)
    given, planes = (
        helper.make_tensor_value_info(n, TensorProto.UINT8, None) for n in (card.name, made.last)
    )
    set_dims(given, [BATCH, *_PICTURE, card.channels])
    set_dims(planes, [BATCH, card.channels, "height", "width"])
    graph.input.append(given)
    graph.output.append(planes)
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, graph=graph
    )


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


def _put_before(model: onnx.ModelProto, card: InputCard, made: Nodes, *, resized: bool) -> None:
    """Have the nodes stand between a new input of bytes and all that read the old one, in place."""
    graph = model.graph
    (value,) = [one for one in graph.input if one.name == card.name]
    shape = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    sizes = [shape[axis] for axis in AXES[card.layout][1:]]
    value.type.tensor_type.elem_type = TensorProto.UINT8
    set_dims(value, [BATCH, *(_PICTURE if resized else sizes), card.channels])
    rename(graph.node, card.name, made.last)
    graph.initializer.extend(made.constants)
    set_nodes(model, [*made.nodes, *graph.node])


def _put_behind(model: onnx.ModelProto, task: ImageTask) -> ImageTask:
    """Turn the task's output into bytes, in place, and count what bytes cannot show."""
    graph = model.graph
    (value,) = [one for one in graph.output if one.name == task.output]
    inner = f"{task.output}_trtfuse"
    for node in graph.node:
        node.output[:] = [inner if name == task.output else name for name in node.output]
    rename(graph.node, task.output, inner)
    made = Nodes("trtfuse_post", inner)
    made.add("Cast", to=TensorProto.FLOAT)
    invalid = f"{task.output}_invalid"
    _count(made, made.last, invalid)
    low, high = task.range
    made.add("Mul", made.store(np.array(255 / (high - low), np.float32)))
    made.add("Add", made.store(np.array(0.5 - low * 255 / (high - low), np.float32)))
    made.add("Floor")
    made.add("Clip", *(made.store(np.array(end, np.float32)) for end in (0, 255)))
    if task.colour == "BGR":
        _swap(made, AXES[task.layout][0])
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


def _count(made: Nodes, picture: str, name: str) -> None:
    """How many values of each item's picture are NaN or infinite: as bytes they would be black."""
    # The largest float32 is infinity in float16, so this holds in a graph of half precision too.
    largest = made.store(np.array(np.finfo(np.float32).max, np.float32))
    endless = made.make("GreaterOrEqual", made.make("Abs", picture), largest)
    bad = made.make("Or", made.make("IsNaN", picture), endless)
    number = made.make("Cast", bad, to=TensorProto.FLOAT)
    made.make("ReduceSum", number, made.store(np.array([1, 2, 3])), keepdims=0)
    made.nodes[-1].output[0] = name


def _left_of(card: InputCard, *, resized: bool) -> InputCard:
    """What is left to the host: to bring bytes into place."""
    return replace(
        card,
        layout="NHWC",
        colour="GRAY" if card.colour == "GRAY" else "RGB",
        range=(0.0, 255.0),
        mean=(),
        std=(),
        resized_by="graph" if resized else "host",
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
