"""Gathers the facts. What may crash is loaded in a child: a broken library must not be ours."""

from __future__ import annotations

import importlib
import re
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from trtfuse.core.cores import usable_cores
from trtfuse.core.errors import DeviceError, TrtfuseError
from trtfuse.doctor.facts import Facts, Gpu, Machine, Package, Space
from trtfuse.gpu import devices, health
from trtfuse.gpu.tensorrt import installed
from trtfuse.pool.spawn import run_in_child

_PACKAGES = (
    *("numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "torch", "polygraphy", "pycuda"),
    *("nvidia-ml-py", "opencv-python", "opencv-python-headless", "opencv-contrib-python"),
)
# Those whose libraries every run loads; torch takes seconds, and no run needs it.
_LOADED = {"onnxruntime": "onnxruntime", "onnxruntime-gpu": "onnxruntime"}
_VARIABLES = re.compile(r"NCCL_\w+|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|MPS_\w+)")
_LOAD_S = 120.0


def gather(environment: Mapping[str, str], folder: Path) -> Facts:
    """Everything about this machine; `folder` is where engines and results would go."""
    driver, no_driver = _driver()
    gpus, pairs, no_gpu = _gpus()
    return Facts(
        machine=_machine(environment, folder),
        packages=_packages(has_gpu=bool(gpus)),
        driver=driver,
        no_gpu=no_driver or no_gpu,
        gpus=gpus,
        pairs=pairs,
    )


def _gpus() -> tuple[tuple[Gpu, ...], tuple[health.Pair, ...], str]:
    """GPUs, what lies between them, and why there are none."""
    try:
        found = devices.scan()
        if not found.gpus:
            return (), (), found.reason
        states = health.examine(found.gpus)
        pairs = health.pairs(found.gpus)
    except TrtfuseError as error:  # an order of GPUs that is refused, or NVML that gives up
        return (), (), str(error)
    gpus = (Gpu(spec=spec, health=one) for spec, one in zip(found.gpus, states, strict=True))
    return tuple(gpus), pairs, ""


def _driver() -> tuple[health.Driver | None, str]:
    try:
        return health.driver(), ""
    except DeviceError as error:
        return None, str(error)


def _machine(environment: Mapping[str, str], folder: Path) -> Machine:
    from trtfuse.cpu.devices import describe

    return Machine(
        python=sys.version_info[:2],
        cpu=describe().name,
        cores=usable_cores(),
        memory_bytes=_memory(),
        shm=_space(Path("/dev/shm")),
        disk=_space(folder),
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        container=_container(environment),
        kernel_module=any(map(Path.exists, map(Path, ("/proc/driver/nvidia", "/dev/nvidiactl")))),
        mps=Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists(),
        environment={n: v for n, v in environment.items() if _VARIABLES.fullmatch(n)},
    )


def _packages(*, has_gpu: bool) -> dict[str, Package]:
    found = {}
    for name in _PACKAGES:
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue
        broken = _why_not(_load, _LOADED[name]) if name in _LOADED else ""
        found[name] = Package(name=name, version=one.version, cuda=_cuda(one), broken=broken)
    for runtime, name in (("tensorrt", "tensorrt"), ("tensorrt_rtx", "tensorrt-rtx")):
        if version := installed(runtime):
            broken = _why_not(_open_tensorrt, runtime, has_gpu)
            found[name] = Package(
                name=name, version=version, cuda=_tensorrt_cuda(name), broken=broken
            )
    return found


def _why_not(load: Callable[..., None], *args: object) -> str:
    """Why something cannot be loaded; tried in a child. Empty: it can."""
    try:
        run_in_child(load, *args, name=f"a child that loads {args[0]}", timeout_s=_LOAD_S)
    except TrtfuseError as error:
        return str(error)
    return ""


def _load(module: str) -> None:
    importlib.import_module(module)


def _open_tensorrt(runtime: str, has_gpu: bool) -> None:
    """Load it; with a GPU, make it start too. Without a driver it would end this process."""
    importlib.import_module(runtime)
    if has_gpu and runtime == "tensorrt":
        from trtfuse.gpu import driver
        from trtfuse.gpu.tensorrt import door

        driver.claim("cuda:0")
        opened = door(runtime)
        opened.trt.Runtime(opened.logger)


def _cuda(package: Distribution) -> int | None:
    """The CUDA that a wheel is for: torch says it as 2.4.1+cu121, others in what they need."""
    text = " ".join((package.version, *(package.requires or ())))
    match = re.search(r"[-_+]cu(\d\d)", text)
    return int(match[1]) if match else None


def _tensorrt_cuda(name: str) -> int | None:
    for cuda in (11, 12, 13):
        try:
            distribution(f"{name}-cu{cuda}")
        except PackageNotFoundError:
            continue
        return cuda
    return None


def _space(path: Path) -> Space:
    usage = shutil.disk_usage(path)
    return Space(path=str(path), total=usage.total, free=usage.free)


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _memory() -> int:
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    match = re.search(r"^MemTotal: +(\d+) kB", text, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def _container(environment: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "Kubernetes"
    signs = {"/.dockerenv": "Docker", "/run/.containerenv": "Podman"}
    return next((name for sign, name in signs.items() if Path(sign).exists()), "")
