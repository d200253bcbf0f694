"""Batches through the whole pool, and how fast they come back."""

from __future__ import annotations

import time

from trtfuse.bench.alone import Turn
from trtfuse.core.errors import PoolError
from trtfuse.core.flow import Failure, Result, Task
from trtfuse.core.specs import Arrays
from trtfuse.pool.pool import Pool
from trtfuse.pool.slots import Ring


class Line:
    """A pool whose slots are filled already: what is measured is from submitting to the answer.

    `pool` is entered; each slot of `ring` holds `inputs`, the largest batch.
    """

    def __init__(self, pool: Pool, ring: Ring, inputs: Arrays) -> None:
        self._pool = pool
        self._seq = 0
        self._slots = range(ring.layout.slots)
        for slot in self._slots:
            for name, array in inputs.items():
                ring.set_input_shape(slot, name, array.shape[1:])
                ring.inputs(slot, 0, len(array))[name][:] = array

    def rate(self, turn: Turn) -> float:
        """Items per second while every slot is under way.

        Counted from one answer to another, after as many as there are slots have come, so that
        neither filling nor draining the pool is in it.
        """
        for slot in self._slots:
            self._submit(slot, turn.batch)
        for _ in self._slots:
            self._submit(self._answered(), turn.batch)
        answers = 0
        begun = end = time.perf_counter_ns()
        while end < begun + turn.seconds * 1e9 or answers < max(turn.least, len(self._slots)):
            slot = self._answered()
            end = time.perf_counter_ns()
            answers += 1
            self._submit(slot, turn.batch)
        for _ in self._slots:
            self._answered()
        return answers * turn.batch / (end - begun) * 1e9

    def times(self, turn: Turn) -> tuple[int, ...]:
        """Nanoseconds of each batch, with no other under way."""
        found: list[int] = []
        begun = time.perf_counter_ns()
        before = begun
        while before < begun + turn.seconds * 1e9 or len(found) < turn.least:
            self._submit(0, turn.batch)
            self._answered()
            now = time.perf_counter_ns()
            found.append(now - before)
            before = now
        return tuple(found)

    def _submit(self, slot: int, count: int) -> None:
        self._pool.submit(Task(seq=self._seq, slot=slot, count=count))
        self._seq += 1

    def _answered(self) -> int:
        """The slot of the next answer. Raises PoolError for a batch that failed."""
        result = self._pool.results.get()
        if not isinstance(result, Result):
            raise result or PoolError("the results of this pool were ended by another thread.")
        if isinstance(result.outcome, Failure):
            raise PoolError(f"a batch failed: {result.outcome.kind}: {result.outcome.message}")
        return result.task.slot
