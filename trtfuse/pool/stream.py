"""Both ends of the pool: items into slots, outputs into answers, in order.

    source ─► feeders (threads) ─► slots ─► pool ─► writers (threads) ─► order ─► outcomes()

A feeder takes the next `batch` items, decodes and encodes them straight into a slot, and submits
it; where the input's size changes from one item to the next, it goes on in another slot. A writer
decodes a result's outputs, has the sink store the answer, and frees the slot. An item that cannot
be read is never sent, one whose answer cannot be stored is a failure too; the rest goes on.

Bounded: the slots hold what is under way, and the window bounds, in items and in bytes, what has
been taken and is not out, so a slow sink stops the feeders. Whoever waits, waits for a slot, for
the window, or for a message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType

from trtfuse.core.errors import ItemError, PoolError
from trtfuse.core.flow import (
    Attached,
    Codec,
    Entry,
    Failure,
    Geometry,
    Item,
    Outcome,
    Picture,
    Result,
    Sink,
    Source,
    Task,
)
from trtfuse.core.specs import Arrays
from trtfuse.core.times import BatchTimes, ItemTimes
from trtfuse.pool.order import Order
from trtfuse.pool.pool import Pool
from trtfuse.pool.refusals import no_thread
from trtfuse.pool.slots import Ring
from trtfuse.pool.spawn import failure
from trtfuse.pool.window import Window

# One picture too large for the memory is its own fault, not the night's.
_ITEM_FAULTS = (ItemError, MemoryError)

_now = time.monotonic_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """How many threads decode and how many write."""

    feeders: int
    writers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """An item whose input lies in a slot, and what its answer will be told of its picture."""

    item: Item
    attached: Attached
    geometry: Geometry
    times: ItemTimes


@dataclass(slots=True)
class _Batch:
    """The items whose inputs lie in `slot`, in the slot's order; `left` are not written yet."""

    slot: int
    shape: tuple[int, ...]
    items: list[_Placed] = field(default_factory=list)
    left: int = 0
    slot_ns: int = 0
    """How long the slot was waited for."""
    submitted_ns: int = 0
    """When it went to the pool."""


class _Fed:
    """A feeder has reached the end of the source."""


