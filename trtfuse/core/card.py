"""The card: what a model expects of a picture and what its outputs mean.

JSON, kept in the ONNX `metadata_props` under `trtfuse.card` and in the engine's manifest, so that
a model describes itself. Nothing is guessed: a field without a default must be stated.

A pixel p (0 to 255) reaches the network as

    v = range[0] + p / 255 * (range[1] - range[0]),   then   (v - mean) / std   per channel

so ImageNet's usual rule is range [0, 1] with its mean and std, and "raw bytes" is range [0, 255].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trtfuse.core.errors import CardError
from trtfuse.core.record import Malformed, from_json, to_json

METADATA_KEY = "trtfuse.card"

Layout = Literal["NCHW", "NHWC"]
Colour = Literal["RGB", "BGR", "GRAY"]
Resize = Literal["stretch", "letterbox", "crop", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCard:
    """How a picture becomes the input tensor."""

    name: str
    layout: Layout
    colour: Colour
    range: tuple[float, float]
    size: tuple[int, int] | Literal["dynamic"]
    """(height, width) in pixels, or "dynamic": the picture's own size, up to `multiple`."""
    resize: Resize
    """stretch: to `size`, whatever the aspect. letterbox: to fit inside, centred, padded.
    crop: to cover, centred, cut. none: as it is; with "dynamic", padded right and below."""
    mean: tuple[float, ...] = ()
    """Per channel in the order of `colour`, in the units of `range`; empty: none."""
    std: tuple[float, ...] = ()
    pad: int = 0
    """Grey value (0 to 255) of what letterbox and padding add."""
    multiple: int = 1
    """With "dynamic": height and width are brought up to a multiple of this."""
    resized_by: Literal["host", "graph"] = "host"
    """graph: the tensor takes pictures of any size, and the graph does what `size` and `resize`
    say."""

    def __post_init__(self) -> None:
        if self.resized_by == "graph" and not self.changes_size:
            raise ValueError("resized_by 'graph' needs a resize or a multiple")
        if self.size == "dynamic" and self.resize not in ("none", "stretch"):
            raise ValueError(f"resize {self.resize!r} needs a fixed size, not 'dynamic'")
        if self.size != "dynamic" and (min(self.size) < 1 or self.multiple != 1):
            raise ValueError("a fixed size needs sizes above 0 and no multiple")
        if self.multiple < 1 or not 0 <= self.pad <= 255:
            raise ValueError("multiple needs to be 1 or more, pad 0 to 255")
        if self.range[0] >= self.range[1]:
            raise ValueError(f"range needs low < high, got {list(self.range)}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, self.channels):
                raise ValueError(f"{name} needs {self.channels} values for {self.colour}")
        if any(value <= 0 for value in self.std):
            raise ValueError("std needs values above 0")

    @property
    def changes_size(self) -> bool:
        """Whether a picture can be of another size than its input."""
        return self.multiple > 1 if self.size == "dynamic" else self.resize != "none"

    @property
    def channels(self) -> int:
        """1 for GRAY, else 3."""
        return 1 if self.colour == "GRAY" else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTask:
    """The output is a picture: super-resolution, restoration, style."""

    name: Literal["image"]
    output: str
    layout: Layout
    colour: Colour
    range: tuple[float, float]
    invalid: str | None = None
    """An output with one number an item: how many of its values were NaN or infinite before they
    became bytes, which cannot show that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyTask:
    """The output is one score a class."""

    name: Literal["classify"]
    output: str
    labels: tuple[str, ...]
    scores: Literal["logits", "probabilities"]
    """logits: softmax is applied. probabilities: taken as they are."""
    top: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectTask:
    """The outputs are boxes.

    `outputs` maps the decoder's names to the graph's: centerface needs score, size, offset and
    landmarks (maps at 1/`stride` of the input); yolov8 needs boxes ([4 + classes, anchors]).
    """

    name: Literal["detect"]
    decoder: Literal["centerface", "yolov8"]
    outputs: Mapping[str, str]
    labels: tuple[str, ...]
    score: float
    """A detection needs more than this."""
    iou: float
    """Of two boxes of one label that overlap this much or more, the lower score goes."""
    stride: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTask:
    """The output is one vector a picture."""

    name: Literal["embed"]
    output: str
    normalize: bool
    """Whether the vector is brought to length 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTask:
    """The outputs are kept as arrays; an empty `outputs` keeps all."""

    name: Literal["tensor"]
    outputs: tuple[str, ...] = ()


TaskCard = ImageTask | ClassifyTask | DetectTask | EmbedTask | TensorTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Input and task of one model.

    >>> Card.of(
    ...     {
    ...         "input": {
    ...             "name": "x",
    ...             "layout": "NCHW",
    ...             "colour": "RGB",
    ...             "range": [0, 1],
    ...             "size": [224, 224],
    ...             "resize": "crop",
    ...         },
    ...         "task": {"name": "embed", "output": "y", "normalize": True},
    ...     }
    ... ).task
    EmbedTask(name='embed', output='y', normalize=True)
    """

    input: InputCard
    task: TaskCard

    @staticmethod
    def of(data: Mapping[str, Any]) -> Card:
        """The card that JSON data describes. Raises `CardError` with the field that is off."""
        return parse(data, source="card")

    def output_names(self) -> tuple[str, ...]:
        """The graph outputs that the task reads; empty means all."""
        match self.task:
            case DetectTask(outputs=outputs):
                return tuple(outputs.values())
            case TensorTask(outputs=names):
                return names
            case ImageTask(output=name, invalid=str(invalid)):
                return (name, invalid)
            case ImageTask(output=name) | ClassifyTask(output=name) | EmbedTask(output=name):
                return (name,)


def dumps(card: Card) -> str:
    """The card as JSON text, fields in a fixed order."""
    return json.dumps(to_json(card), indent=2)


def parse(data: Any, *, source: str) -> Card:
    """A card from JSON data. `source` names the file in errors. Raises `CardError`."""
    try:
        return from_json(Card, data, at="card")
    except Malformed as error:
        raise CardError(f"{source}: {error}.") from error


def loads(text: str, *, source: str) -> Card:
    """A card from JSON text. Raises `CardError`."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CardError(f"{source}: not JSON ({error}).") from error
    return parse(data, source=source)
