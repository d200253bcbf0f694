"""Opens an engine of TensorRT on one GPU. Loads nothing of CUDA before it is called."""

from __future__ import annotations

import logging
import shlex
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtfuse.core.errors import EngineMismatch, OutOfMemory, UsageError
from trtfuse.core.extras import require
from trtfuse.core.specs import Array, EngineManifest, TrtSettings
from trtfuse.core.units import mib
from trtfuse.gpu import devices, driver
from trtfuse.gpu.tensorrt import Door, door

if TYPE_CHECKING:
    from trtfuse.gpu.cuda import Pinned
    from trtfuse.gpu.lanes import GpuRunner, Lane


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenTrt:
    """Opens a `GpuRunner` in a worker: an `OpenRunner`."""

    engine: Path
    manifest: EngineManifest
    lanes: int = 4
    """Batches in flight, each with memory of its own. With two, the lanes' batches end together,
    and the GPU waits for the host to start the next: see benchmarks/results/gpu_instances.json."""
    fewest: int = 1
    """Lanes without which it does not open; the others are opened where memory is left for them."""
    cuda_graph: bool = True
    """Whether the work of a shape that comes again and again is recorded, where it can be."""
    sharing: int = 1
    """Workers on the GPU: for lanes beyond the fewest, each takes its part of what is free."""

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.lanes:
            raise UsageError(f"--lanes {self.lanes}: needs a whole number above 0.")

    @contextmanager
    def __call__(self, device: str, ring: Array) -> Iterator[GpuRunner]:
        """Take the GPU for this process, load the engine, run every lane twice.

        Raises DeviceError where there is no such GPU, OutOfMemory where there is too little memory
        on it, EngineMismatch where TensorRT refuses the plan or the plan is not what the manifest
        says.
        """
        driver.claim(device)
        require("pycuda", extra="gpu", purpose="running engines")
        # Chosen before `cuda` imports Polygraphy, which reads it then.
        trt = door(self.manifest.request.runtime)
        from trtfuse.gpu import cuda

        what = f"{device}: {self.engine}"
        with (
            cuda.context(),
            letting_go(),
            cuda.translating(what),
            cuda.pinned(ring) as pinned,
            # A frame of its own: what it holds is gone before the context is.
            self._opened(trt, pinned, what) as runner,
        ):
            yield runner

    @contextmanager
    def _opened(self, trt: Door, pinned: Pinned, what: str) -> Iterator[GpuRunner]:
        from trtfuse.gpu import cuda
        from trtfuse.gpu.lanes import GpuRunner

        with ExitStack() as stack:
            try:
                engine = self._load(trt)
            except OutOfMemory as error:
                raise OutOfMemory(
                    f"{what}: {self._too_large(cuda.free_bytes())} ({error})"
                ) from error
            free, activation = cuda.free_bytes(), trt.activation_bytes(engine)
            if self.fewest * activation > free:
                raise OutOfMemory(f"{what}: {shortage(self.fewest, activation, free)}")
            try:
                with cuda.translating(what):
                    lanes = self._lanes(trt, engine, pinned, stack)
            except OutOfMemory as error:
                short = shortage(self.fewest, activation, free)
                raise OutOfMemory(f"{what}: {short} ({error})") from error
            lane_bytes = activation + lanes[0].buffer_bytes
            runner = GpuRunner(self.manifest, lanes, what, lane_bytes)
            stack.callback(runner.forget)
            yield runner

    def _too_large(self, free_bytes: int) -> str:
        return (
            f"the engine itself needs about {mib(self.engine.stat().st_size)}; {mib(free_bytes)} "
            f"are free. Use fewer --instances, or --gpus with more room."
        )

    def _load(self, trt: Door) -> Any:
        settings = self.manifest.request.settings or TrtSettings()
        again = (
            f"Build it again with: trtfuse build {shlex.quote(str(self.manifest.source))} --rebuild"
        )
        try:
            engine = trt.load(self.engine, anywhere=settings.hardware != "exact")
        except EngineMismatch as error:
            raise EngineMismatch(f"{error} {again}") from error
        found = {one.name: one for one in trt.tensors(engine)}
        for tensor in (*self.manifest.inputs, *self.manifest.outputs):
            one = found.get(tensor.name)
            if one is None or one.dtype != tensor.dtype or not one.on_device:
                raise EngineMismatch(
                    f"{self.engine}: {tensor.name!r} is {tensor.dtype} in the graph, and TensorRT "
                    f"{trt.version} has {one or 'none of that name'}. Cast it in the graph."
                )
        return engine

    def _lanes(self, trt: Door, engine: Any, pinned: Pinned, stack: ExitStack) -> list[Lane]:
        from trtfuse.gpu import cuda
        from trtfuse.gpu.lanes import Lane

        lanes: list[Lane] = []
        while len(lanes) < self.lanes:
            if len(lanes) >= self.fewest:
                one = trt.activation_bytes(engine) + lanes[0].buffer_bytes
                free = cuda.free_bytes() // self.sharing
                if not devices.instances(free, one):
                    log.warning("%s", fewer(self.engine, len(lanes), self.lanes, one, free))
                    break
            context = trt.context(engine)
            if not lanes:
                stack.enter_context(trt.owning(context))
            lane = Lane(context, self.manifest, pinned, trt.words, cuda_graph=self.cuda_graph)
            stack.callback(lane.close)
            lane.open()
            lanes.append(lane)
        return lanes


@contextmanager
def letting_go() -> Iterator[None]:
    """Empty the frames of an error that leaves the block; to be used inside `cuda.context`.

    Its traceback holds them, and with them engines and contexts of TensorRT, which would outlive
    the CUDA context that they were made in.
    """
    try:
        yield
    except BaseException as error:
        one: BaseException | None = error
        while one is not None:
            traceback.clear_frames(one.__traceback__)
            one = one.__cause__ or one.__context__
        raise


def fewer(engine: Path, opened: int, lanes: int, lane_bytes: int, free_bytes: int) -> str:
    """What to know where memory held fewer lanes than it might have had."""
    return (
        f"{engine}: runs with {opened} of {lanes} lanes: another needs {mib(lane_bytes)}, and "
        f"{mib(free_bytes)} are free"
    )


def shortage(lanes: int, lane_bytes: int, free_bytes: int) -> str:
    """What so many lanes need besides their inputs and outputs, what is free, what helps."""
    return (
        f"{lanes} lanes need {mib(lanes * lane_bytes)} to compute in, besides inputs and outputs; "
        f"{mib(free_bytes)} were free. Use fewer --lanes or --instances, or an engine of a smaller "
        f"--batch."
    )
