"""Machines that are not here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtfuse.core.specs import DeviceSpec
from trtfuse.doctor.facts import Facts, Gpu, Machine, Package, Space
from trtfuse.gpu.health import Driver, Health, Link

GIB = 1 << 30


def machine(**changes: Any) -> Machine:
    sound = Machine(
        python=(3, 11),
        cpu="Xeon",
        cores=32,
        memory_bytes=128 * GIB,
        shm=Space(path="/dev/shm", total=64 * GIB, free=64 * GIB),
        disk=Space(path="/work", total=900 * GIB, free=500 * GIB),
        open_files=65536,
        locked_bytes=None,
    )
    return replace(sound, **changes)


def packages(*more: Package) -> dict[str, Package]:
    basis = (
        Package(name="onnxruntime", version="1.20.0"),
        Package(name="onnx", version="1.17.0"),
        Package(name="numpy", version="2.0.0"),
    )
    return {one.name: one for one in (*basis, *more)}


FOR_GPUS = (
    Package(name="tensorrt", version="10.16.0", cuda=12),
    Package(name="polygraphy", version="0.53.0"),
    Package(name="pycuda", version="2026.1"),
    Package(name="nvidia-ml-py", version="13.0.0"),
)
HEALTHY = Health(
    uuid="GPU-0",
    free_bytes=80 * GIB,
    clock_mhz=1900,
    most_clock_mhz=1980,
    temperature_c=40,
    power_w=80.0,
    power_limit_w=700.0,
    default_power_limit_w=700.0,
    link=Link(generation=5, width=16, most_generation=5, most_width=16),
    persistent=True,
    ecc=True,
    ecc_errors=0,
)


def gpu(index: int = 0, name: str = "NVIDIA H100", sm: int = 90, **changes: Any) -> Gpu:
    spec = DeviceSpec(
        name=name,
        kind="cuda",
        features=f"sm{sm} 80GiB driver550",
        index=index,
        uuid=f"GPU-{index}",
        memory_bytes=80 * GIB,
    )
    return Gpu(spec=spec, health=replace(HEALTHY, uuid=spec.uuid, **changes))


def on_cpu(**changes: Any) -> Facts:
    sound = Facts(machine=machine(), packages=packages(), no_gpu="NVML: not found")
    return replace(sound, **changes)


def with_gpus(*gpus: Gpu, **changes: Any) -> Facts:
    sound = Facts(
        machine=machine(),
        packages=packages(*FOR_GPUS),
        driver=Driver(version="550.54.14", cuda=(12, 4)),
        gpus=gpus or (gpu(),),
    )
    return replace(sound, **changes)
