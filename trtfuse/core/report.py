"""What a run says of itself, while it goes and when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trtfuse.core.flow import Timing
from trtfuse.core.times import Durations, StageTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is. `total` is None where only the end will tell."""

    done: int
    failed: int
    total: int | None
    seconds: float
    items_by_device: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class WorkerRecord:
    """What one worker has done, over all its restarts; written by the pool's dispatcher."""

    device: str
    items: int = 0
    batches: Durations = field(default_factory=Durations)
    """What its runner computed, a batch each."""
    busy_ns: int = 0
    """How long it had one batch or more in hand."""
    deaths: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    """Largest resident memory of its process; known once the pool has closed."""
    most_items: int | None = None
    """Of a batch, since its device ran out of memory; None: it never did."""
    _heard_ns: int = 0

    def note(self, items: int, timing: Timing) -> None:
        """A task of so many items is answered. In the order of the answers."""
        self.items += items
        self.batches.add(timing.compute_ns)
        # Batches in flight together count once.
        self.busy_ns += timing.ended_ns - max(timing.began_ns, self._heard_ns)
        self._heard_ns = timing.ended_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """One worker's share of a run."""

    device: str
    items: int
    batches: int
    busy_share: float
    """Part of the run's wall clock, 0 to 1, in which it had one batch or more in hand."""
    median_batch_ms: float
    """What its runner computed for one batch, to 3 %."""
    peak_memory_bytes: int
    """Largest resident host memory of the worker's process."""
    deaths: tuple[str, ...]
    most_items: int | None = None
    """Of a batch, since its device ran out of memory; None: it never did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """One stage of `core.times` over a run: of its items, or of its batches."""

    name: str
    count: int
    """How often it took any time."""
    seconds: float
    """In all threads and workers together."""
    median_ms: float
    p95_ms: float
    longest_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFailure:
    """An item that has no result, and why."""

    key: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """run.json: what is worth knowing of a run afterwards. No other output holds a time."""

    schema: int = 1
    command: tuple[str, ...]
    model: str
    engine: str
    source: str
    output: str
    items: int
    failures: tuple[ItemFailure, ...]
    skipped: tuple[str, ...]
    """Files below the source that are no items, one line a reason."""
    seconds: float
    """From the first item to the last, without starting the workers."""
    start_seconds: float
    """Until every worker was ready."""
    batch: int
    slots: int
    ring_bytes: int
    feeders: int
    writers: int
    devices: tuple[DeviceReport, ...]
    stages: tuple[StageReport, ...] = ()
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    """Devices that are there and take no part, and why."""

    @property
    def items_per_s(self) -> float:
        """Items, failed ones included, per second of wall clock."""
        return self.items / self.seconds if self.seconds else 0.0


def device_report(record: WorkerRecord, *, seconds: float) -> DeviceReport:
    """Shares and medians of one worker's record in a run of `seconds`."""
    return DeviceReport(
        device=record.device,
        items=record.items,
        batches=record.batches.count,
        busy_share=round(record.busy_ns / 1e9 / seconds, 3) if seconds else 0.0,
        median_batch_ms=round(record.batches.quantile(0.5) / 1e6, 3),
        peak_memory_bytes=record.peak_bytes,
        deaths=tuple(record.deaths),
        most_items=record.most_items,
    )


def stage_reports(times: StageTimes) -> tuple[StageReport, ...]:
    """The stages that took any time, in the order of an item's way."""
    return tuple(
        StageReport(
            name=name,
            count=durations.count,
            seconds=round(durations.total / 1e9, 3),
            median_ms=round(durations.quantile(0.5) / 1e6, 3),
            p95_ms=round(durations.quantile(0.95) / 1e6, 3),
            longest_ms=round(durations.longest / 1e6, 3),
        )
        for name, durations in times.by_stage.items()
        if durations.count
    )


@dataclass(slots=True)
class Tally:
    """Counts a run's items as they get done. `total` is asked each time: it may be learnt late."""

    total: Callable[[], int | None]
    records: Sequence[WorkerRecord]
    started: float = field(default_factory=time.monotonic)
    done: int = 0
    failures: list[ItemFailure] = field(default_factory=list)

    def count(self, failure: ItemFailure | None) -> Progress:
        """Another item is done, well or not; how far the run is now."""
        self.done += 1
        if failure is not None:
            self.failures.append(failure)
        return Progress(
            done=self.done,
            failed=len(self.failures),
            total=self.total(),
            seconds=self.seconds,
            items_by_device=tuple((record.device, record.items) for record in self.records),
        )

    @property
    def seconds(self) -> float:
        """Since the run started."""
        return time.monotonic() - self.started
