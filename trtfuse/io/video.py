"""The frames of a video, with their times, as a viewer sees them; damage costs frames only."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Attached, Clip, Frame, Item, Picture
from trtfuse.core.options import ReadingOptions
from trtfuse.io.colours import Colours, colours_of
from trtfuse.io.containers import url
from trtfuse.io.hardware import decoding
from trtfuse.io.keys import frame_key
from trtfuse.io.timeline import Timeline

VIDEO = "video"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoClip(Clip):
    """A video file, and what its frames have in common."""

    path: Path
    colours: Colours
    rate: Fraction | None
    """Frames a second on average; for the encoder's rate control only."""
    sample_aspect: Fraction
    """Width of a pixel by its height."""
    turn: int = 0
    """Degrees, anticlockwise, by which a player turns it; 0: it is upright, or was made so."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One frame of the timeline: decoded, or the reason why not."""

    start: int
    promise: _Promise
    frame: av.VideoFrame | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a frame's packet says of it."""

    duration: int
    sha256: str = ""


def items(
    path: Path,
    key: str,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008 - frozen
) -> Iterator[Item]:
    """Its frames in the order of their times, numbered from 0 (`seq` too).

    A packet that cannot be decoded, and a frame that the decoder calls damaged, is an item that
    fails when loaded. A file without a video that can be read is one such item.
    """
    try:
        with av.open(url(path), hwaccel=decoding(reading.hwaccel)) as container:
            yield from _items(container, path, key, keep_rotation=reading.keep_rotation)
    except ItemError as error:
        yield Item(seq=0, key=key, load=_failing(str(error)))
    except (av.FFmpegError, OSError) as error:
        yield Item(seq=0, key=key, load=_failing(f"cannot be opened: {error.strerror}."))
    except RuntimeError as error:  # PyAV's for a codec that the device does not decode
        if reading.hwaccel is None:
            raise
        why = f"--hwaccel {reading.hwaccel} does not decode it ({error}). Leave it out."
        yield Item(seq=0, key=key, load=_failing(why))


def _items(
    container: InputContainer, path: Path, key: str, *, keep_rotation: bool
) -> Iterator[Item]:
    if not container.streams.video:
        raise ItemError("holds no video.")
    clip: VideoClip | None = None
    # One frame is held back, to know the last; and those before the first that tells of the clip.
    waiting: deque[Shown] = deque()
    numbers = count()
    for shown in timeline(container):
        waiting.append(shown)
        if clip is None and shown.frame is not None:
            clip = _clip(container, path, key, shown.frame)
            if keep_rotation:
                clip = replace(clip, turn=shown.frame.rotation, sample_aspect=_aspect(container))
        while clip is not None and len(waiting) > 1:
            one = waiting.popleft()
            place = _place(clip, one, next(numbers), until=waiting[0].start)
            yield _item(clip, one, place)
    if clip is None:
        raise ItemError("no frame of it can be decoded.")
    one = waiting.popleft()
    place = _place(clip, one, next(numbers), until=_end(container.streams.video[0], one))
    yield _item(clip, one, replace(place, last=True))


