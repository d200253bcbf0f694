"""A folder through the pool: the map of the program.

    source ─► Stream's feeders ─► slots ─► Pool ─► Stream's writers ─► Order ─► sink

What stands here opens these in order, lets the outcomes run from one end to the other, and writes
down what happened. How each of them works is in the module of its name.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from trtfuse import __version__
from trtfuse.build.backends import metered
from trtfuse.build.fleet import find
from trtfuse.build.store import Engine
from trtfuse.core.card import Card
from trtfuse.core.cores import usable_cores
from trtfuse.core.errors import CardError
from trtfuse.core.files import replacing
from trtfuse.core.flow import Outcome, Sink
from trtfuse.core.options import InferOptions
from trtfuse.core.record import to_json
from trtfuse.core.report import (
    Progress,
    RunReport,
    Samples,
    Tally,
    device_report,
    stage_reports,
)
from trtfuse.io.folder import FolderSource
from trtfuse.io.names import REPORT
from trtfuse.io.opening import open_sink, open_source
from trtfuse.io.sink import Run
from trtfuse.observe.sampler import Readings, Sampler, memory_reports
from trtfuse.observe.verdict import Load, judge
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Layout, created, for_engine
from trtfuse.pool.stream import Stream, Threads
from trtfuse.tasks.picture import one_thread_each
from trtfuse.tasks.table import codec

# More decoders feed more than one process can write, and hold memory.
_MOST_FEEDERS = 16

Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run, decided: nothing has been opened yet but the list of pictures."""

    options: InferOptions
    began: datetime
    """When the run was asked for, in UTC; and the same by `time.monotonic`."""
    began_s: float
    source: FolderSource
    output: Path
    engines: tuple[Engine, ...]
    """Of one model, each for a device of its own; they differ in nothing that the ring knows."""
    worker_engines: tuple[str, ...]
    """Folder name of each worker's."""
    notes: tuple[str, ...]
    card: Card
    seats: tuple[Seat, ...]
    threads: Threads
    layout: Layout


def infer(options: InferOptions, *, watch: Watch, command: tuple[str, ...] = ()) -> RunReport:
    """Run every item of `options.source`: results, results.jsonl and run.json in the output folder.

    `watch` is called after every item, in this thread; `command` goes into the report. Raises
    UsageError, CardError, EngineError or PoolError where the run cannot start or go on; an item
    that fails is in the report.
    """
    plan = decide(options)
    with (
        one_thread_each(),
        open_sink(
            plan.output, source=options.source, writing=options.writing, run=_run(options, plan)
        ) as sink,
        created(plan.layout) as ring,
        Pool(plan.seats, ring, restarts=options.restarts, batch_s=options.batch_timeout_s) as pool,
        metered(seat.device for seat in plan.seats) as meters,
    ):
        remaining = sink.remaining(plan.source)
        tally = Tally(total=lambda: remaining.count, records=pool.records)
        meaning = codec(plan.card, depth=options.writing.depth)
        with (
            Sampler(Readings(tally, meters), every_s=options.observing.every_s) as sampler,
            Stream(remaining, meaning, sink, pool, ring) as stream,
        ):
            for outcome in stream.run(plan.threads):
                watch(tally.count(_committed(sink, outcome)))
            tally.end()
    # The pool has closed: what its workers held at most is known now.
    report = _report(plan, tally, sampler.samples, command)
    with replacing(plan.output / REPORT) as part:
        part.write_text(json.dumps(to_json(report), indent=2) + "\n", encoding="utf-8")
    return report


