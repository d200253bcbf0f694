"""Frames into a video: encoded in segments that survive an interruption, joined at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.video.frame import PictureType
from av.video.stream import VideoStream

from trtfuse.core.errors import ItemError
from trtfuse.core.files import replacing
from trtfuse.core.flow import Frame
from trtfuse.core.specs import Array
from trtfuse.io.containers import url
from trtfuse.io.encoder import Encoder
from trtfuse.io.join import Segment, join
from trtfuse.io.room import is_no_room
from trtfuse.io.seals import seals
from trtfuse.io.video import VideoClip


@dataclass(frozen=True, slots=True)
class Coded:
    """A frame as the encoder takes it, and the (height, width) that it had."""

    frame: av.VideoFrame
    size: tuple[int, int]


def coded(pixels: Array, clip: VideoClip, encoder: Encoder) -> Coded:
    """From uint8 (height, width, 3), RGB. Any thread.

    Where the pixel format halves the colours and a side is odd, its last row or column is there
    twice: encoders take even sizes only.
    """
    height, width = pixels.shape[:2]
    even_height, even_width = encoder.even
    missing = (height % 2 if even_height else 0, width % 2 if even_width else 0)
    if any(missing):
        pixels = np.pad(pixels, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="edge")
    frame = clip.colours.from_rgb(np.ascontiguousarray(pixels), encoder.pixel_format)
    return Coded(frame, (height, width))


@dataclass
class VideoWriter:
    """Writes `clip` to `path`. Frames are added in order; every `length` indices are a segment.

    A segment that is there already is not written again: its frames are only counted.
    """

    clip: VideoClip
    path: Path
    segment: Callable[[int], Path]
    """Where the segment of this number is."""
    encoder: Encoder
    length: int
    _last: Coded | None = None
    _segments: dict[int, list[Frame]] = field(default_factory=dict)
    _open: _Encoding | None = None

    @property
    def last(self) -> Coded | None:
        """The frame before, where there is one.

        Of another segment, it is what was encoded: so it is the same for a run that goes on there.
        """
        if self._last is None and self._segments:
            self._last = _last_of(self.segment(max(self._segments)))
        return self._last

    def add(self, place: Frame, frame: Coded) -> None:
        """The next frame. Raises ItemError where the encoder refuses it."""
        number = place.index // self.length
        self._segments.setdefault(number, []).append(place)
        self._last = frame
        try:
            if self._open is None:
                self._open = _Encoding(self.segment(number), self.clip, self.encoder, frame.frame)
            self._open.add(place, frame.frame)
        except (av.FFmpegError, ValueError) as error:
            if is_no_room(error):
                raise
            self.drop()
            raise ItemError(f"cannot be encoded with {self.encoder.codec}: {error}.") from error

    def count(self, place: Frame) -> None:
        """The next frame lies in a segment that is there already."""
        self._segments.setdefault(place.index // self.length, []).append(place)

    def reach(self, place: Frame) -> None:
        """Whatever comes next is at `place`: a segment that ends before it is closed."""
        if self._open is not None and place.index // self.length > max(self._segments):
            self._close()
            self._last = None

    def finish(self) -> tuple[str, ...]:
        """Join the segments to the file. They stay: only the journal can say that it is there."""
        self._close()
        segments = [
            Segment(self.segment(number), frames) for number, frames in self._segments.items()
        ]
        try:
            with replacing(self.path) as part:
                join(segments, self.clip, part)
                return tuple(seal.sha256 for seal in seals(part))
        except (av.FFmpegError, ValueError) as error:
            if is_no_room(error):
                raise
            raise ItemError(f"cannot be put together: {error}.") from error

    def drop(self) -> None:
        """Leave it unfinished; whole segments stay."""
        if self._open is not None:
            self._open.drop()
            self._open = None

    def _close(self) -> None:
        if self._open is not None:
            self._open.finish()
            self._open = None


def _last_of(segment: Path) -> Coded:
    with av.open(url(segment)) as container:
        *_, frame = container.decode(video=0)
    # Or the encoder would take the kind it had for the one it is to have.
    frame.pict_type = PictureType.NONE
    return Coded(frame, (frame.height, frame.width))


class _Encoding:
    """One segment on its way to `path`."""

    def __init__(self, path: Path, clip: VideoClip, encoder: Encoder, first: av.VideoFrame) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._size = (first.width, first.height)
        self._format = encoder.pixel_format
        self._tick = clip.tick
        self._container = av.open(url(self._part), "w", format="nut")
        self._stream = _stream(self._container, clip, encoder)
        self._stream.width, self._stream.height = self._size

    def add(self, place: Frame, frame: av.VideoFrame) -> None:
        if (frame.width, frame.height) != self._size:
            # The source has changed its size on the way; a file has one.
            frame = frame.reformat(*self._size, format=self._format)
        frame.pts = place.start
        frame.time_base = self._tick
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        with replacing(self._path) as part:
            self._part.rename(part)

    def drop(self) -> None:
        with suppress(av.FFmpegError):  # the last bytes may find no room; nobody wants them
            self._container.close()
        self._part.unlink(missing_ok=True)


def _stream(container: OutputContainer, clip: VideoClip, encoder: Encoder) -> VideoStream:
    rate = clip.rate or Fraction(25)
    stream = container.add_stream(encoder.codec, rate=rate, options=dict(encoder.options))
    assert isinstance(stream, VideoStream)
    stream.pix_fmt = encoder.pixel_format
    stream.codec_context.time_base = clip.tick
    stream.time_base = clip.tick
    stream.codec_context.sample_aspect_ratio = clip.sample_aspect
    stream.codec_context.thread_type = "AUTO"
    clip.colours.describe(stream.codec_context)
    return stream
