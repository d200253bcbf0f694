"""Whether a card fits a graph. Pure: no ONNX in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trtfuse.core.card import Card, ClassifyTask, ImageTask, InputCard, Layout
from trtfuse.core.errors import CardError
from trtfuse.core.specs import BATCH, TensorSpec

# (channels, height, width) axes of a batch of pictures.
AXES: dict[Layout, tuple[int, int, int]] = {"NCHW": (1, 2, 3), "NHWC": (3, 1, 2)}

_DTYPES = ("float32", "float16", "uint8")


class Ends(Protocol):
    """Anything with named inputs and outputs: a ModelSpec, a Signature, an engine's manifest."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """In the graph's order."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """In the graph's order."""


def check_card(card: Card, model: Ends) -> None:
    """Raise `CardError` unless `card` describes `model` as `trtfuse export` writes it."""
    tensor = check_input(card.input, model.inputs)
    _check_size(card.input, tensor)
    for name in card.output_names() or [one.name for one in model.outputs]:
        _check_output(name, model.outputs, tensor.shape[0])
    if isinstance(card.task, ClassifyTask):
        _check_labels(card.task, _named(card.task.output, model.outputs, "output"))
    if isinstance(card.task, ImageTask):
        output = _named(card.task.output, model.outputs, "output")
        channels = 1 if card.task.colour == "GRAY" else 3
        _check_picture(output, "output", channels, card.task.layout, card.task.colour)


def check_input(card: InputCard, inputs: Sequence[TensorSpec]) -> TensorSpec:
    """The input that the card names. Raises `CardError` unless it can take the card's pictures.

    Sizes are not looked at: `trtfuse export` may still change them.
    """
    tensor = _named(card.name, inputs, "input")
    if len(inputs) > 1:
        raise CardError(
            f"card: describes one input, {card.name!r}; the graph has {_list(inputs)}. "
            f"Make an input that never changes a constant, with --constant NAME=VALUE; models with "
            f"several that do cannot be run on pictures yet."
        )
    if tensor.dtype not in _DTYPES:
        raise CardError(
            f"input {tensor.name!r}: is {tensor.dtype}, needs to be one of {', '.join(_DTYPES)}."
        )
    _check_picture(tensor, "input", card.channels, card.layout, card.colour)
    return tensor


def _check_size(card: InputCard, tensor: TensorSpec) -> None:
    for axis, size in zip(AXES[card.layout][1:], _sizes(card), strict=True):
        declared = tensor.shape[axis]
        if isinstance(declared, int) and declared != size:
            raise CardError(
                f"input {tensor.name!r}: the card says size {card.size}, the graph takes "
                f"{_shape(tensor)}. Change the card, or export the graph again with it."
            )


def _sizes(card: InputCard) -> tuple[int | str, int | str]:
    return ("dynamic", "dynamic") if card.size == "dynamic" else card.size


def _check_output(name: str, outputs: Sequence[TensorSpec], batch: int | str) -> None:
    """`batch` is what leads the input: a number where the graph fixes it."""
    tensor = _named(name, outputs, "output")
    lead = batch if isinstance(batch, int) else BATCH
    if tensor.shape[:1] != (lead,):
        raise CardError(
            f"output {name!r}: has shape {_shape(tensor)}, needs {lead!r} as its first axis. "
            f"Make the graph's batch dynamic with: trtfuse export MODEL -o OUTPUT"
        )


def _check_labels(task: ClassifyTask, tensor: TensorSpec) -> None:
    """Of an output whose size is open, the first answer will tell."""
    scores = 1
    for size in tensor.shape[1:]:
        if not isinstance(size, int):
            return
        scores *= size
    if len(task.labels) != scores:
        raise CardError(
            f"output {tensor.name!r}: has shape {_shape(tensor)}, {scores} scores an item; the "
            f"card has {len(task.labels)} labels. It needs one a score."
        )


def _check_picture(
    tensor: TensorSpec, kind: str, channels: int, layout: Layout, colour: str
) -> None:
    if len(tensor.shape) != 4:
        raise CardError(
            f"{kind} {tensor.name!r}: has shape {_shape(tensor)}, "
            f"needs 4 axes ({', '.join(layout)}) to hold pictures."
        )
    size = tensor.shape[AXES[layout][0]]
    if isinstance(size, int) and size != channels:
        raise CardError(
            f"{kind} {tensor.name!r}: the card says {colour} in {layout}, so {channels} on axis "
            f"{AXES[layout][0]}; the graph has {_shape(tensor)}."
        )


def _named(name: str, tensors: Sequence[TensorSpec], kind: str) -> TensorSpec:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    raise CardError(f"card: {kind} {name!r} is not in the graph. Its {kind}s: {_list(tensors)}.")


def _shape(tensor: TensorSpec) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _list(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{tensor.name!r} {_shape(tensor)}" for tensor in tensors)
