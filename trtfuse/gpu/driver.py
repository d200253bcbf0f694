"""One process, one GPU: chosen before CUDA starts, and proven after.

TensorRT kills a process that has no usable driver (SIGSEGV in `trt.Runtime`), so the driver is
asked first, by ctypes, with nothing else loaded.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtfuse.core.errors import DeviceError
from trtfuse.core.specs import DeviceSpec
from trtfuse.gpu import devices

_LIBRARY = "libcuda.so.1"


@functools.cache
def claim(device: str) -> DeviceSpec:
    """Make `device` ("cuda:0") the one GPU of this process, and start CUDA on it.

    Must come before anything that starts CUDA; to CUDA it is device 0 from then on. Raises
    DeviceError where there is no such GPU, it lets nobody in, the driver does not start, or it was
    started before with another GPU in front.
    """
    gpu = devices.named(device)
    devices.require_free(gpu)
    # The driver reads it once, when it starts; TensorRT, PyCUDA and the CUDA runtime follow it.
    os.environ[devices.MASK] = gpu.uuid
    prove(start(), gpu)
    return gpu


def start() -> ctypes.CDLL:
    """The driver, started in this process. Raises DeviceError with its own name for the status."""
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"the NVIDIA driver is not installed, or not given to this container: {error}."
        ) from error
    check(cuda, "cuInit", ctypes.c_uint(0))
    return cuda


def runtime_folders(roots: Sequence[str]) -> tuple[str, ...]:
    """Where packages below `roots` (sys.path) have put CUDA's runtime from CUDA 13 on.

    Polygraphy looks in the folder of the packages before, in the system's and LD_LIBRARY_PATH.
    """
    folders = (one for root in roots if root for one in Path(root).glob("nvidia/cu[1-9]*/lib"))
    return tuple(str(folder) for folder in folders if any(folder.glob("libcudart.so*")))


def check(cuda: Any, call: str, *args: Any) -> None:
    """Make a call of the driver. Raises DeviceError unless it succeeds."""
    status = getattr(cuda, call)(*args)
    if status:
        raise DeviceError(f"{call}: {_name(cuda, status)} (CUDA driver error {status}).")


def _name(cuda: Any, status: int) -> str:
    name = ctypes.c_char_p()
    if cuda.cuGetErrorName(status, ctypes.byref(name)) or name.value is None:
        return "unknown error"
    return name.value.decode()


def prove(cuda: Any, gpu: DeviceSpec) -> None:
    """Raise DeviceError unless device 0 of the started driver is `gpu`."""
    uuid, handle = (ctypes.c_ubyte * 16)(), ctypes.c_int()
    check(cuda, "cuDeviceGet", ctypes.byref(handle), 0)
    # _v2 knows the UUIDs of MIG instances; drivers before CUDA 11.4 lack it, and MIG too.
    call = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    check(cuda, call, ctypes.byref(uuid), handle)
    if bytes(uuid).hex() != gpu.uuid.partition("-")[2].replace("-", ""):
        raise DeviceError(
            f"cuda:{gpu.index}: CUDA was started in this process before its GPU was chosen, and "
            f"runs on {bytes(uuid).hex()}, not on {gpu.uuid}. Something that is imported starts it "
            f"(pycuda.autoinit, or a call of torch.cuda at the top of a module)."
        )