class Stream:
    """One run of `source` through an entered `pool` into `sink`. A context, used once.

    Leaving it ends its threads; an item that is just being decoded or written is waited for. Items
    that hold memory (frames of a clip) may together hold as much as the ring.
    """

    def __init__(self, source: Source, codec: Codec, sink: Sink, pool: Pool, ring: Ring) -> None:
        self._items = iter(source)
        self._codec = codec
        self._sink = sink
        self._pool = pool
        self._ring = ring
        self._threads: list[threading.Thread] = []
        self._feeding = 0
        self._taken = 0
        self._submitted = 0
        # Two locks: a feeder may wait for the window while it takes, and what opens the window is
        # a writer that settles.
        self._taking = threading.Lock()
        self._settling = threading.Lock()
        self._batches: dict[int, _Batch] = {}
        self._free: SimpleQueue[int | None] = SimpleQueue()
        for slot in range(ring.layout.slots):
            self._free.put(slot)
        # Four rings' worth: room for one slow batch to be overtaken by all the others, and yet a
        # bound on what waits for it.
        self._window = Window(
            items=4 * ring.layout.slots * ring.layout.batch, nbytes=ring.layout.total_bytes
        )
        self._outbox: SimpleQueue[Outcome | _Fed | BaseException] = SimpleQueue()

    def run(self, threads: Threads) -> Iterator[Outcome]:
        """Start the threads; one outcome an item, in the source's order, as they get ready.

        Raises what broke the run: WorkersLost, or an error of the source, codec or sink.
        """
        self._feeding = threads.feeders
        self._start([self._feed] * threads.feeders + [self._write] * threads.writers)
        order: Order[Outcome] = Order()
        while self._feeding or order.next < self._taken:
            match self._outbox.get():
                case BaseException() as error:
                    raise error
                case _Fed():
                    self._feeding -= 1
                case Outcome() as outcome:
                    for ready in order.push(outcome.item.seq, outcome):
                        ready.times.order = _now() - ready.times.settled
                        yield ready
                        self._window.settle(ready.item.held_bytes)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._window.close()
        for _ in self._threads:
            self._free.put(None)
            self._pool.results.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self, roles: list[Callable[[], None]]) -> None:
        for number, role in enumerate(roles):
            name = f"{role.__name__.strip('_')}-{number}"
            thread = threading.Thread(target=self._guard, args=(role,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise PoolError(no_thread(error)) from error
            self._threads.append(thread)

    def _guard(self, role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as error:  # noqa: BLE001 - a thread's end: whoever waits must know
            self._outbox.put(error)

    # Feeders

    def _feed(self) -> None:
        while chunk := self._take():
            self._encode(chunk)
        self._outbox.put(_Fed())

    def _take(self) -> list[tuple[Item, ItemTimes]]:
        """The next items, a batch of them at most; none at the end, or when stopped."""
        chunk: list[tuple[Item, ItemTimes]] = []
        with self._taking:
            began = _now()
            while len(chunk) < self._ring.layout.batch and self._window.wait(mine=len(chunk)):
                has_room = _now()
                item = next(self._items, None)
                if item is None:
                    break
                ended = _now()
                self._window.take(item.held_bytes)
                chunk.append((item, ItemTimes(room=has_room - began, read=ended - has_room)))
                began = ended
            self._taken += len(chunk)
        return chunk

    def _encode(self, chunk: list[tuple[Item, ItemTimes]]) -> None:
        batch: _Batch | None = None
        for item, times in chunk:
            if item.known is not None:
                self._let_go(Outcome(item=item, entry=item.known.entry, times=times))
                continue
            began = _now()
            try:
                picture, geometry, shape = self._load(item)
            except _ITEM_FAULTS as error:
                times.decode = _now() - began
                self._let_go(Outcome(item=item, entry=failure(error), times=times))
                continue
            times.decode = _now() - began
            if batch is not None and batch.shape != shape:
                self._submit(batch)
                batch = None
            if batch is None:
                batch = self._open(shape)
            if batch is None:
                return
            began = _now()
            place = self._ring.inputs(batch.slot, len(batch.items), 1)
            self._codec.encode(picture, geometry, next(iter(place.values()))[0])
            times.prepare = _now() - began
            batch.items.append(
                _Placed(item=item, attached=picture.attached, geometry=geometry, times=times)
            )
        if batch is not None:
            self._submit(batch)

    def _load(self, item: Item) -> tuple[Picture, Geometry, tuple[int, ...]]:
        picture = item.load()
        geometry = self._codec.fit(*picture.pixels.shape[:2])
        shape = self._codec.shape(geometry)
        if not self._ring.layout.inputs[0].holds(shape):
            raise ItemError(
                f"its input would be {shape}, more than the engine's profile allows. "
                "Rebuild the engine with a larger --size."
            )
        return picture, geometry, shape

    def _open(self, shape: tuple[int, ...]) -> _Batch | None:
        """An empty batch in a free slot; waits for one. None when stopped."""
        began = _now()
        slot = self._free.get()
        if slot is None:
            return None
        waited = _now() - began
        self._ring.set_input_shape(slot, self._ring.layout.inputs[0].name, shape)
        return _Batch(slot=slot, shape=shape, slot_ns=waited)

    def _submit(self, batch: _Batch) -> None:
        batch.left = len(batch.items)
        with self._settling:
            seq = self._submitted
            self._submitted += 1
            self._batches[seq] = batch
        batch.submitted_ns = _now()
        self._pool.submit(Task(seq=seq, slot=batch.slot, count=len(batch.items)))

    # Writers

    def _write(self) -> None:
        while (result := self._pool.results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            self._settle(result)

    def _settle(self, result: Result) -> None:
        """Write all items of the result; free the slot with the batch's last one."""
        task = result.task
        batch = self._batches[task.seq]
        outputs = self._ring.outputs(task.slot, task.start, task.count)
        in_batch = _batch_times(batch, result)
        for n, placed in enumerate(batch.items[task.start : task.start + task.count]):
            entry: Entry | Failure
            placed.times.batch, placed.times.leads = in_batch, n == 0
            if isinstance(result.outcome, Failure):
                entry = result.outcome
            else:
                entry = self._store(placed, {name: out[n] for name, out in outputs.items()})
            self._let_go(
                Outcome(item=placed.item, entry=entry, worker=result.worker, times=placed.times)
            )
        with self._settling:
            batch.left -= task.count
            if batch.left:
                return
            del self._batches[task.seq]
        self._free.put(batch.slot)

    def _store(self, placed: _Placed, outputs: Arrays) -> Entry | Failure:
        began = _now()
        try:
            answer = self._codec.decode(outputs, placed.geometry)
            answered = _now()
            entry = self._sink.store(placed.item, placed.attached, answer)
        except _ITEM_FAULTS as error:
            return failure(error)
        placed.times.answer, placed.times.store = answered - began, _now() - answered
        return entry

    def _let_go(self, outcome: Outcome) -> None:
        outcome.times.settled = _now()
        self._outbox.put(outcome)


def _batch_times(batch: _Batch, result: Result) -> BatchTimes:
    """Of the result's task. A batch that came in parts has waited for its slot once."""
    slot_ns = batch.slot_ns if result.task.start == 0 else 0
    timing = result.outcome
    if isinstance(timing, Failure):
        return BatchTimes(slot=slot_ns)
    waited = max(0, timing.began_ns - batch.submitted_ns)
    # What it has waited for a worker that had nothing else.
    handover = min(timing.idle_ns, waited)
    return BatchTimes(
        slot=slot_ns,
        queue=waited - handover,
        handover=handover,
        copy_in=timing.copy_in_ns,
        compute=timing.compute_ns,
        copy_out=timing.copy_out_ns,
    )
