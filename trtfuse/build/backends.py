"""The one table of runtimes: who has devices, builds engines for them and opens them.

Everything heavy is imported inside, so that finding an engine up to date costs no import of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from trtfuse.build.plan import Target
from trtfuse.core.errors import MissingExtra, UnknownName, UsageError
from trtfuse.core.flow import OpenRunner
from trtfuse.core.options import BuildOptions
from trtfuse.core.report import Meters
from trtfuse.core.specs import BuildRequest, DeviceSpec, EngineManifest, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class OnGpu:
    """How a GPU runs an engine, beside what its manifest says."""

    lanes: int = 4
    """Batches in flight inside a worker: the host starts some while the GPU computes others."""
    fewest: int = 1
    """Lanes without which a worker does not start: where memory is short, it has fewer."""
    cuda_graph: bool = True


class Opener(Protocol):
    """What makes the `OpenRunner` of an engine."""

    def __call__(
        self, engine: Path, manifest: EngineManifest, workers: int, on_gpu: OnGpu = ..., /
    ) -> OpenRunner:
        """`workers` share the device."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One runtime, and the devices it runs on."""

    kind: str
    """What `--devices` calls them: "cpu"."""
    version: Callable[[], str | None]
    """Of what is installed, and an engine belongs to; None: it is not there."""
    engine: str
    """File name of an engine."""
    devices: Callable[[], tuple[DeviceSpec, ...]]
    """The devices of this machine, in order."""
    builder: Callable[[Path, BuildRequest, Path, str, Path | None], None]
    """(self-contained ONNX file, request, engine to write, device, folder of what was timed before
    on GPUs, for all models). Raises BuildFailed."""
    opener: Opener
    precisions: tuple[Precision, ...] = (Precision.FP32,)
    """What it computes in, fastest first: the order in which `--precision best` tries them."""
    remarks: Mapping[Precision, str] = field(default_factory=dict)
    """What to know of a precision that it computes in all the same."""
    refused: Callable[[str], Mapping[Precision, str]] = lambda _: {}
    """(its version) -> precisions that it does not compute in, with the reason."""
    rest: Callable[[str], Precision] = lambda _: Precision.FP32
    """(its version) -> what the graph says of the layers that INT8 leaves: FP16 for a builder that
    takes precisions from the graph alone."""
    gated: bool = True
    """Whether its devices are here, so that a new engine can be run."""
    fitting: Callable[[OpenRunner, str], int] | None = None
    """(opens a runner, device) -> how many of it have room there; to be run in a child. None: room
    is no question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One entry of `--devices`: a kind of device and how many workers it gets."""

    kind: str
    workers: int | None = None
    """None: not said."""


def parse_devices(text: str) -> tuple[DeviceRequest, ...]:
    """`--devices`, as "cpu" or "cpu:2" (two workers). Raises UnknownName, UsageError."""
    known = [kind for kind in _KINDS if kind == "cpu"]
    requests = []
    for word in text.split(","):
        kind, colon, count = word.strip().partition(":")
        if kind in _KINDS and kind not in known:
            raise UsageError(f"--devices {word}: GPUs are chosen with --gpus, as --gpus 0,1.")
        if kind not in known:
            raise UnknownName.among("--devices", kind, known)
        if colon and not (count.isascii() and count.isdigit() and int(count)):
            raise UsageError(
                f"--devices {word}: needs a number of workers above 0 after the colon."
            )
        requests.append(DeviceRequest(kind=kind, workers=int(count) if colon else None))
    if len({request.kind for request in requests}) < len(requests):
        raise UsageError(f"--devices {text}: names a device twice.")
    return tuple(requests)


def chosen(text: str | None) -> tuple[DeviceRequest, ...]:
    """What `--devices` asks for; without it, the first kind of the table that is there."""
    if text is not None:
        return parse_devices(text)
    return (next(DeviceRequest(kind=b.kind) for b in BACKENDS.values() if b.devices()),)


def targets(request: DeviceRequest) -> tuple[Target, ...]:
    """The devices of the kind asked for, each with its runtime."""
    return of_kind(request.kind)


def of_kind(kind: str) -> tuple[Target, ...]:
    """The usable devices of a kind, each with its runtime; none is no error."""
    runtime, backend = _KINDS[kind]
    return tuple(target(runtime, device) for device in backend.devices())


def gpus(text: str) -> tuple[Target, ...]:
    """The GPUs that `--gpus` names, each with TensorRT.

    Raises DeviceError where there is no GPU, MissingExtra without TensorRT, UnknownName and
    UsageError where the text is off.
    """
    from trtfuse.gpu.devices import choose, scan

    return tuple(target("tensorrt", device) for device in choose(text, scan()))


def remarks_on_gpus(*, used: bool) -> tuple[str, ...]:
    """How GPUs are numbered where they are `used`, or why they are not, if there is more to it."""
    from trtfuse.gpu.devices import remark, scan

    said = remark(scan(), tensorrt=_tensorrt(), used=used)
    return (said,) if said else ()


@contextmanager
def metered(devices: Iterable[str]) -> Iterator[Meters]:
    """What the GPUs among `devices` say of themselves, while the context is open."""
    numbers = sorted({device for device in devices if device.startswith("cuda:")})
    if not numbers:
        yield dict
        return
    from trtfuse.gpu.meters import meters

    with meters(numbers) as read:
        yield read


def to_build(options: BuildOptions) -> tuple[Target, ...]:
    """What `trtfuse build` builds for. Raises as `gpus` and `parse_devices`."""
    if options.runtime == "rtx":
        return (target("tensorrt_rtx", _rtx(options.settings.compute_capabilities)),)
    if options.gpus is not None:
        return gpus(options.gpus)
    return tuple(found for one in chosen(options.devices) for found in targets(one))


