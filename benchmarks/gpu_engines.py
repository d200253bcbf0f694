"""Engines of the GPU benchmarks: built once, and run in every way that is compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtfuse.build.backends import OnGpu
from trtfuse.core.flow import Failure, Task, Timing
from trtfuse.core.specs import (
    Array,
    BuildRequest,
    EngineManifest,
    Precision,
    ShapeRange,
    TensorSpec,
    TrtSettings,
)
from trtfuse.gpu import builder, devices, driver
from trtfuse.gpu.runner import OpenTrt
from trtfuse.gpu.tensorrt import Door, door, installed
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Ring, created, for_engine
from trtfuse.pool.spawn import run_in_child

DEVICE = "cuda:0"
BATCHES = (1, 8, 64)
# All measured figures are medians of so many rounds, each at least so long.
ROUNDS, ROUND_S = 5, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A network of `gpu_nets`: bytes (n, size, size, 3) in, (n, *answer) out."""

    name: str
    size: int
    answer: tuple[int, ...]
    dtype: str
    best: int
    """Batch that kernels are timed at."""
    level: int
    """TensorRT's optimization level."""


NETS = {
    net.name: net
    for net in (
        Net(name="resnet50", size=224, answer=(1000,), dtype="float32", best=64, level=3),
        # At level 3, one precision took more than three minutes.
        Net(name="unet", size=256, answer=(256, 256, 3), dtype="uint8", best=64, level=2),
    )
}
# FP32 is built for its answers alone.
FP32_LEVEL = 1
# After which a build is given up, so that the others get their turn.
BUILD_S = 280.0


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    gpu = devices.named(DEVICE)
    return {"gpu": f"{gpu.name}, {gpu.features}", "tensorrt": installed("tensorrt")}


