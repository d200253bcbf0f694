"""What a run says of itself, while it goes and when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trtfuse.core.flow import Failure, Outcome, Timing
from trtfuse.core.times import Durations, StageTimes
from trtfuse.core.units import mib


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
    pid: int | None = None
    """Of its process now."""
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
    heard_ns: int = 0
    """When its last answer was there, by `time.monotonic_ns`."""

    def note(self, items: int, timing: Timing) -> None:
        """A task of so many items is answered. In the order of the answers."""
        self.items += items
        self.batches.add(timing.compute_ns)
        # Batches in flight together count once.
        self.busy_ns += timing.ended_ns - max(timing.began_ns, self.heard_ns)
        self.heard_ns = timing.ended_ns


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
class Usage:
    """What a device says of itself, all programs together; NaN where it does not say."""

    used_bytes: float
    busy: float
    """Share of the last moments, 0 to 1, in which it computed at all."""


Meters = Callable[[], Mapping[str, Usage]]
"""Usage now by device ("cuda:0"), of the same devices every time. Any thread; never raises."""


@dataclass(frozen=True, slots=True)
class Column:
    """What was sampled, of whom.

    items, failed: how many so far. busy: seconds so far in which this worker had a batch in hand,
    or this GPU computed at all, as NVML counts it. memory: bytes of this process or device.
    """

    kind: Literal["items", "failed", "busy", "memory"]
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One column, a value a sample; None where there was none."""

    column: Column
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A run in time: a few hundred samples at most, as `observe.series` keeps them."""

    seconds: tuple[float, ...] = ()
    """Of each sample, from the run's start on."""
    lines: tuple[Line, ...] = ()

    def of(self, kind: str) -> tuple[Line, ...]:
        """The lines of this kind."""
        return tuple(line for line in self.lines if line.column.kind == kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """How the memory of a process or a device went. See `observe.rise` for what a leak is."""

    name: str
    peak_bytes: int
    last_bytes: int
    bytes_per_hour: float | None
    """Its slope after the warm-up; None: the run is too short for one."""
    leaks: bool

    @property
    def warning(self) -> str:
        """A sentence where it leaks; else empty."""
        if not self.leaks or self.bytes_per_hour is None:
            return ""
        return (
            f"{self.name}: memory rises all the time, by {mib(int(self.bytes_per_hour))} an hour, "
            f"and is at {mib(self.last_bytes)}: a leak."
        )


Bound = Literal["decode", "copy", "compute", "encode", "dispatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run waits for, and what would help. See `observe.verdict`."""

    bound: Bound | None
    """None: nothing was busy half of the time."""
    share: float
    """Part of the run's time, 0 to 1, that this took."""
    text: str
    shares: dict[Bound, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFailure:
    """An item that has no result, and why."""

    key: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """run.json: what is worth knowing of a run afterwards. No other output holds a time."""

    schema: int = 2
    began: str = ""
    """When, in UTC."""
    command: tuple[str, ...]
    model: str
    engine: str
    source: str
    output: str
    items: int
    failures: tuple[ItemFailure, ...]
    """The first MOST_FAILURES of them; results.jsonl has all."""
    failed: int
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
    verdict: Verdict
    memory: tuple[MemoryReport, ...] = ()
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    """Devices that are there and take no part, and why."""
    samples: Samples = Samples()
    """Last, for it is the longest."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is not as it should be, and no item's failure."""
        return tuple(one.warning for one in self.memory if one.leaks)

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


# What is kept of a run in which everything fails; a line each takes some 200 bytes.
MOST_FAILURES = 1000


@dataclass(slots=True)
class Tally:
    """Counts a run's items as they get done. `total` is asked each time: it may be learnt late."""

    total: Callable[[], int | None]
    records: Sequence[WorkerRecord]
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    done: int = 0
    failed: int = 0
    failures: list[ItemFailure] = field(default_factory=list)
    """The first of them."""
    stages: StageTimes = field(default_factory=StageTimes)

    def count(self, outcome: Outcome) -> Progress:
        """Another item is done, well or not; how far the run is now."""
        self.done += 1
        self.stages.add(outcome.times)
        if isinstance(why := outcome.entry, Failure):
            self.failed += 1
            if self.failed <= MOST_FAILURES:
                key = outcome.item.key
                self.failures.append(ItemFailure(key=key, kind=why.kind, message=why.message))
        return Progress(
            done=self.done,
            failed=self.failed,
            total=self.total(),
            seconds=self.seconds,
            items_by_device=tuple((record.device, record.items) for record in self.records),
        )

    @property
    def seconds(self) -> float:
        """Since the run started, until now or its end."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def end(self) -> None:
        """That was the last one: time stands still from now on."""
        self.ended = time.monotonic()

    @property
    def workers(self) -> tuple[str, ...]:
        """Their names, as the pool calls them too: several may be of one device."""
        return tuple(worker_name(n, record.device) for n, record in enumerate(self.records))


def worker_name(number: int, device: str) -> str:
    """ "worker 0 (cuda:0)"."""
    return f"worker {number} ({device})"
