"""The one door to PyCUDA and to the CUDA runtime. Import it after `driver.claim`.

Everything lives in the device's primary context, which TensorRT and the CUDA runtime use as well.
PyCUDA has streams, events, memory and copies; what it lacks or breaks (pinning memory that is there
already kills the process in every release since 2024.1.2; CUDA graphs) goes through the runtime's
own functions, in the copy of the library that Polygraphy has loaded.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pycuda.driver as pycuda
from polygraphy import cuda as polygraphy_cuda

from trtfuse.core.errors import DeviceError, DeviceLost, OutOfMemory
from trtfuse.core.specs import Array
from trtfuse.gpu import driver
from trtfuse.gpu.words import out_of_memory

log = logging.getLogger(__name__)

_LIBRARIES = "LD_LIBRARY_PATH"
# Of cuStreamCreate: does not wait for the default stream.
_NON_BLOCKING = 1
# Of cudaStreamBeginCapture: calls of other threads do not break the capture.
_THREAD_LOCAL = 1


@contextmanager
def context() -> Iterator[None]:
    """The primary context of this process's one GPU, current as long as the block lasts.

    All that was made in it must be closed before. Raises DeviceError where it cannot be had.
    """
    try:
        pycuda.init()
        primary = pycuda.Device(0).retain_primary_context()
        primary.push()
    except pycuda.Error as error:
        # Not `translating`, which asks a context whether the device is lost: there is none yet.
        if out_of_memory(str(error)):
            raise OutOfMemory(
                f"no CUDA context can be made: {error}. Use fewer --instances, or --gpus with more "
                f"room."
            ) from error
        raise DeviceError(f"the GPU cannot be used: {error}.") from error
    try:
        yield
    except DeviceLost:
        # Giving back fails too then, and would stand in the place of the reason.
        with suppress(pycuda.Error, DeviceError):
            _leave(primary)
        raise
    except BaseException:
        _leave(primary)
        raise
    else:
        _leave(primary)


def _leave(primary: Any) -> None:
    # A context that is still pushed at exit makes PyCUDA abort the process.
    pycuda.Context.pop()
    # Left to its destructor, it would be detached as if it were not the primary one, which fails.
    # Detaching pushes it and does not pop it.
    primary.detach()
    driver.check(driver.start(), "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Turn an error of CUDA inside the block into DeviceError, with the call and its status.

    OutOfMemory, if that is what it says; DeviceLost, if nothing else will run in this process.
    """
    try:
        yield
    except pycuda.Error as error:
        raise _error(f"{what}: {error}.") from error


def _error(text: str) -> DeviceError:
    # Want of memory is no error that stays.
    if out_of_memory(text):
        return OutOfMemory(text)
    return DeviceLost(text) if _is_lost() else DeviceError(text)


def _is_lost() -> bool:
    """Whether the last error stays: after an illegal access, say, every later call fails too."""
    try:
        pycuda.Context.synchronize()
    except pycuda.Error:
        return True
    return False


def free_bytes() -> int:
    """Device memory that no process holds now."""
    free, _ = pycuda.mem_get_info()
    return int(free)


class Stream:
    """An order of work on the device. Waits for no other stream."""

    def __init__(self) -> None:
        self._stream = pycuda.Stream(_NON_BLOCKING)

    @property
    def handle(self) -> int:
        """What TensorRT and the runtime call it."""
        return int(self._stream.handle)

    def copy_in(self, buffer: Buffer, array: Array) -> None:
        """Start to copy a contiguous `array` into `buffer`. It must stay until the copy is done.

        Asynchronous only where the array is pinned.
        """
        pycuda.memcpy_htod_async(buffer.address, array, self._stream)

    def copy_out(self, array: Array, buffer: Buffer) -> None:
        """Start to copy the front of `buffer` into the contiguous `array`."""
        pycuda.memcpy_dtoh_async(array, buffer.address, self._stream)

    def record(self, event: Event) -> None:
        """Have `event` happen when all that was started before is done."""
        event.event.record(self._stream)

    def synchronize(self) -> None:
        """Wait until all is done."""
        self._stream.synchronize()


class Event:
    """A moment on a stream."""

    def __init__(self) -> None:
        # To wait is to sleep, not to spin: the cores are for decoding.
        self.event = pycuda.Event(pycuda.event_flags.BLOCKING_SYNC)

    def synchronize(self) -> None:
        """Wait until it has happened. Other threads run meanwhile."""
        self.event.synchronize()

    def ns_since(self, earlier: Event) -> int:
        """Nanoseconds on the device's clock; its resolution is about 500."""
        return int(self.event.time_since(earlier.event) * 1e6)