def pictures(net: Net, count: int, seed: int = 0) -> Array:
    """Noise, smoothed to 8 x 8 blocks so that networks see something."""
    blocks = np.random.default_rng(seed).integers(
        0, 256, (count, net.size // 8, net.size // 8, 3), np.uint8
    )
    return blocks.repeat(8, axis=1).repeat(8, axis=2)


def graph_path(work: Path, net: Net, precision: Precision) -> Path:
    """The ONNX file."""
    return work / f"{net.name}-{precision.value}.onnx"


def plan_path(work: Path, net: Net, precision: Precision) -> Path:
    """The engine; it may not have been built."""
    return work / f"{net.name}-{precision.value}.plan"


def manifest(work: Path, net: Net, precision: Precision) -> EngineManifest:
    """For batches of 1 to 64."""
    item = (net.size, net.size, 3)
    shapes = ShapeRange(min=(1, *item), opt=(net.best, *item), max=(64, *item))
    level = FP32_LEVEL if precision is Precision.FP32 else net.level
    return EngineManifest(
        schema=1,
        model=net.name,
        source=graph_path(work, net, precision),
        engine=plan_path(work, net, precision).name,
        engine_sha256="",
        request=BuildRequest(
            model_sha256="",
            precision=precision,
            profile=(("x", shapes),),
            device_name="",
            device_features="",
            runtime="tensorrt",
            runtime_version="",
            settings=TrtSettings(optimization_level=level),
        ),
        fingerprint="",
        inputs=(TensorSpec(name="x", dtype="uint8", shape=("batch", *item)),),
        outputs=(TensorSpec(name="y", dtype=net.dtype, shape=("batch", *net.answer)),),
        output_max=((64, *net.answer),),
        card=None,
        gates=(),
        build_s=0.0,
        trtfuse="",
    )


def opener(work: Path, net: Net, precision: Precision, *, lanes: int | None = None) -> OpenTrt:
    """For an engine that `build` has made; without `lanes`, as many as `trtfuse infer` has."""
    about = manifest(work, net, precision)
    return OpenTrt(plan_path(work, net, precision), about, lanes=lanes or OnGpu().lanes)


def build(work: Path, net: Net, precision: Precision) -> float:
    """Build the engine in a child; seconds. One that is there is kept.

    Raises ChildDied after `BUILD_S`. One at a time: a builder times kernels, and another builder on
    the same GPU would be in its times.
    """
    about, plan = manifest(work, net, precision), plan_path(work, net, precision)
    if plan.exists():
        return 0.0
    started = time.perf_counter()
    args = (about, plan, work / "timings")
    run_in_child(_build, *args, name=f"builder of {plan.name}", timeout_s=BUILD_S)
    return time.perf_counter() - started


def _build(about: EngineManifest, plan: Path, timings: Path) -> None:
    part = plan.with_suffix(".part")
    builder.build(about.source, about.request, part, DEVICE, timings=timings)
    part.replace(plan)


def device_rate(opened: OpenTrt, batch: int) -> list[float]:
    """Items/s of the engine alone: one context, one graph, no copies; one value a round."""
    return run_in_child(_device_rate, opened, batch, name="device")


def _device_rate(opened: OpenTrt, batch: int) -> list[float]:
    driver.claim(DEVICE)
    trt = door("tensorrt")
    from trtfuse.gpu import cuda

    with cuda.context():
        return _alone(trt, opened, batch)


def _alone(trt: Door, opened: OpenTrt, batch: int) -> list[float]:
    from trtfuse.gpu import cuda

    about = opened.manifest
    context = trt.context(trt.load(opened.engine, anywhere=False))
    stream, begin, end = cuda.Stream(), cuda.Event(), cuda.Event()
    assert context.set_optimization_profile_async(0, stream.handle)
    assert context.set_input_shape("x", (batch, *about.profile["x"].max[1:]))
    buffers = []
    for tensor in (*about.inputs, *about.outputs):
        shape = tuple(context.get_tensor_shape(tensor.name))
        buffers.append(cuda.Buffer(tensor.bytes_for(shape)))
        assert context.set_tensor_address(tensor.name, buffers[-1].address)
    for _ in range(10):
        assert context.execute_async_v3(stream.handle)
    stream.synchronize()
    graph = cuda.capture(stream, lambda: bool(context.execute_async_v3(stream.handle)))
    assert graph is not None

    def seconds(count: int) -> float:
        stream.record(begin)
        for _ in range(count):
            graph.launch(stream)
        stream.record(end)
        end.synchronize()
        return end.ns_since(begin) / 1e9

    found = rounds(seconds, batch)
    graph.close()
    for buffer in buffers:
        buffer.close()
    return found


def naive_rate(opened: OpenTrt, batch: int, net: Net) -> list[float]:
    """Items/s of Polygraphy's TrtRunner.infer in a plain loop, NumPy in and out; wall clock."""
    return run_in_child(_naive_rate, opened, pictures(net, batch), name="naive")


def _naive_rate(opened: OpenTrt, x: Array) -> list[float]:
    driver.claim(DEVICE)
    trt = door("tensorrt")
    from trtfuse.gpu import cuda

    with cuda.context(), trt.owning(trt.context(trt.load(opened.engine, anywhere=False))) as owner:

        def seconds(count: int) -> float:
            started = time.perf_counter()
            for _ in range(count):
                owner.infer({"x": x})
            return time.perf_counter() - started

        return rounds(seconds, len(x))


def answers(opened: OpenTrt, x: Array, net: Net) -> Array:
    """The engine's outputs for one batch."""
    return run_in_child(_answers, opened, x, net, name="answers")


def _answers(opened: OpenTrt, x: Array, net: Net) -> Array:
    y = np.empty((len(x), *net.answer), net.dtype)
    with opened(DEVICE, np.empty(0, np.uint8)) as runner:
        runner.launch({"x": x}, lambda _, __: y).result()
    return y


def pool_rate(opened: OpenTrt, batch: int, net: Net) -> list[float]:
    """Items/s through the pool and its ring, pictures decoded beforehand; wall clock."""
    with pooled(opened, batch, workers=1) as (pool, ring):
        x = pictures(net, batch)
        return rounds(lambda count: flow(pool, ring, x, count)[0], batch)


@contextmanager
def pooled(opened: OpenTrt, batch: int, *, workers: int) -> Iterator[tuple[Pool, Ring]]:
    """A pool of `workers` on the device, and a ring for batches of `batch`."""
    layout = for_engine(
        opened.manifest,
        batch=batch,
        # As many as the workers take, and one being filled for each.
        wanted=workers * (opened.lanes + 2),
        memory_bytes=4 << 30,
    )
    seats = [Seat(device=DEVICE, open_runner=opened) for _ in range(workers)]
    with created(layout) as ring, Pool(seats, ring) as pool:
        yield pool, ring


def flow(pool: Pool, ring: Ring, x: Array, count: int) -> tuple[float, list[Timing]]:
    """Seconds for `count` batches, all slots under way; and where each batch's time went."""
    timings: list[Timing] = []
    slots = min(ring.layout.slots, count)
    for slot in range(slots):
        ring.set_input_shape(slot, "x", x.shape[1:])
        ring.inputs(slot, 0, len(x))["x"][:] = x
    started = time.perf_counter()
    for slot in range(slots):
        pool.submit(Task(seq=slot, slot=slot, count=len(x)))
    for seq in range(slots, count):
        pool.submit(Task(seq=seq, slot=answered(pool, timings), count=len(x)))
    for _ in range(slots):
        answered(pool, timings)
    return time.perf_counter() - started, timings


def answered(pool: Pool, timings: list[Timing]) -> int:
    """The slot of the next answer; its timing is added to `timings`."""
    result = pool.results.get()
    if result is None or isinstance(result, BaseException):
        raise result or RuntimeError("the pool has ended")
    if isinstance(result.outcome, Failure):
        raise TypeError(result.outcome.message)
    timings.append(result.outcome)
    return result.task.slot


def rounds(seconds: Callable[[int], float], items: int) -> list[float]:
    """Items/s of each round; `seconds(count)` runs `count` batches of `items`."""
    count = 20
    while (taken := seconds(count)) < ROUND_S / 4:
        count *= 2
    count = max(1, int(count * ROUND_S / taken))
    return [count * items / seconds(count) for _ in range(ROUNDS)]
