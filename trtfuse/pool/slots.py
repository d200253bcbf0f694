"""The ring: one shared memory, cut into slots, one batch a slot.

    ring    [ slot 0 | slot 1 | … ]
    slot    [ header | input a | input b | output c | … ]     each part 256-byte aligned
    header  the item shape of each tensor, int64, in the layout's order of tensors
    tensor  up to `batch` items, C-contiguous, at their actual shape

The parent writes the input shapes and inputs, then sends the task; the worker writes the output
shapes and outputs, then answers. The pipe's message orders the two: no flag or lock lies in here.

All of it is allocated and filled once, by the parent, so that a /dev/shm that is too small is an
error at start and not a SIGBUS in the night.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np

from trtfuse.core.errors import PoolError, ShapeMismatch, UsageError
from trtfuse.core.flow import Claim
from trtfuse.core.specs import Array, EngineManifest, TensorSpec
from trtfuse.core.units import mib
from trtfuse.pool.refusals import refused

# Device copies want aligned host memory; 256 bytes is what CUDA's own allocator gives.
_ALIGN = 256
_SHM = "/dev/shm"
# One slot being filled while one is computed is the least that still overlaps.
_FEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One tensor's place in every slot. `item_bytes` is what its largest item takes."""

    name: str
    dtype: str
    rank: int
    """Of one item, without the batch axis."""
    header: int
    offset: int
    item_bytes: int

    def holds(self, item: tuple[int, ...]) -> bool:
        """Whether an item of this shape fits."""
        nbytes = prod(item) * np.dtype(self.dtype).itemsize
        return len(item) == self.rank and nbytes <= self.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything lies. Picklable: workers get it with their first message."""

    batch: int
    slots: int
    slot_bytes: int
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]

    @property
    def total_bytes(self) -> int:
        """Of the whole ring."""
        return self.slots * self.slot_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """A tensor and the shape of its largest item, without the batch axis."""

    spec: TensorSpec
    item: tuple[int, ...]


def lay_out(
    inputs: Sequence[Largest],
    outputs: Sequence[Largest],
    *,
    batch: int,
    wanted: int,
    memory_bytes: int,
) -> Layout:
    """`wanted` slots, or as many as fit `memory_bytes`. Raises PoolError where two do not."""
    tensors = [*inputs, *outputs]
    offset = _aligned(8 * sum(len(tensor.item) for tensor in tensors))
    header = 0
    regions = []
    for tensor in tensors:
        item_bytes = tensor.spec.bytes_for(tensor.item)
        regions.append(
            Region(
                name=tensor.spec.name,
                dtype=tensor.spec.dtype,
                rank=len(tensor.item),
                header=header,
                offset=offset,
                item_bytes=item_bytes,
            )
        )
        header += 8 * len(tensor.item)
        offset += _aligned(batch * item_bytes)
    slots = min(wanted, memory_bytes // offset)
    if slots < _FEWEST:
        raise PoolError(
            f"{_FEWEST} slots of {batch} items take {mib(_FEWEST * offset)}, more than the "
            f"{mib(memory_bytes)} allowed. Use a smaller --batch, or a larger --memory."
        )
    return Layout(
        batch=batch,
        slots=slots,
        slot_bytes=offset,
        inputs=tuple(regions[: len(inputs)]),
        outputs=tuple(regions[len(inputs) :]),
    )


def for_engine(manifest: EngineManifest, *, batch: int, wanted: int, memory_bytes: int) -> Layout:
    """A layout for batches of `batch` items of the largest shapes that an engine takes and gives.

    Raises UsageError for a batch outside the engine's profile, PoolError as `lay_out`.
    """
    for name, shapes in manifest.request.profile:
        if not 1 <= batch <= shapes.max[0]:
            raise UsageError(
                f"--batch {batch}: input {name!r} of this engine takes up to {shapes.max[0]} items."
            )
    inputs = [
        Largest(spec=spec, item=manifest.profile[spec.name].max[1:]) for spec in manifest.inputs
    ]
    outputs = [
        Largest(spec=spec, item=shape[1:])
        for spec, shape in zip(manifest.outputs, manifest.output_max, strict=True)
    ]
    return lay_out(inputs, outputs, batch=batch, wanted=wanted, memory_bytes=memory_bytes)


class Ring:
    """The mapped memory. Arrays it gives are views: valid until the slot is given back."""

    def __init__(self, layout: Layout, name: str, memory: Array) -> None:
        self.layout = layout
        self.name = name
        self.memory = memory
        """All of it, uint8."""

    def set_input_shape(self, slot: int, name: str, item: tuple[int, ...]) -> None:
        """Say what shape the items of input `name` have in `slot`, before writing them."""
        self._header(slot, _region(self.layout.inputs, name))[:] = item

    def inputs(self, slot: int, start: int, count: int) -> dict[str, Array]:
        """Views (count, *item shape) of the slot's inputs, from item `start` on."""
        return {r.name: self._view(slot, r, start, count) for r in self.layout.inputs}

    def outputs(self, slot: int, start: int, count: int) -> dict[str, Array]:
        """Views (count, *item shape) of the slot's outputs, from item `start` on."""
        return {r.name: self._view(slot, r, start, count) for r in self.layout.outputs}

    def claim(self, slot: int, start: int) -> Claim:
        """How a runner gets the memory of the slot's outputs, from item `start` on."""

        def claim(name: str, shape: tuple[int, ...]) -> Array:
            region = _region(self.layout.outputs, name)
            _check_fits(region, shape, self.layout.batch - start)
            self._header(slot, region)[:] = shape[1:]
            return self._view(slot, region, start, shape[0])

        return claim

    def _header(self, slot: int, region: Region) -> Array:
        at = slot * self.layout.slot_bytes + region.header
        return self.memory[at : at + 8 * region.rank].view(np.int64)

    def _view(self, slot: int, region: Region, start: int, count: int) -> Array:
        item = tuple(int(size) for size in self._header(slot, region))
        nbytes = prod(item) * np.dtype(region.dtype).itemsize
        at = slot * self.layout.slot_bytes + region.offset + start * nbytes
        return self.memory[at : at + count * nbytes].view(region.dtype).reshape(count, *item)


