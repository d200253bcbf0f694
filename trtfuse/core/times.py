"""Where an item's time goes: its stages, gathered as it passes, and summed up in bounded memory.

    item    room ► read ► decode ► prepare                              (a feeder)
    batch   slot ► queue ► handover ► copy_in ► compute ► copy_out      (ring, pool, runner)
    item    answer ► store                                              (a writer)
    item    order ► commit                                              (who takes the outcomes)

An `ItemTimes` goes with its item from thread to thread, owned by one at a time, so that noting a
time takes no lock. Whoever commits the items adds them up, alone. All times are nanoseconds of
`time.monotonic_ns`, whose zero is the machine's: those of two processes may be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

STAGES = {
    "room": "wait for room: all that may be under way is",
    "read": "the source's next item; a clip is decoded here, in order",
    "decode": "file to picture",
    "prepare": "picture to tensor",
    "slot": "wait for a slot",
    "queue": "wait for a worker that is busy",
    "handover": "way to a worker that waits for it",
    "copy_in": "host to device",
    "compute": "the model",
    "copy_out": "device to host",
    "answer": "outputs to answer",
    "store": "encode and write, in any order",
    "order": "wait for the items before",
    "commit": "encode and write, in order",
}
"""Every stage by name, in the order of an item's way. Those of a batch are counted by batch."""


@dataclass(slots=True)
class BatchTimes:
    """One task on its way: a slot's items, or a part of them."""

    slot: int = 0
    queue: int = 0
    handover: int = 0
    copy_in: int = 0
    compute: int = 0
    copy_out: int = 0


@dataclass(slots=True)
class ItemTimes:
    """One item on its way; 0 where it did not come, or where it was done by an earlier run."""

    room: int = 0
    read: int = 0
    decode: int = 0
    prepare: int = 0
    answer: int = 0
    store: int = 0
    order: int = 0
    commit: int = 0
    settled: int = 0
    """When it was ready to leave; a moment, not a time."""
    batch: BatchTimes | None = None
    """Of the task that it was in, shared with its other items."""
    leads: bool = False
    """Whether it is the one to count `batch` by."""

    def stages(self) -> Iterator[tuple[str, int]]:
        """Its own stages, without its batch's, in order."""
        for name in _OF_ITEM:
            yield name, getattr(self, name)

    def in_batch(self) -> Iterator[tuple[str, int]]:
        """Its batch's stages, in order; none where it was in no batch."""
        if self.batch is not None:
            for name in _OF_BATCH:
                yield name, getattr(self.batch, name)


_OF_ITEM = tuple(name for name in STAGES if name in ItemTimes.__slots__)
_OF_BATCH = tuple(name for name in STAGES if name in BatchTimes.__slots__)

# Sixteen buckets an octave, as in HdrHistogram (G. Tene): a quantile is right to 1 in 32, and all
# times from 1 ns to a year fit in some 800 buckets, of which a run fills a few dozen.
_SUB_BITS = 4


@dataclass(slots=True)
class Durations:
    """Any number of durations, in a bounded number of buckets."""

    count: int = 0
    total: int = 0
    longest: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, ns: int) -> None:
        """One more."""
        self.count += 1
        self.total += ns
        self.longest = max(self.longest, ns)
        shift = ns.bit_length() - _SUB_BITS - 1
        bucket = (shift << _SUB_BITS) + (ns >> shift) if shift > 0 else ns
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def quantile(self, share: float) -> float:
        """What so many (0 to 1) of them are not above, to 3 %; 0 where there are none.

        >>> durations = Durations()
        >>> for ns in (1, 2, 3, 1000):
        ...     durations.add(ns)
        >>> durations.quantile(0.5), durations.quantile(1.0)
        (2.0, 1000.0)
        """
        wanted = share * self.count
        # A copy: another thread may be adding.
        for bucket, count in sorted(self._buckets.copy().items()):
            wanted -= count
            if wanted <= 0:
                return min(_middle(bucket), float(self.longest))
        return float(self.longest)


def _middle(bucket: int) -> float:
    """Of the durations that fall into it."""
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    lowest = (bucket - (shift << _SUB_BITS)) << shift
    return lowest + ((1 << shift) - 1) / 2


@dataclass(slots=True)
class StageTimes:
    """All stages of a run so far. Added to by one thread; any thread may read."""

    by_stage: dict[str, Durations] = field(
        default_factory=lambda: {name: Durations() for name in STAGES}
    )

    def add(self, times: ItemTimes) -> None:
        """An item that is out; with it its batch, if it leads one."""
        for name, ns in times.stages():
            if ns:
                self.by_stage[name].add(ns)
        if times.leads:
            for name, ns in times.in_batch():
                if ns:
                    self.by_stage[name].add(ns)
