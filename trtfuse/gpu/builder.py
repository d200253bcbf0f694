"""ONNX in, TensorRT engine out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trtfuse.core.errors import BuildFailed, UsageError
from trtfuse.core.specs import BuildRequest, DeviceSpec, ShapeRange, TrtSettings
from trtfuse.gpu import driver
from trtfuse.gpu.tensorrt import door

if TYPE_CHECKING:
    from trtfuse.gpu.network import Profile, Watch


def build(
    model: Path,
    request: BuildRequest,
    engine: Path,
    device: str,
    *,
    timings: Path | None = None,
    watch: Watch | None = None,
) -> None:
    """Write the engine of `model` for the GPU `device` ("cuda:0") to `engine`.

    For TensorRT-RTX, no GPU is used and `device` says nothing: the engine is for the compute
    capabilities of the request. Run it in a child: a builder that crashes takes its process along,
    and 8.6 cannot be stopped otherwise. `timings` is a folder of what was timed before, for all
    models; `watch` gets the share that is done, from TensorRT 10 on.

    Raises BuildFailed with TensorRT's own words, DeviceError where there is no such GPU.
    """
    gpu = None if request.runtime == "tensorrt_rtx" else driver.claim(device)
    trt = door(request.runtime)
    settings = request.settings or TrtSettings()
    check_settings(settings, request.runtime, trt.capabilities())
    from trtfuse.gpu.network import Network

    network = Network(trt, model)
    check_profile(request.profile, network.inputs, source=model.name)
    file = timings / timing_file(trt.version, gpu) if timings and gpu else None
    plan = network.build(request.profile, request.precision, settings, timings=file, watch=watch)
    engine.write_bytes(plan)


def check_settings(settings: TrtSettings, runtime: str, capabilities: tuple[str, ...]) -> None:
    """Raise UsageError for a setting that `runtime` does not have."""
    if runtime != "tensorrt_rtx":
        if settings.compute_capabilities:
            raise UsageError(
                "--compute-capability is for --runtime rtx: TensorRT builds for one GPU."
            )
        return
    if settings.hardware != "exact" or settings.version_compatible:
        raise UsageError(
            "--hardware and --version-compatible are not for --runtime rtx: "
            "name the GPUs with --compute-capability."
        )
    for name in settings.compute_capabilities:
        if name not in capabilities:
            raise UsageError(
                f"--compute-capability {name}: TensorRT-RTX does not build for it. "
                f"It builds for {', '.join(capabilities)}."
            )


def check_profile(profile: Profile, inputs: dict[str, tuple[int, ...]], *, source: str) -> None:
    """Raise BuildFailed unless the profile has a shape for every input that the network can take.

    TensorRT would build for sizes of 1 where one is missing, and speak of axes where one is off.
    `inputs` holds the network's shapes, -1 where a size is open.
    """
    given = dict(profile)
    if set(given) != set(inputs):
        raise BuildFailed(
            f"{source}: the profile is of {', '.join(sorted(given))}, "
            f"TensorRT finds the inputs {', '.join(sorted(inputs))}."
        )
    for name, shape in inputs.items():
        if not _takes(shape, given[name]):
            raise BuildFailed(
                f"{source}: input {name!r}: the profile goes from {given[name].min} to "
                f"{given[name].max}, TensorRT finds the shape {shape} (-1 is any size)."
            )


def timing_file(version: str, gpu: DeviceSpec) -> str:
    """Name of the file of timings of this TensorRT on such a GPU with such a driver.

    Entries of another GPU would be taken as true, and may be wrong ones.
    """
    words = re.findall("[a-z0-9.]+", f"{version} {gpu.name} {gpu.features}".lower())
    return f"timings-{'-'.join(words)}.cache"


def _takes(shape: tuple[int, ...], accepted: ShapeRange) -> bool:
    return len(shape) == len(accepted.min) and all(
        size in (-1, low) and size in (-1, high)
        for size, low, high in zip(shape, accepted.min, accepted.max, strict=True)
    )