def _check_fits(region: Region, shape: tuple[int, ...], room: int) -> None:
    if shape[0] > room or not region.holds(shape[1:]):
        raise ShapeMismatch(
            f"output {region.name!r}: the runner wants {shape}, its region holds {room} items of "
            f"rank {region.rank} and up to {region.item_bytes} bytes. Rebuild the engine."
        )


def _region(regions: tuple[Region, ...], name: str) -> Region:
    for region in regions:
        if region.name == name:
            return region
    known = ", ".join(region.name for region in regions)
    raise ShapeMismatch(f"tensor {name!r}: the ring has none of that name. Known: {known}.")


@contextmanager
def created(layout: Layout) -> Iterator[Ring]:
    """A new ring, removed at the end of the block. Raises PoolError where it does not fit.

    Its name is known to Python's resource tracker, which removes it if this process is killed.
    """
    name = f"trtfuse-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        # Before there is anything: SharedMemory tells the tracker after it has made the file, and
        # has to start it first, which on a busy machine was time enough to be killed in.
        resource_tracker.register(f"/{name}", "shared_memory")
        shared = SharedMemory(name=name, create=True, size=layout.total_bytes)
    except OSError as error:
        with suppress(OSError):  # it may be what cannot be started
            # SharedMemory may have done so already; known twice is known once.
            resource_tracker.register(f"/{name}", "shared_memory")
            resource_tracker.unregister(f"/{name}", "shared_memory")
        what = f"{_SHM}: no shared memory of {mib(layout.total_bytes)} can be made"
        raise PoolError(refused(what, error)) from error
    shared.close()
    try:
        _reserve(name, layout)
        yield Ring(layout, name, _mapped(name, layout))
    finally:
        shared.unlink()


def attached(layout: Layout, name: str) -> Ring:
    """The ring that the parent created under `name`."""
    return Ring(layout, name, _mapped(name, layout))


def _mapped(name: str, layout: Layout) -> Array:
    """The memory as an array; unmapped when the last view of it is gone."""
    with Path(_SHM, name).open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), layout.total_bytes), np.uint8)


def _reserve(name: str, layout: Layout) -> None:
    """Have the kernel set every page aside now."""
    with Path(_SHM, name).open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, layout.total_bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            status = os.statvfs(_SHM)
            raise PoolError(
                f"{_SHM} has {mib(status.f_bavail * status.f_frsize)} free, the ring needs "
                f"{mib(layout.total_bytes)}. Use a smaller --memory or --batch, or give the "
                f"container more (docker run --shm-size)."
            ) from error


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