def target(runtime: str, device: DeviceSpec) -> Target:
    """The device with the runtime installed for it. Raises MissingExtra where none is."""
    installed = BACKENDS[runtime].version()
    if installed is None:
        package, extra = (
            ("TensorRT-RTX", "rtx") if runtime == "tensorrt_rtx" else ("TensorRT", "gpu")
        )
        raise MissingExtra(
            f"{device.name}: needs {package}, which is not installed. "
            f"Install it with: pip install 'trtfuse[{extra}]'"
        )
    return Target(device=device, runtime=runtime, runtime_version=installed)


def _cpus() -> tuple[DeviceSpec, ...]:
    from trtfuse.cpu.devices import describe

    return (describe(),)


def _gpus() -> tuple[DeviceSpec, ...]:
    """A GPU without TensorRT is no device to build for, unless it is asked for."""
    if _tensorrt() is None:
        return ()
    from trtfuse.gpu.devices import scan

    return scan().gpus


def _rtx(capabilities: tuple[str, ...]) -> DeviceSpec:
    """What stands for all GPUs of these compute capabilities; of none, for all RTX GPUs."""
    return DeviceSpec(
        name=" ".join(("RTX", *capabilities)),
        kind="rtx",
        features=" ".join(f"sm{one.replace('.', '')}" for one in capabilities),
    )


def _onnxruntime() -> str:
    return version("onnxruntime")


def _tensorrt() -> str | None:
    from trtfuse.gpu.tensorrt import installed

    return installed("tensorrt")


def _tensorrt_rtx() -> str | None:
    from trtfuse.gpu.tensorrt import installed

    return installed("tensorrt_rtx")


def _build_on_cpu(
    model: Path, request: BuildRequest, engine: Path, device: str, timings: Path | None
) -> None:
    from trtfuse.cpu.builder import build

    # The graph says its precision, and ONNX Runtime takes any shape and times nothing.
    del request, device, timings
    build(model, engine)


def _build_on_gpu(
    model: Path, request: BuildRequest, engine: Path, device: str, timings: Path | None
) -> None:
    from trtfuse.gpu.builder import build
    from trtfuse.pool.spawn import tell

    told = 0

    def watch(share: float) -> None:
        nonlocal told
        if (percent := int(100 * share)) > told:
            told = percent
            tell(percent, 100)

    build(model, request, engine, device, timings=timings, watch=watch)


def _open_on_cpu(
    engine: Path, manifest: EngineManifest, workers: int, on_gpu: OnGpu = OnGpu(), /
) -> OpenRunner:
    from trtfuse.core.cores import threads_per_worker
    from trtfuse.cpu.runner import OpenOrt

    del on_gpu
    return OpenOrt(engine, manifest, threads_per_worker(workers))


def _open_on_gpu(
    engine: Path, manifest: EngineManifest, workers: int, on_gpu: OnGpu = OnGpu(), /
) -> OpenRunner:
    from trtfuse.gpu.runner import OpenTrt

    return OpenTrt(engine, manifest, on_gpu.lanes, on_gpu.fewest, on_gpu.cuda_graph, workers)


def _fitting(open_runner: OpenRunner, device: str) -> int:
    from trtfuse.gpu.room import fitting

    return fitting(open_runner, device)


def _rest(runtime: str) -> Callable[[str], Precision]:
    def rest(installed: str) -> Precision:
        from trtfuse.gpu.tensorrt import typed

        return Precision.FP16 if typed(runtime, installed) else Precision.FP32

    return rest


def _without_bfloat16(installed: str) -> Mapping[Precision, str]:
    from trtfuse.gpu.tensorrt import has_bfloat16

    if has_bfloat16("tensorrt", installed):
        return {}
    return {Precision.BF16: f"TensorRT {installed} has no bfloat16; it needs 10"}


_ON_GPUS = (Precision.INT8, Precision.FP16, Precision.FP32)

# By the name that manifests use, best first.
BACKENDS = {
    "tensorrt": Backend(
        kind="cuda",
        version=_tensorrt,
        engine="engine.plan",
        devices=_gpus,
        builder=_build_on_gpu,
        opener=_open_on_gpu,
        precisions=_ON_GPUS,
        refused=_without_bfloat16,
        rest=_rest("tensorrt"),
        fitting=_fitting,
    ),
    "tensorrt_rtx": Backend(
        kind="rtx",
        version=_tensorrt_rtx,
        engine="engine.plan",
        devices=tuple,  # none of this machine: engines are for GPUs that are named
        builder=_build_on_gpu,
        opener=_open_on_gpu,
        precisions=_ON_GPUS,
        rest=_rest("tensorrt_rtx"),
        gated=False,
    ),
    "onnxruntime": Backend(
        kind="cpu",
        version=_onnxruntime,
        engine="engine.onnx",
        devices=_cpus,
        builder=_build_on_cpu,
        opener=_open_on_cpu,
        precisions=(Precision.INT8, Precision.FP32),
        remarks={
            Precision.FP16: "ONNX Runtime computes fp16 in fp32 on CPUs, between conversions: the "
            "engine shows what fp16 answers, and is no faster. fp16 is for GPUs."
        },
        refused=lambda _: {
            Precision.BF16: "ONNX Runtime has no bfloat16 kernels on CPUs; bf16 is for GPUs"
        },
    ),
}
_KINDS = {backend.kind: (runtime, backend) for runtime, backend in BACKENDS.items()}
