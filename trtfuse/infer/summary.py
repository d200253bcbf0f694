"""What is said of a run when it is over."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from trtfuse import __version__
from trtfuse.build.store import Engine
from trtfuse.core.cores import usable_cores
from trtfuse.core.events import RunEnded
from trtfuse.core.files import replacing
from trtfuse.core.options import ObservingOptions
from trtfuse.core.record import to_json
from trtfuse.core.report import RunReport, Tally, device_report, stage_reports
from trtfuse.infer.observing import Observer
from trtfuse.infer.plan import Plan
from trtfuse.io.folder import FolderSource
from trtfuse.io.names import PAGE, REPORT
from trtfuse.observe.page import page
from trtfuse.observe.sampler import memory_reports
from trtfuse.observe.verdict import Load, judge


def report(plan: Plan, observed: Observer, command: tuple[str, ...]) -> RunReport:
    """Of a run whose pool has closed: what its workers held at most is known only then."""
    tally, samples = observed.tally, observed.sampler.samples
    return RunReport(
        command=command,
        model=plan.engines[0].manifest.model,
        engine=plan.engine_names,
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


def write(report: RunReport, observed: Observer, options: ObservingOptions) -> None:
    """run.json in the output folder, and the page where it is asked for."""
    output = Path(report.output)
    with replacing(output / REPORT) as part:
        part.write_text(json.dumps(to_json(report), indent=2) + "\n", encoding="utf-8")
    if options.report == "html":
        with replacing(output / PAGE) as part:
            # A name may hold what UTF-8 does not; as text it still says which.
            part.write_text(
                page(report, observed.pictures), encoding="utf-8", errors="backslashreplace"
            )


def ended(report: RunReport) -> RunEnded:
    """The event of its end."""
    return RunEnded(
        items=report.items,
        failed=report.failed,
        seconds=report.seconds,
        verdict=report.verdict.text,
        warnings=report.warnings,
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
        precision=plan.engines[0].manifest.request.precision,
    )


def _skipped(source: FolderSource) -> tuple[str, ...]:
    return tuple(f"{count} {reason}" for reason, count in sorted(source.skipped.items()))


def _versions(engines: tuple[Engine, ...]) -> dict[str, str]:
    requests = (engine.manifest.request for engine in engines)
    return {
        "trtfuse": __version__,
        "python": platform.python_version(),
        **{request.runtime: request.runtime_version for request in requests},
    }
