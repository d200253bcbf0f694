"""Frames in order, back into the file that they came from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import cv2

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Attached, Clip, Entry, Failure, Frame, Item, Outcome
from trtfuse.core.options import WritingOptions
from trtfuse.core.specs import Array
from trtfuse.io import encode, names
from trtfuse.io.assemble import AnimationWriter, Still, still
from trtfuse.io.containers import holds
from trtfuse.io.encoder import Encoder, encoder
from trtfuse.io.render import Coded, VideoWriter, coded
from trtfuse.io.video import VideoClip

_ANIMATIONS = {"GIF": names.GIF, "PNG": names.PNG, "WEBP": names.WEBP}


Ready = Still | Coded
"""A frame as its clip's writer takes it."""


class ClipWriter(Protocol):
    """Makes one file of frames that come in order."""

    @property
    def last(self) -> Ready | None:
        """The frame before; None: there is none."""
        ...

    def reach(self, place: Frame) -> None:
        """Whatever comes next is at `place`; before anything else is said of it."""
        ...

    def count(self, place: Frame) -> None:
        """The next frame is there already, from an earlier run."""
        ...

    def add(self, place: Frame, frame: Any) -> None:
        """The next frame, ready for this kind of clip. Raises ItemError."""
        ...

    def finish(self) -> tuple[str, ...]:
        """Write the file; the SHA-256 of each frame in it, where it keeps them apart.

        Raises ItemError.
        """
        ...

    def drop(self) -> None:
        """Leave it unfinished."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a frame in its clip."""

    outcome: Outcome
    shown: bool
    """Whether the clip shows something for it."""
    written: str | None
    """With the last frame: the path of the file, below the output; None: there is none."""
    frames: tuple[str, ...]
    """With a video's: the SHA-256 of each frame in it."""


class Clips:
    """Writes one clip after the other below `output`, as their frames come.

    A frame that failed keeps its time: the source's own stands in for it, brought to the size of
    the others, or the frame before where the source's cannot be read. Before the first that did
    not fail nothing is known of the size, and nothing stands in. `writing.on_error` may say
    otherwise. Raises UsageError for an encoder that FFmpeg does not know.
    """

    def __init__(self, output: Path, writing: WritingOptions, stills: names.Kind) -> None:
        self._output = output
        self._writing = writing
        self._stills = stills
        self._encoders = {suffix: encoder(writing, suffix=suffix) for suffix in names.VIDEO.kept}
        self._writer: ClipWriter | None = None
        self._broken = ""
        self._frames: tuple[str, ...] = ()
        """Of the clip that was finished last."""

    def path_of(self, clip: Clip) -> str:
        """Where the clip goes, below the output."""
        if isinstance(clip, VideoClip):
            return names.picture_path(clip.key, names.VIDEO)
        kind = _ANIMATIONS[clip.kind]
        # One rule for all PNG files of a run, or two of them could get one name.
        return names.picture_path(clip.key, self._stills if kind is names.PNG else kind)

    def ready(self, clip: Clip, pixels: Array, attached: Attached) -> Ready:
        """What a frame's entry keeps for `commit`; pixels as an image task gives. Any thread."""
        pixels = encode.eight_bits(pixels)
        if isinstance(clip, VideoClip):
            return coded(pixels, clip, self._encoder(clip))
        return still(pixels, attached)

    def commit(self, outcome: Outcome, place: Frame) -> Committed:
        """Add the frame at `place`; after the last, the file is there.

        The outcome is a failure where the frame has no file, now or already: one fault breaks a
        clip.
        """
        shown = False
        if not self._broken:
            try:
                shown = self._add(outcome, place)
            except ItemError as error:
                self._broken = f"{place.clip.key}: {error}"
                self.close()
        if self._broken and isinstance(outcome.entry, Entry) and _ready(outcome.entry):
            outcome = replace(outcome, entry=Failure(kind="ItemError", message=self._broken))
        written: str | None = None
        frames: tuple[str, ...] = ()
        if place.last:
            if self._writer is not None:
                written, frames = self.path_of(place.clip), self._frames
            self._writer, self._broken = None, ""
        return Committed(outcome, shown, written, frames)

    def sweep(self, clip: Clip) -> None:
        """Remove what was kept for the clip's next run; call it when the clip is known as done."""
        shutil.rmtree((self._output / names.segment_path(clip.key, 0)).parent, ignore_errors=True)

    def close(self) -> None:
        """Leave the clip of now, if there is one, unfinished."""
        if self._writer is not None:
            self._writer.drop()
            self._writer = None

    def _add(self, outcome: Outcome, place: Frame) -> bool:
        """Whether the clip shows something at `place`."""
        known = outcome.item.known
        if self._writer is not None:
            self._writer.reach(place)
        frame = None if known else self._frame(outcome, place.clip)
        shown = known.shown if known else frame is not None
        if shown:
            self._writer = self._writer or self._open(place.clip)
            if known:
                self._writer.count(place)
            else:
                self._writer.add(place, frame)
        if place.last and self._writer is not None:
            self._frames = self._writer.finish()
        return shown

    def _frame(self, outcome: Outcome, clip: Clip) -> Ready | None:
        """What the clip shows now; None: nothing."""
        if not isinstance(outcome.entry, Failure):
            return _ready(outcome.entry)
        if self._writing.on_error == "fail":
            raise ItemError(f"not written, for a frame failed ({outcome.entry.message})")
        if self._writing.on_error == "skip" or self._writer is None:
            return None
        before = self._writer.last
        return before and (self._original(outcome.item, clip, before.size) or before)

    def _original(self, item: Item, clip: Clip, size: tuple[int, int]) -> Ready | None:
        """The frame as the source has it, at `size` (height, width); None where it has none."""
        try:
            picture = item.load()
        except ItemError:
            return None
        pixels = cv2.resize(picture.pixels, size[::-1], interpolation=cv2.INTER_AREA)
        return self.ready(clip, pixels, encode.fitted(picture.attached, size, None))

    def _encoder(self, clip: Clip) -> Encoder:
        suffix = PurePosixPath(self.path_of(clip)).suffix.lower()
        wanted = self._encoders[suffix]
        if not holds(suffix, wanted.codec):
            raise ItemError(f"{suffix} files do not hold {wanted.codec}. Choose another --codec.")
        return wanted

    def _open(self, clip: Clip) -> ClipWriter:
        path = self._output / self.path_of(clip)
        if isinstance(clip, VideoClip):
            return VideoWriter(
                clip=clip,
                path=path,
                segment=lambda number: self._output / names.segment_path(clip.key, number),
                encoder=self._encoder(clip),
                length=self._writing.segment,
            )
        return AnimationWriter(clip, path, self._writing.quality)


def _ready(entry: Entry) -> Ready | None:
    """The frame that the entry keeps for its clip; None: its answer is no picture."""
    return entry.rest if isinstance(entry.rest, Still | Coded) else None