class Buffer:
    """Device memory, zeros at first. Free it with `close`."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._allocation = pycuda.mem_alloc(nbytes)
        pycuda.memset_d8(self._allocation, 0, nbytes)
        # It runs on the default stream, for which those of lanes do not wait.
        pycuda.Context.synchronize()

    @property
    def address(self) -> int:
        """Where it lies on the device, 256-byte aligned as all that CUDA allocates."""
        return int(self._allocation)

    def close(self) -> None:
        """Give it back."""
        self._allocation.free()


class Staging:
    """Pinned host memory of our own. Free it with `close`, when no view is in use any more."""

    def __init__(self, nbytes: int) -> None:
        self._memory = pycuda.pagelocked_empty(nbytes, np.uint8)

    def view(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Its front as an array; valid until it is closed."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        view: Array = self._memory[:nbytes].view(dtype).reshape(shape)
        return view

    def close(self) -> None:
        """Give it back."""
        self._memory.base.free()


@dataclass(frozen=True, slots=True)
class Pinned:
    """Host memory that the device can reach: an address range, empty where pinning was refused."""

    start: int = 0
    end: int = 0

    def holds(self, array: Array) -> bool:
        """Whether the device may copy `array` as it is, while the host goes on."""
        address = array.ctypes.data
        inside = self.start <= address and address + array.nbytes <= self.end
        return inside and bool(array.flags.c_contiguous)


@contextmanager
def pinned(memory: Array) -> Iterator[Pinned]:
    """Pin memory that was allocated elsewhere, as long as the block lasts.

    Where the system refuses (a limit on locked memory, say), nothing is pinned, and it is logged:
    `Pinned.holds` is then false of everything.
    """
    runtime, address = _runtime(), ctypes.c_void_p(memory.ctypes.data)
    if not memory.nbytes:
        yield Pinned()
        return
    status = runtime.cudaHostRegister(address, ctypes.c_size_t(memory.nbytes), ctypes.c_uint(0))
    if status:
        runtime.cudaGetLastError()  # it would be reported again by whoever asks next
        log.warning("cudaHostRegister: %s: batches are copied once more", _name(status))
        yield Pinned()
        return
    try:
        yield Pinned(memory.ctypes.data, memory.ctypes.data + memory.nbytes)
    finally:
        # A device that is lost refuses this too, and the process ends anyway.
        if status := runtime.cudaHostUnregister(address):
            log.warning("cudaHostUnregister: %s", _name(status))


class Graph:
    """Work that was recorded once and is started again with one call. Free it with `close`."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def launch(self, stream: Stream) -> None:
        """Start it on `stream`. Raises DeviceError."""
        _check("cudaGraphLaunch", self._handle, ctypes.c_void_p(stream.handle))

    def close(self) -> None:
        """Give it back. It must not be running."""
        _runtime().cudaGraphExecDestroy(self._handle)


def capture(stream: Stream, work: Callable[[], bool]) -> Graph | None:
    """What `work` starts on `stream`, recorded and not run; None where it cannot be recorded.

    `work` says whether it could start. It must have run on this stream before, as it is.
    """
    runtime, handle = _runtime(), ctypes.c_void_p(stream.handle)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    _check("cudaStreamBeginCapture", handle, ctypes.c_int(_THREAD_LOCAL))
    started = False
    try:
        started = work()
    finally:
        # Ended whatever happened: a stream that is left in capture is of no use.
        status = runtime.cudaStreamEndCapture(handle, ctypes.byref(graph))
    if started and not status:
        status = runtime.cudaGraphInstantiateWithFlags(
            ctypes.byref(executable), graph, ctypes.c_ulonglong(0)
        )
    if graph:
        runtime.cudaGraphDestroy(graph)
    if started and not status:
        return Graph(executable)
    runtime.cudaGetLastError()
    log.info("no CUDA graph: %s", _name(status) if status else "the engine cannot be captured")
    return None


def _check(call: str, *args: Any) -> None:
    status = getattr(_runtime(), call)(*args)
    if status:
        raise _error(f"{call}: {_name(status)}.")


def _name(status: int) -> str:
    """ "cudaErrorNotSupported (801)"."""
    name = _runtime().cudaGetErrorName
    name.restype = ctypes.c_char_p
    return f"{name(ctypes.c_int(status)).decode()} ({status})"


@functools.cache
def _runtime() -> Any:
    """The CUDA runtime that Polygraphy has loaded; one per process."""
    known = os.environ.get(_LIBRARIES, "").split(os.pathsep)
    folders = filter(None, [*known, *driver.runtime_folders(sys.path)])
    os.environ[_LIBRARIES] = os.pathsep.join(folders)  # read when the library is looked for
    try:
        return polygraphy_cuda.wrapper().handle
    except OSError as error:
        raise DeviceError(
            f"the CUDA runtime cannot be loaded: {error}. Install the package "
            f"nvidia-cuda-runtime-cu12, or name the folder of libcudart.so in LD_LIBRARY_PATH."
        ) from error
