"""The GPUs of this machine, as NVML tells them: no CUDA context is made, so a parent may ask.

A number always counts what `CUDA_VISIBLE_DEVICES` leaves, as in every other CUDA program: with
`CUDA_VISIBLE_DEVICES=2,3`, cuda:0 is the GPU that nvidia-smi calls 2. A GPU in MIG mode is its
instances.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from trtfuse.core.errors import DeviceError, UnknownName, UsageError
from trtfuse.core.specs import DeviceSpec
from trtfuse.core.units import mib

MASK = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"

# What is kept free on a GPU when instances are counted: other programs, and what CUDA loads late.
_RESERVE_SHARE, _RESERVE_BYTES = 0.05, 512 << 20

# nvmlComputeMode_t
_PROHIBITED, _EXCLUSIVE = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What was found. `reason` says why there is no GPU, where there is none."""

    gpus: tuple[DeviceSpec, ...]
    reason: str = ""
    mask: str | None = None
    """What `CUDA_VISIBLE_DEVICES` said, if it was set."""


def scan() -> Scan:
    """The GPUs that this process may use. Never raises for a driver that is missing or broken."""
    try:
        found = _everything()
    except DeviceError as error:
        return Scan(gpus=(), reason=str(error))
    gpus = visible(found, os.environ)
    if found and not gpus:
        return Scan(gpus=(), reason=f"{MASK}={os.environ[MASK]} hides every GPU")
    reason = "" if gpus else "the driver lists no GPU"
    return Scan(gpus=gpus, reason=reason, mask=os.environ.get(MASK))


def visible(gpus: Sequence[DeviceSpec], environment: Mapping[str, str]) -> tuple[DeviceSpec, ...]:
    """Those of `gpus` (in PCI order) that the environment leaves to CUDA, numbered anew.

    As CUDA does it: numbers, or UUIDs that may be cut short; whatever follows an entry that names
    no GPU is hidden too. Raises UsageError where a number means one thing to nvidia-smi and another
    to CUDA.
    """
    mask = environment.get(MASK)
    if mask is None:
        return tuple(gpus)
    words = [word.strip() for word in mask.split(",")]
    if any(map(str.isdigit, words)) and environment.get(_ORDER) != "PCI_BUS_ID":
        _refuse_unequal(gpus, mask)
    chosen: list[DeviceSpec] = []
    for word in words:
        matches = _matching(gpus, word)
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return tuple(replace(gpu, index=number) for number, gpu in enumerate(chosen))


def choose(text: str, found: Scan) -> tuple[DeviceSpec, ...]:
    """`--gpus`: "all", numbers as "0,1", or UUIDs that may be cut short.

    Raises DeviceError where there is no GPU, UnknownName and UsageError where the text is off.
    """
    if not found.gpus:
        raise DeviceError(f"--gpus {text}: there is no GPU here: {found.reason}.")
    if text.strip() == "all":
        return found.gpus
    chosen: list[DeviceSpec] = []
    for word in text.split(","):
        matches = _matching(found.gpus, word.strip())
        if len(matches) != 1:
            how = "fits several" if matches else "is not there"
            raise UnknownName(f"--gpus {text}: {word.strip()!r} {how}. {listing(found.gpus)}")
        if matches[0] in chosen:
            raise UsageError(f"--gpus {text}: names cuda:{matches[0].index} twice.")
        chosen += matches
    return tuple(chosen)


def named(device: str) -> DeviceSpec:
    """The GPU that is called "cuda:N" here. Raises DeviceError with the list of what there is."""
    found = scan()
    for gpu in found.gpus:
        if device == f"cuda:{gpu.index}":
            return gpu
    there = listing(found.gpus) if found.gpus else f"There is no GPU: {found.reason}."
    raise DeviceError(f"{device}: is not there. {there}")


def listing(gpus: Sequence[DeviceSpec]) -> str:
    """What there is, one line each."""
    lines = (
        f"\n  cuda:{gpu.index}  {gpu.name}, {mib(gpu.memory_bytes)}, {gpu.features}, {gpu.uuid}"
        for gpu in gpus
    )
    return f"There {'is' if len(gpus) == 1 else 'are'}:{''.join(lines)}"


def remark(found: Scan, *, tensorrt: str | None, used: bool) -> str:
    """What whoever starts work should know of the GPUs: how they are numbered, or why none is used.

    `tensorrt` is the version installed, `used` whether GPUs are. Empty: there is nothing to say.
    """
    if used and found.mask is not None:
        shown = ", ".join(f"cuda:{gpu.index} is {gpu.uuid}" for gpu in found.gpus)
        return f"{MASK}={found.mask}: {shown}"
    if not used and tensorrt and not found.gpus:
        return f"TensorRT {tensorrt} is installed, and no GPU can be used: {found.reason}"
    if not used and found.gpus and not tensorrt:
        return (
            f"{len(found.gpus)} x {found.gpus[0].name} take no part: TensorRT is not installed. "
            f"Install it with: pip install 'trtfuse[gpu]'"
        )
    return ""


