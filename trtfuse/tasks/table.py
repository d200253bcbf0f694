"""The table of tasks, and the codec that a card stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.flow import Answer, Codec, Geometry, Picture
from trtfuse.core.specs import Array, Arrays
from trtfuse.tasks import classify, detect, embed, image, tensor
from trtfuse.tasks.fitting import fit
from trtfuse.tasks.picture import encode
from trtfuse.tasks.reading import Decode

# The task's name in the card -> what reads its outputs. A new task is a file and a line here.
TASKS: Mapping[str, Callable[[Any], Decode]] = {
    "image": image.reader,
    "classify": classify.reader,
    "detect": detect.reader,
    "embed": embed.reader,
    "tensor": tensor.reader,
}


@dataclass(frozen=True, slots=True)
class CardCodec:
    """The card's input half, which is the same for all tasks, and its task's decoding."""

    input: InputCard
    read: Decode

    def fit(self, height: int, width: int) -> Geometry:
        """Where a picture of this size goes. Raises ItemError where it cannot."""
        return fit(self.input, height, width)

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape of the input tensor of one such picture, without the batch axis."""
        size = geometry.picture if self.input.resized_by == "graph" else geometry.input
        if self.input.layout == "NHWC":
            return (*size, self.input.channels)
        return (self.input.channels, *size)

    def encode(self, picture: Picture, geometry: Geometry, into: Array) -> None:
        """Write the input tensor of one picture, without the batch axis."""
        if self.input.resized_by == "graph":
            # The picture goes in as it is; where it lies is for what comes out.
            size = geometry.picture
            geometry = replace(geometry, input=size, scale_x=1, scale_y=1, left=0, top=0)
        encode(self.input, picture, geometry, into)

    def decode(self, outputs: Arrays, geometry: Geometry) -> Answer:
        """Read one item's outputs, which are only lent. Raises ItemError."""
        return self.read(outputs, geometry)


def codec(card: Card, *, depth: int = 8) -> Codec:
    """What `card` means; `depth` is in bits. Raises CardError where its task lacks something."""
    if isinstance(card.task, ImageTask):
        return CardCodec(card.input, image.reader(card.task, depth=depth))
    return CardCodec(card.input, TASKS[card.task.name](card.task))
