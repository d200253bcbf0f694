"""Batches of arrays through a pool: no pictures, no card, no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtfuse.core.errors import PoolError, ShapeMismatch
from trtfuse.core.flow import Failure, Result, Task
from trtfuse.core.specs import Array, Arrays
from trtfuse.pool.order import Order
from trtfuse.pool.pool import Pool
from trtfuse.pool.slots import Ring


def map_batches(pool: Pool, ring: Ring, batches: Iterable[Arrays]) -> Iterator[dict[str, Array]]:
    """The outputs of every batch, in order, as copies. One caller at a time.

    Each batch holds every input by name, with the batch axis. As many batches as the ring has
    slots are under way; a caller who stops early waits for those. Raises PoolError for a batch that
    fails, ShapeMismatch for one too large.
    """
    source = enumerate(batches)
    free = list(range(ring.layout.slots))
    flying: dict[int, Task] = {}
    left: dict[int, int] = {}
    order: Order[dict[str, Array]] = Order()
    try:
        while True:
            while free and (numbered := next(source, None)) is not None:
                task = _write(ring, numbered[0], free.pop(), numbered[1])
                flying[task.seq], left[task.seq] = task, task.count
                pool.submit(task)
            if not left:
                return
            part = _answered(pool, left)
            if part.seq not in left:
                task = flying.pop(part.seq)
                outputs = ring.outputs(task.slot, 0, task.count)
                copies = {name: output.copy() for name, output in outputs.items()}
                free.append(task.slot)
                yield from order.push(task.seq, copies)
    finally:
        # The next caller must not meet answers of this one.
        while left:
            _landed(pool, left)


def _write(ring: Ring, seq: int, slot: int, batch: Arrays) -> Task:
    count = len(next(iter(batch.values())))
    for region in ring.layout.inputs:
        array = batch[region.name]
        if count > ring.layout.batch or not region.holds(array.shape[1:]):
            raise ShapeMismatch(
                f"input {region.name!r}: got {array.shape}, the ring holds {ring.layout.batch} "
                f"items of up to {region.item_bytes} bytes."
            )
        ring.set_input_shape(slot, region.name, array.shape[1:])
        ring.inputs(slot, 0, count)[region.name][:] = array
    return Task(seq=seq, slot=slot, count=count)


def _answered(pool: Pool, left: dict[int, int]) -> Task:
    """The next task, or part of one, that is done. Raises PoolError if it failed."""
    result = _landed(pool, left)
    if isinstance(result.outcome, Failure):
        why = result.outcome
        raise PoolError(f"batch {result.task.seq}: {why.kind}: {why.message}")
    return result.task


def _landed(pool: Pool, left: dict[int, int]) -> Result:
    """The next result, counted off what is `left` of its batch. Raises what has ended the pool."""
    result = pool.results.get()
    if not isinstance(result, Result):
        left.clear()
        raise result or PoolError("the results of this pool were ended by another thread.")
    left[result.task.seq] -= result.task.count
    if not left[result.task.seq]:
        del left[result.task.seq]
    return result
