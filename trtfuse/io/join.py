"""Segments of a video into one file, with the source's sound and subtitles; nothing is encoded."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
from av.container import InputContainer, OutputContainer
from av.stream import Stream
from av.video.stream import VideoStream

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Frame
from trtfuse.io.containers import FORMATS, url
from trtfuse.io.video import VideoClip

_COPIED = ("audio", "subtitle")
# What a file says of itself that would no longer be true.
_UNTRUE = ("rotate", "encoder", "major_brand", "minor_version", "compatible_brands")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a video, encoded apart, and the frames in it in the order of their times."""

    path: Path
    frames: Sequence[Frame]


@dataclass(frozen=True, slots=True)
class _Timed:
    """A packet that is ready for the file, and the seconds it is wanted at."""

    seconds: Fraction
    packet: av.Packet[Stream]

    def __lt__(self, other: _Timed) -> bool:
        return self.seconds < other.seconds


def decode_times(starts: Sequence[int]) -> list[int]:
    """When to decode each packet: presentation times in the order of decoding -> decoding times.

    They rise strictly, and none lies after its packet's own time. Where packets are in the order
    of presentation these are the presentation times; else the times come as many packets early
    as the longest wait needs. The last is as late as it can be: MP4 takes its length from there.
    """
    ordered = sorted(starts)
    place = {start: n for n, start in enumerate(ordered)}
    delay = max((n - place[start] for n, start in enumerate(starts)), default=0)
    before = [ordered[0] - k for k in range(delay, 0, -1)] if ordered else []
    return (before + ordered)[: len(starts)][:-1] + list(starts[-1:])


def join(segments: Sequence[Segment], clip: VideoClip, path: Path) -> None:
    """Write `path`, whose suffix says the container.

    Raises ItemError where a segment does not hold the frames that it should, or where the
    container does not take one of the source's streams.
    """
    frames = [frame for segment in segments for frame in segment.frames]
    starts = [start for segment in segments for start in _starts(segment)]
    with ExitStack() as stack:
        source = stack.enter_context(av.open(url(clip.path)))
        first = stack.enter_context(av.open(url(segments[0].path)))
        # Bit exact: no random identifiers, and no version of FFmpeg, in the file.
        options = {"fflags": "bitexact"}
        container = FORMATS[path.suffix.lower()]
        target = stack.enter_context(av.open(url(path), "w", format=container, options=options))
        stream = target.add_stream_from_template(first.streams.video[0])
        stream.time_base = clip.tick
        stream.sample_aspect_ratio = clip.sample_aspect
        if clip.turn:
            assert isinstance(stream, VideoStream)
            stream.set_display_rotation(clip.turn)
        copies = _copied(source, target)
        _describe(source, target)
        times = _times(clip.tick, starts, frames, closes=container in ("mp4", "mov"))
        pictures = _pictures(segments, stream, times)
        for timed in heapq.merge(pictures, _packets(source, copies)):
            target.mux(timed.packet)


@dataclass(frozen=True, slots=True)
class _Times:
    """Of all packets of the video, in the order of decoding, in ticks."""

    tick: Fraction
    starts: Sequence[int]
    decode: Sequence[int]
    durations: Sequence[int]


def _starts(segment: Segment) -> list[int]:
    """When each of the segment's packets is shown, in the order of decoding.

    The file's own times are good for their order only: its container shifts them.
    """
    with av.open(url(segment.path)) as container:
        video = container.streams.video[0]
        times = [packet.pts for packet in container.demux(video) if packet.pts is not None]
    if len(times) != len(segment.frames):
        raise ItemError(
            f"its segment {segment.path} holds {len(times)} frames, and {len(segment.frames)} "
            "were written. Remove it and run again."
        )
    place = {time: frame.start for time, frame in zip(sorted(times), segment.frames, strict=True)}
    return [place[time] for time in times]


def _times(
    tick: Fraction, starts: Sequence[int], frames: Sequence[Frame], *, closes: bool
) -> _Times:
    """`closes`: the container takes its end from the packet that is decoded last."""
    end = frames[-1].start + frames[-1].duration
    following = [frame.start for frame in frames[1:]] + [end]
    until = {frame.start: then for frame, then in zip(frames, following, strict=True)}
    decode = decode_times(starts)
    durations = [until[start] - start for start in starts]
    if closes:
        durations[-1] = end - decode[-1]
    return _Times(tick, starts, decode, durations)


def _pictures(segments: Sequence[Segment], stream: Stream, times: _Times) -> Iterator[_Timed]:
    number = 0
    for segment in segments:
        with av.open(url(segment.path)) as container:
            for packet in container.demux(container.streams.video[0]):
                if packet.pts is None:
                    continue
                packet.time_base = times.tick
                packet.pts, packet.dts = times.starts[number], times.decode[number]
                packet.duration = times.durations[number]
                packet.stream = stream
                number += 1
                yield _Timed(packet.dts * times.tick, packet)


def _copied(source: InputContainer, target: OutputContainer) -> dict[int, Stream]:
    """Streams of `target` for the source's sound and subtitles, by the source's index."""
    copies: dict[int, Stream] = {}
    for stream in source.streams:
        if stream.type not in _COPIED:
            continue
        try:
            copy = target.add_stream_from_template(stream)
        except (ValueError, av.FFmpegError) as error:
            raise ItemError(
                f"its {stream.type} stream {stream.index} ({stream.name}) does not go into "
                f"{target.format.name} ({error})."
            ) from error
        copy.metadata.update(stream.metadata)
        copy.disposition = stream.disposition
        copies[stream.index] = copy
    return copies


def _packets(source: InputContainer, copies: Mapping[int, Stream]) -> Iterator[_Timed]:
    """The copied streams' packets as they come; damage there ends them, and is no news."""
    if not copies:
        return
    seconds = Fraction(0)
    with suppress(av.FFmpegError):
        for packet in source.demux([source.streams[index] for index in copies]):
            if packet.dts is None:
                continue
            # Rising, for `merge`; streams are interleaved already.
            seconds = max(seconds, packet.dts * packet.time_base)
            packet.stream = copies[packet.stream.index]
            yield _Timed(seconds, packet)


def _describe(source: InputContainer, target: OutputContainer) -> None:
    kept = {name: text for name, text in source.metadata.items() if name.lower() not in _UNTRUE}
    target.metadata.update(kept)
    target.set_chapters(source.chapters())