def decide(options: InferOptions) -> Plan:
    """Find the pictures, the engine and the devices, check that they fit, and size the ring."""
    began, began_s = datetime.now(timezone.utc), time.monotonic()
    source = open_source(options.source, options.reading)
    fleet = find(options)
    seats = tuple(Seat(device=one.device, open_runner=one.open_runner) for one in fleet.places)
    engine = fleet.engines[0]
    card = engine.manifest.card
    if card is None:
        raise CardError(
            f"{engine.folder}: its model has no card, so nothing says what a picture is to "
            f"it. Give it one with: trtfuse export {engine.manifest.source} --card CARD.json -o …"
        )
    feeders = options.feeders or min(usable_cores(), _MOST_FEEDERS)
    threads = Threads(feeders=feeders, writers=options.writers or feeders)
    layout = for_engine(
        engine.manifest,
        batch=options.batch or engine.manifest.request.profile[0][1].opt[0],
        # Each thread fills or empties one.
        wanted=sum(one.batches for one in fleet.places) + threads.feeders + threads.writers,
        memory_bytes=options.memory_bytes,
    )
    return Plan(
        options=options,
        began=began,
        began_s=began_s,
        source=source,
        output=options.output or _beside(options.source),
        engines=fleet.engines,
        worker_engines=tuple(one.engine for one in fleet.places),
        notes=fleet.notes,
        card=card,
        seats=seats,
        threads=threads,
        layout=layout,
    )


def _run(options: InferOptions, plan: Plan) -> Run:
    """What must be the same for a run to go on where another ended."""
    manifest = plan.engines[0].manifest
    engines = (f"{one.folder.name} ({one.manifest.engine_sha256[:12]})" for one in plan.engines)
    identity = {
        "trtfuse": __version__,
        "source": str(options.source.resolve()),
        "model": f"{manifest.model} ({manifest.request.model_sha256[:12]})",
        "engine": ", ".join(sorted(engines)),
        **{f"--{name}": str(value) for name, value in to_json(options.writing).items()},
    }
    return Run(identity=identity, engines=plan.worker_engines, restart=options.restart)


def _committed(sink: Sink, outcome: Outcome) -> Outcome:
    began = time.monotonic_ns()
    committed = sink.commit(outcome)
    committed.times.commit = time.monotonic_ns() - began
    return committed


def _report(plan: Plan, tally: Tally, samples: Samples, command: tuple[str, ...]) -> RunReport:
    return RunReport(
        command=command,
        model=plan.engines[0].manifest.model,
        engine=", ".join(engine.folder.name for engine in plan.engines),
        source=str(plan.options.source),
        output=str(plan.output),
        items=tally.done,
        failures=tuple(tally.failures),
        failed=tally.failed,
        skipped=_skipped(plan.source),
        began=plan.began.isoformat(timespec="seconds"),
        seconds=round(tally.seconds, 3),
        start_seconds=round(tally.started - plan.began_s, 3),
        batch=plan.layout.batch,
        slots=plan.layout.slots,
        ring_bytes=plan.layout.total_bytes,
        feeders=plan.threads.feeders,
        writers=plan.threads.writers,
        devices=tuple(device_report(record, seconds=tally.seconds) for record in tally.records),
        stages=stage_reports(tally.stages),
        verdict=judge(_load(plan, tally)),
        memory=memory_reports(samples),
        samples=samples,
        versions=_versions(plan.engines),
        notes=plan.notes,
    )


def _load(plan: Plan, tally: Tally) -> Load:
    return Load(
        seconds=tally.seconds,
        stages={name: times.total / 1e9 for name, times in tally.stages.by_stage.items()},
        busy_s=tuple(record.busy_ns / 1e9 for record in tally.records),
        feeders=plan.threads.feeders,
        writers=plan.threads.writers,
        cores=usable_cores(),
        batch=plan.layout.batch,
        on_gpu=any(seat.device.startswith("cuda") for seat in plan.seats),
    )


def _skipped(source: FolderSource) -> tuple[str, ...]:
    return tuple(f"{count} {reason}" for reason, count in sorted(source.skipped.items()))


def _beside(source: Path) -> Path:
    """ "photos-out" for "photos/", "a-out" for "a.png"; beside it, wherever it was named from."""
    whole = source.resolve()
    return whole.with_name(f"{whole.stem if whole.is_file() else whole.name}-out")


def _versions(engines: tuple[Engine, ...]) -> dict[str, str]:
    requests = (engine.manifest.request for engine in engines)
    return {
        "trtfuse": __version__,
        "python": platform.python_version(),
        **{request.runtime: request.runtime_version for request in requests},
    }