def require_free(gpu: DeviceSpec) -> None:
    """Raise DeviceError, with the list of GPUs, where `gpu` lets this process not in.

    Instances of MIG have no mode of their own. What a container is not told is left to CUDA.
    """
    if gpu.uuid.startswith("MIG-"):
        return
    with started_nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        try:
            mode = nvml.nvmlDeviceGetComputeMode(handle)
            # Asked only where it matters: containers often hide who runs.
            exclusive = mode == _EXCLUSIVE
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle) if exclusive else []
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NoPermission,
        ):
            return
        said = refusal(mode, [process.pid for process in running])
    if said:
        raise DeviceError(f"cuda:{gpu.index}: {said}. {listing(scan().gpus)}")


def refusal(mode: int, pids: Sequence[int]) -> str:
    """Why a GPU in this compute mode of NVML, on which `pids` compute, lets nobody in; or ""."""
    if mode == _PROHIBITED:
        return "its compute mode is prohibited: nothing may run on it"
    if mode == _EXCLUSIVE and pids:
        who = ", ".join(map(str, pids))
        return f"is busy: its compute mode lets one process in, and that is {who}"
    return ""


def free_bytes(gpu: DeviceSpec) -> int:
    """Memory of the GPU that no process holds now. Raises DeviceError."""
    with started_nvml() as nvml:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)).free)


def instances(free: int, one: int) -> int:
    """How many processes of `one` bytes each fit into `free` bytes, with a reserve kept."""
    reserve = max(int(free * _RESERVE_SHARE), _RESERVE_BYTES)
    return max(0, (free - reserve) // one)


def _matching(gpus: Sequence[DeviceSpec], word: str) -> list[DeviceSpec]:
    if word.isascii() and word.isdigit():
        return [gpu for gpu in gpus if gpu.index == int(word)]
    if not word.startswith(("GPU-", "MIG-")):
        return []
    return [gpu for gpu in gpus if gpu.uuid.startswith(word)]


def _refuse_unequal(gpus: Sequence[DeviceSpec], mask: str) -> None:
    # CUDA's own order puts the fastest first; NVML and nvidia-smi go by PCI bus. With equal GPUs
    # both are the same.
    if len({gpu.name for gpu in gpus}) > 1:
        raise UsageError(
            f"{MASK}={mask}: the GPUs differ, and CUDA numbers them otherwise than nvidia-smi. "
            f"Set {_ORDER}=PCI_BUS_ID, or use UUIDs. {listing(gpus)}"
        )


def _everything() -> tuple[DeviceSpec, ...]:
    """Every GPU, in PCI order. Raises DeviceError where NVML cannot tell."""
    with started_nvml() as nvml:
        driver = nvml.nvmlSystemGetDriverVersion().partition(".")[0]
        handles = [pair for i in range(nvml.nvmlDeviceGetCount()) for pair in _parts(nvml, i)]
        return tuple(_spec(nvml, number, pair, driver) for number, pair in enumerate(handles))


def _spec(nvml: Any, number: int, handles: tuple[Any, Any], driver: str) -> DeviceSpec:
    gpu, part = handles
    memory = int(nvml.nvmlDeviceGetMemoryInfo(part).total)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
    return DeviceSpec(
        name=nvml.nvmlDeviceGetName(part),
        kind="cuda",
        # What an engine was timed on and was built for: see BuildRequest.
        features=f"sm{major}{minor} {round(memory / (1 << 30))}GiB driver{driver}",
        index=number,
        uuid=nvml.nvmlDeviceGetUUID(part),
        memory_bytes=memory,
    )


def _parts(nvml: Any, number: int) -> Iterator[tuple[Any, Any]]:
    """(GPU, itself) or, in MIG mode, (GPU, instance) for every instance."""
    gpu = nvml.nvmlDeviceGetHandleByIndex(number)
    if not _in_mig_mode(nvml, gpu):
        yield gpu, gpu
        return
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            yield gpu, nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)
        except nvml.NVMLError_NotFound:  # slots are not filled in order
            continue


def _in_mig_mode(nvml: Any, gpu: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False  # a GPU, or a driver, from before MIG


@contextmanager
def started_nvml() -> Iterator[Any]:
    """NVML, started. Its errors, and its absence, become DeviceError."""
    try:
        import pynvml
    except ImportError as error:
        raise DeviceError(
            "the package nvidia-ml-py is not installed: pip install 'trtfuse[gpu]'"
        ) from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML: {error}") from error
