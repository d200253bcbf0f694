"""The frames of an animation back into one file."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from trtfuse.core.errors import ItemError
from trtfuse.core.files import replacing
from trtfuse.core.flow import Attached, Clip, Frame
from trtfuse.core.specs import Array
from trtfuse.io import encode
from trtfuse.io.decode import DAMAGED
from trtfuse.io.room import is_no_room


@dataclass(frozen=True, slots=True)
class Still:
    """A frame as PNG: small enough to wait for its animation's end."""

    data: bytes
    size: tuple[int, int]
    attached: Attached


def still(pixels: Array, attached: Attached) -> Still:
    """From uint8 (height, width, 3), RGB. Any thread."""
    return Still(encode.png(pixels, attached), pixels.shape[:2], attached)


@dataclass
class AnimationWriter:
    """Collects the frames of `clip` in order and writes them to `path`, all at the end.

    Frames that are shown one after the other and are equal become one, shown for both times: that
    is how Pillow writes them.
    """

    clip: Clip
    path: Path
    quality: int
    last: Still | None = None
    """The frame added before; None: there is none."""
    _frames: list[tuple[Frame, Still]] = field(default_factory=list)

    def add(self, place: Frame, frame: Still) -> None:
        """The next frame."""
        self._frames.append((place, frame))
        self.last = frame

    def reach(self, place: Frame) -> None:
        """Nothing is to be closed on the way."""

    def count(self, place: Frame) -> None:
        """Never: an animation that is not whole is made again from its first frame."""
        raise AssertionError(place)

    def finish(self) -> tuple[str, ...]:
        """Write the file. Raises ItemError where its kind does not take the frames."""
        first, *others = (Image.open(io.BytesIO(frame.data)) for _, frame in self._frames)
        try:
            with replacing(self.path) as part:
                first.save(part, self.clip.kind, save_all=True, append_images=others, **self._how())
        except DAMAGED as error:
            if is_no_room(error):
                raise
            raise ItemError(f"cannot be put together as {self.clip.kind}: {error}.") from error
        return ()

    def drop(self) -> None:
        """Leave it unfinished: nothing has been written."""
        self._frames.clear()

    def _how(self) -> dict[str, Any]:
        attached = [frame.attached for _, frame in self._frames]
        clear = any(one.alpha is not None for one in attached)
        how: dict[str, Any] = {"duration": [place.duration for place, _ in self._frames]}
        if self.clip.loop is not None:
            how["loop"] = self.clip.loop
        if profile := attached[0].profile:
            how["icc_profile"] = profile
        match self.clip.kind:
            case "GIF" if clear:
                # To what is behind it, before the next: or the pixels that get transparent stay.
                how["disposal"] = 2
            case "WEBP":
                lossless = self.quality == 100
                how |= {"quality": self.quality, "lossless": lossless, "exact": lossless}
        return how
