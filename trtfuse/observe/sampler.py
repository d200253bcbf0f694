"""A thread that samples a run every so often, from its start to its end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from trtfuse.core.report import Column, MemoryReport, Meters, Samples, Tally, Usage
from trtfuse.observe.memory import NOTHING, own_bytes, shared_bytes
from trtfuse.observe.rise import rise
from trtfuse.observe.series import Series

PARENT = "parent"
SHARED = "shared memory, all programs"


def no_meters() -> Mapping[str, Usage]:
    """Of devices that have none."""
    return {}


@dataclass
class Readings:
    """One sample of everything: counts, workers, processes, devices."""

    tally: Tally
    meters: Meters = no_meters
    devices: tuple[str, ...] = field(init=False)
    _busy_s: dict[str, float] = field(init=False, default_factory=dict)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self.devices = tuple(self.meters())

    @property
    def columns(self) -> list[Column]:
        """What `read` gives, in its order."""
        workers = self.tally.workers
        return [
            Column("items"),
            Column("failed"),
            *(Column("busy", name) for name in (*workers, *self.devices)),
            *(Column("memory", name) for name in (PARENT, *workers, SHARED, *self.devices)),
        ]

    def read(self, seconds: float) -> list[float]:
        """A value a column, NaN where there is none; `seconds` since the last call's zero."""
        records = self.tally.records
        usage = self.meters()
        for name, one in usage.items():
            # A sum, so that whoever takes differences gets the mean over any stretch.
            busy = 0.0 if one.busy != one.busy else one.busy
            self._busy_s[name] = self._busy_s.get(name, 0.0) + busy * (seconds - self._last)
        self._last = seconds
        return [
            self.tally.done,
            self.tally.failed,
            *(record.busy_ns / 1e9 for record in records),
            *(self._busy_s.get(name, NOTHING) for name in self.devices),
            own_bytes(os.getpid()),
            *(own_bytes(record.pid) for record in records),
            shared_bytes(),
            *(usage[name].used_bytes if name in usage else NOTHING for name in self.devices),
        ]


class Sampler:
    """A context: samples `readings` every `every_s` seconds, and at both ends.

    A sample takes some 50 µs a process and a millisecond a GPU. `then` is called after each, in
    the same thread, and raises nothing.
    """

    then: Callable[[], None] | None = None

    def __init__(self, readings: Readings, *, every_s: float) -> None:
        self._readings = readings
        self._columns = readings.columns
        self._latest: dict[Column, float] = {}
        self._every_s = every_s
        self._series = Series(self._columns)
        self._over = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    @property
    def samples(self) -> Samples:
        """All of them, once the context has closed."""
        return self._series.samples()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self._sample()

    def _sample(self) -> None:
        seconds = time.monotonic() - self._started
        values = self._readings.read(seconds)
        self._series.add(seconds, values)
        self._latest = dict(zip(self._columns, values, strict=True))
        if self.then is not None:
            self.then()

    def latest(self) -> Mapping[Column, float]:
        """The last sample; NaN where a value is not there. Any thread."""
        return self._latest


def memory_reports(samples: Samples) -> tuple[MemoryReport, ...]:
    """Peak, end and slope of every process and device that had any."""
    reports = []
    for line in samples.of("memory"):
        known = [value for value in line.values if value is not None]
        if known:
            found = rise(samples.seconds, line.values)
            reports.append(
                MemoryReport(
                    name=line.column.name,
                    peak_bytes=int(max(known)),
                    last_bytes=int(known[-1]),
                    bytes_per_hour=found.bytes_per_hour,
                    leaks=found.leaks,
                )
            )
    return tuple(reports)