def timeline(container: InputContainer) -> Iterator[Shown]:
    """Every frame of its first video in the order of its time, the lost ones too."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    timeline = Timeline()
    promises: dict[int, _Promise] = {}
    # Where a packet says nothing of it.
    nothing = _Promise(_step(stream))
    packets, next_start = 0, 0
    for packet in _packets(container, stream, timeline):
        if packet is not None:
            packets += 1
            if packet.pts is not None and packet.size and not packet.is_discard:
                timeline.promise(packet.pts)
                sha256 = hashlib.sha256(packet).hexdigest()
                promises[packet.pts] = _Promise(packet.duration or nothing.duration, sha256)
        for frame in _decoded(stream, packet, timeline):
            # A raw stream knows no times, a broken one repeats them.
            start = max(next_start, next_start if frame.pts is None else frame.pts)
            sound = not frame.is_corrupt
            for lost, why in timeline.came(start, fresh=bool(frame.key_frame) and sound):
                yield Shown(lost, promises.pop(lost, nothing), None, why)
            promise = promises.pop(start, nothing)
            yield Shown(start, promise, frame, "" if sound else "it is damaged.")
            next_start = start + 1
    for lost, why in timeline.end():
        yield Shown(lost, promises.pop(lost, nothing), None, why)
        next_start = lost + 1
    # Other containers count what is no frame, or guess.
    if "mp4" in container.format.name and packets < stream.frames:
        why = f"the file ends after {packets} of {stream.frames} frames."
        yield Shown(next_start, nothing, None, why)


def _packets(
    container: InputContainer, stream: VideoStream, timeline: Timeline
) -> Iterator[av.Packet[VideoStream] | None]:
    """All that can be read; None at the end, which makes the decoder give what it holds back."""
    try:
        for packet in container.demux(stream):
            if packet.dts is not None or packet.pts is not None or packet.size:
                yield packet
    except av.FFmpegError as error:
        timeline.complain(f"the file cannot be read further: {error.strerror}.")
    yield None


def _decoded(
    stream: VideoStream, packet: av.Packet[VideoStream] | None, timeline: Timeline
) -> Iterator[av.VideoFrame]:
    try:
        yield from stream.decode(packet)
    except av.FFmpegError as error:
        timeline.complain(f"it cannot be decoded: {error.strerror}.")


def _step(stream: VideoStream) -> int:
    """Ticks from one frame to the next, where nothing says it."""
    rate = stream.average_rate or stream.guessed_rate or Fraction(25)
    return max(1, round(1 / (rate * (stream.time_base or Fraction(1, 1000)))))


def _clip(container: InputContainer, path: Path, key: str, first: av.VideoFrame) -> VideoClip:
    stream = container.streams.video[0]
    aspect = _aspect(container)
    return VideoClip(
        key=key,
        kind=VIDEO,
        tick=stream.time_base or Fraction(1, 1000),
        promised=stream.frames,
        path=path,
        colours=colours_of(first),
        rate=stream.average_rate,
        sample_aspect=1 / aspect if _quarter_turns(first) % 2 else aspect,
    )


def _aspect(container: InputContainer) -> Fraction:
    """Of the pixels as they are stored."""
    return container.streams.video[0].sample_aspect_ratio or Fraction(1)


def _place(clip: VideoClip, shown: Shown, index: int, *, until: int) -> Frame:
    return Frame(
        clip=clip, index=index, start=shown.start, duration=until - shown.start, last=False
    )


def _end(stream: VideoStream, last: Shown) -> int:
    """When the last frame ends: with the stream, or after as long as its packet says."""
    if stream.duration is not None:
        end = (stream.start_time or 0) + stream.duration
        if end > last.start:
            return end
    return last.start + last.promise.duration


def _item(clip: VideoClip, shown: Shown, place: Frame) -> Item:
    frame, sha256 = shown.frame, shown.promise.sha256
    held = sum(plane.buffer_size for plane in frame.planes) if frame is not None else 0
    return Item(
        seq=place.index,
        key=frame_key(clip.key, place.index),
        load=_failing(shown.why) if frame is None or shown.why else _loading(clip, frame, sha256),
        frame=place,
        held_bytes=held,
    )


def _loading(clip: VideoClip, frame: av.VideoFrame, sha256: str) -> Callable[[], Picture]:
    def load() -> Picture:
        turns = 0 if clip.turn else _quarter_turns(frame)
        pixels = np.rot90(clip.colours.to_rgb(frame), turns)
        return Picture(np.ascontiguousarray(pixels), Attached(sha256=sha256))

    return load


def _failing(why: str) -> Callable[[], Picture]:
    def load() -> Picture:
        raise ItemError(why)

    return load


def _quarter_turns(frame: av.VideoFrame) -> int:
    """How often the frame is to be turned by 90 degrees, anticlockwise, to be upright."""
    return round(frame.rotation / 90)
