"""The one table of runtimes: who has devices, builds engines for them and opens them.

Everything heavy is imported inside, so that finding an engine up to date costs no import of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from trtfuse.build.plan import Target
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.flow import OpenRunner
from trtfuse.core.specs import BuildRequest, DeviceSpec, EngineManifest, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One runtime, and the devices it runs on."""

    kind: str
    """What `--devices` calls them: "cpu"."""
    package: str
    """The distribution whose version an engine belongs to."""
    engine: str
    """File name of an engine."""
    devices: Callable[[], tuple[DeviceSpec, ...]]
    """The devices of this machine, in order."""
    builder: Callable[[Path, BuildRequest, Path], None]
    """(self-contained ONNX file, request, engine to write). Raises BuildFailed."""
    opener: Callable[[Path, EngineManifest, int], OpenRunner]
    """(engine, its manifest, workers that share the device) -> opens it in a worker."""
    precisions: tuple[Precision, ...] = (Precision.FP32,)
    """What it computes in, fastest first: the order in which `--precision best` tries them."""
    remarks: Mapping[Precision, str] = field(default_factory=dict)
    """What to know of a precision that it computes in all the same."""
    refused: Mapping[Precision, str] = field(default_factory=dict)
    """Precisions that it does not compute in, with the reason."""
    rest: Precision = Precision.FP32
    """What the graph says of the layers that INT8 leaves: FP16 for a strongly typed builder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One entry of `--devices`: a kind of device and how many workers it gets."""

    kind: str
    workers: int | None = None
    """None: not said."""


def parse_devices(text: str) -> tuple[DeviceRequest, ...]:
    """`--devices`, as "cpu" or "cpu:2" (two workers). Raises UnknownName, UsageError."""
    requests = []
    for word in text.split(","):
        kind, colon, count = word.strip().partition(":")
        if kind not in _KINDS:
            raise UnknownName.among("--devices", kind, _KINDS)
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
    runtime, backend = _KINDS[request.kind]
    installed = version(backend.package)
    return tuple(
        Target(device=device, runtime=runtime, runtime_version=installed)
        for device in backend.devices()
    )


def _cpus() -> tuple[DeviceSpec, ...]:
    from trtfuse.cpu.devices import describe

    return (describe(),)


def _build_on_cpu(model: Path, request: BuildRequest, engine: Path) -> None:
    from trtfuse.cpu.builder import build

    del request  # the graph says its precision, and ONNX Runtime takes any shape
    build(model, engine)


def _open_on_cpu(engine: Path, manifest: EngineManifest, workers: int) -> OpenRunner:
    from trtfuse.core.cores import threads_per_worker
    from trtfuse.cpu.runner import OpenOrt

    return OpenOrt(engine, manifest, threads_per_worker(workers))


# By the name that manifests use, best first.
BACKENDS = {
    "onnxruntime": Backend(
        kind="cpu",
        package="onnxruntime",
        engine="engine.onnx",
        devices=_cpus,
        builder=_build_on_cpu,
        opener=_open_on_cpu,
        precisions=(Precision.INT8, Precision.FP32),
        remarks={
            Precision.FP16: "ONNX Runtime computes fp16 in fp32 on CPUs, between conversions: the "
            "engine shows what fp16 answers, and is no faster. fp16 is for GPUs."
        },
        refused={Precision.BF16: "ONNX Runtime has no bfloat16 kernels on CPUs; bf16 is for GPUs"},
    ),
}
_KINDS = {backend.kind: (runtime, backend) for runtime, backend in BACKENDS.items()}
