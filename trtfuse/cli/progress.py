"""How a run looks: a bar on a terminal, a plain line every ten seconds elsewhere, then a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from trtfuse.core.report import Progress, RunReport
from trtfuse.core.units import mib

# Often enough to see that it lives, seldom enough for a log of a night.
_LINE_EVERY_S = 10.0

Watch = Callable[[Progress], None]


@contextmanager
def watching(stream: TextIO, *, silent: bool = False) -> Iterator[Watch]:
    """What to call with each Progress. Draws on `stream` only, so that stdout stays clean.

    `silent`: draws nothing, for the stream is somebody else's.
    """
    if silent:
        yield lambda _: None
        return
    console = Console(file=stream)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _lines(stream)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("infer", total=None, rate="")

        def watch(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, rate=rates(progress))

        yield watch


def _lines(stream: TextIO) -> Watch:
    last = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY_S:
            last = now
            of = f" of {progress.total}" if progress.total is not None else ""
            stream.write(f"trtfuse infer: {progress.done}{of} items, {rates(progress)}\n")
            stream.flush()

    return watch


def far(heard: Sequence[Progress]) -> str:
    """ "37 of 200 items are done, "; empty where nothing was heard of any."""
    if not heard:
        return ""
    of = f" of {heard[-1].total}" if heard[-1].total is not None else ""
    return f"{heard[-1].done}{of} items are done, "


def rates(progress: Progress) -> str:
    """ "812.4 items/s (cpu:0 400.1, cpu:1 412.3), 2 failed"; one device is not named."""
    seconds = progress.seconds or 1e-9
    text = f"{progress.done / seconds:.1f} items/s"
    if len(progress.items_by_device) > 1:
        each = (f"{name} {items / seconds:.1f}" for name, items in progress.items_by_device)
        text += f" ({', '.join(each)})"
    return text + (f", {progress.failed} failed" if progress.failed else "")


def show_report(report: RunReport) -> None:
    """The table of devices, and the failed items (the first ten), on stdout."""
    console = Console(soft_wrap=True)
    table = Table(title=f"{report.model} · {report.engine}", title_justify="left")
    table.add_column("device")
    for column in ("items", "batches", "busy", "ms/batch", "peak memory", "deaths"):
        table.add_column(column, justify="right")
    for device in report.devices:
        table.add_row(
            device.device,
            str(device.items),
            str(device.batches),
            f"{device.busy_share:.0%}",
            f"{device.median_batch_ms:.1f}",
            mib(device.peak_memory_bytes),
            str(len(device.deaths)),
        )
    console.print(table)
    for device in report.devices:
        if device.most_items is not None:
            line = (
                f"{device.device} ran out of memory, and had batches of at most "
                f"{device.most_items} since. A smaller --batch, or fewer --lanes or --instances, "
                f"leave it room."
            )
            console.print(line, markup=False, highlight=False)
    for note in report.notes:
        console.print(note, markup=False, highlight=False)
    for line in (report.verdict.text, *report.warnings):
        console.print(line, markup=False, highlight=False)
    for failure in report.failures[:10]:
        # repr: a file's name may hold a newline, or what the terminal obeys.
        line = f"failed: {failure.key!r}: {failure.message}"
        console.print(line, markup=False, highlight=False)
    if report.failed > 10:
        console.print(f"… and {report.failed - 10} more, in run.json and results.jsonl")
    for reason in report.skipped:
        console.print(f"skipped: {reason}", markup=False, highlight=False)
    console.print(f"results: {report.output}", markup=False, highlight=False)


def last_line(report: RunReport) -> str:
    """The stable line that scripts may look for."""
    state = "FAILED" if report.failures else "OK"
    return (
        f"trtfuse infer: {state} {report.items} items, {report.failed} failed, "
        f"{report.items_per_s:.1f} items/s"
    )
