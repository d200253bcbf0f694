"""A run's numbers for Prometheus: a text file that is written anew, or a port that answers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from trtfuse.core.errors import UsageError
from trtfuse.core.report import Column, Tally

# Prometheus asks every 15 s by default; node_exporter reads the file when it is asked.
_WRITE_EVERY_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)  # the registry keeps it by its identity
class RunCollector:
    """What Prometheus gets whenever it asks."""

    tally: Tally
    latest: Callable[[], Mapping[Column, float]]
    """The last sample."""
    about: Mapping[str, str]
    """Model, engine and the like: labels of `trtfuse_run_info`."""

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield InfoMetricFamily("trtfuse_run", "What is run.", value=dict(self.about))
        yield from self._items()
        yield from self._workers()
        yield from self._samples()
        stages = SummaryMetricFamily(
            "trtfuse_stage_seconds", "Time in a stage, of items or batches.", labels=["stage"]
        )
        for name, times in self.tally.stages.by_stage.items():
            stages.add_metric([name], count_value=times.count, sum_value=times.total / 1e9)
        yield stages

    def _items(self) -> Iterator[Metric]:
        failed = self.tally.failed
        items = CounterMetricFamily("trtfuse_items", "Items that are done.", labels=["result"])
        items.add_metric(["done"], self.tally.done - failed)
        items.add_metric(["failed"], failed)
        yield items
        if (total := self.tally.total()) is not None:
            yield GaugeMetricFamily("trtfuse_items_expected", "Items known of.", value=total)

    def _workers(self) -> Iterator[Metric]:
        items = CounterMetricFamily("trtfuse_worker_items", "Computed items.", labels=["worker"])
        deaths = CounterMetricFamily("trtfuse_worker_deaths", "Deaths.", labels=["worker"])
        for name, record in zip(self.tally.workers, self.tally.records, strict=True):
            items.add_metric([name], record.items)
            deaths.add_metric([name], len(record.deaths))
        yield from (items, deaths)

    def _samples(self) -> Iterator[Metric]:
        busy = CounterMetricFamily(
            "trtfuse_busy_seconds", "Of workers with a batch in hand, of GPUs.", labels=["name"]
        )
        memory = GaugeMetricFamily(
            "trtfuse_memory_bytes", "Private memory of processes; of GPUs, all.", labels=["name"]
        )
        for column, value in self.latest().items():
            if column.kind in ("busy", "memory"):
                family = busy if column.kind == "busy" else memory
                family.add_metric([column.name], value)
        yield from (busy, memory)


@contextmanager
def exposing(target: str, collector: RunCollector) -> Iterator[Callable[[], None]]:
    """Expose at `target`, a file or [HOST]:PORT; what to call after each sample.

    Without HOST only this machine may ask. A file is whole at all times, and stays. Raises
    UsageError where the port is taken, or the file cannot be written.
    """
    registry = CollectorRegistry()
    registry.register(cast(Collector, collector))  # which its `collect` makes it
    if place := re.fullmatch(r"([^/:]*):(\d+)", target):
        with _served(target, place[1] or "127.0.0.1", int(place[2]), registry):
            yield lambda: None
        return
    file = _TextFile(Path(target), registry)
    try:
        file.write()
    except OSError as error:
        raise UsageError(f"--metrics {target}: cannot be written ({error.strerror}).") from error
    yield file.write_if_due
    file.write_if_due(every_s=0.0)


@contextmanager
def _served(target: str, host: str, port: int, registry: CollectorRegistry) -> Iterator[None]:
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:  # OverflowError: no such port
        raise UsageError(f"--metrics {target}: cannot be served ({error}).") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _TextFile:
    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        self._path = path
        self._registry = registry
        self._written = time.monotonic()
        self._broken = False

    def write(self) -> None:
        """To a file beside it, which is then renamed."""
        write_to_textfile(str(self._path), self._registry)
        self._written = time.monotonic()

    def write_if_due(self, every_s: float = _WRITE_EVERY_S) -> None:
        """No run ends for its metrics: a file that cannot be written is told of once."""
        if self._broken or time.monotonic() - self._written < every_s:
            return
        try:
            self.write()
        except OSError as error:
            self._broken = True
            _log.warning("--metrics %s: cannot be written any more (%s)", self._path, error)
