"""Small videos for the tests of this package, and what is in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, Entry, Failure, Outcome, PictureFile
from trtfuse.core.options import ReadingOptions, WritingOptions
from trtfuse.core.specs import Array
from trtfuse.io.folder import FolderSource
from trtfuse.io.sink import FolderSink

DATA = Path(__file__).parents[1] / "data/video"
TICK = Fraction(1, 1000)


@dataclass(frozen=True)
class Film:
    """What a player would find."""

    times: list[float]
    pixels: list[Array]
    sound: list[tuple[float, bytes]]
    seconds: float

    @property
    def greys(self) -> list[int]:
        """The mean of every frame."""
        return [round(float(pixels.mean())) for pixels in self.pixels]


def play(path: Path) -> Film:
    with av.open(str(path)) as container:
        seconds = (container.duration or 0) / 1e6
        frames = list(container.decode(video=0))
    sound = []
    with av.open(str(path)) as container:
        for packet in container.demux(list(container.streams.audio)) if has_sound(path) else ():
            if packet.pts is not None:
                sound.append((float(packet.pts * packet.time_base), bytes(packet)))
    return Film(
        times=[round(frame.time, 6) for frame in frames],
        pixels=[frame.to_ndarray(format="rgb24") for frame in frames],
        sound=sound,
        seconds=seconds,
    )


def has_sound(path: Path) -> bool:
    with av.open(str(path)) as container:
        return bool(container.streams.audio)


def film(
    path: Path,
    frames: Sequence[Array | av.VideoFrame],
    *,
    times: Sequence[int] = (),
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
) -> Path:
    """Frames of 40 ms, or at `times` in milliseconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options or {"crf": "10"})
        assert isinstance(stream, av.VideoStream)
        first = frames[0]
        shape = first.shape[:2] if isinstance(first, np.ndarray) else (first.height, first.width)
        stream.height, stream.width = shape
        stream.pix_fmt = pixel_format
        stream.codec_context.time_base = TICK
        for n, given in enumerate(frames):
            frame = given
            if isinstance(frame, np.ndarray):
                frame = av.VideoFrame.from_ndarray(frame, format="rgb24")
            else:
                stream.codec_context.colorspace = frame.colorspace
                stream.codec_context.color_range = frame.color_range
            frame.pts = times[n] if times else 40 * n
            frame.time_base = TICK
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def greys(count: int, size: tuple[int, int] = (36, 64)) -> list[Array]:
    """Frames that tell their number: 0, 2, 4, ..."""
    return [np.full((*size, 3), 2 * n, np.uint8) for n in range(count)]


def through(
    source: Path,
    output: Path,
    writing: WritingOptions,
    *,
    model: Callable[[Array], Array] = lambda pixels: pixels,
    bad: Sequence[int] = (),
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008 - frozen
) -> list[Outcome]:
    """Each picture of `source` answered by `model`; the items of these numbers fail."""
    outcomes = []
    with FolderSink(output, writing) as sink:
        for item in FolderSource(source, reading):
            entry: Entry | Failure
            try:
                picture = item.load()
                answer = Answer(file=PictureFile(pixels=model(picture.pixels)))
                entry = sink.store(item, picture.attached, answer)
            except ItemError as error:
                entry = Failure(kind="ItemError", message=str(error))
            if item.seq in bad:
                entry = Failure(kind="ItemError", message="bad")
            outcomes.append(sink.commit(Outcome(item=item, entry=entry)))
    return outcomes


def failures(outcomes: Sequence[Outcome]) -> dict[int, str]:
    """Why, by number."""
    return {one.item.seq: one.entry.message for one in outcomes if isinstance(one.entry, Failure)}
