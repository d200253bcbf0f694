"""How far a long part of a build is: a bar on a terminal, else a plain line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# As the progress of `infer`.
_LINE_EVERY_S = 10.0

Steps = Callable[[str, int, int], None]
"""(what, how far, of how much); of 0: it is not known."""


@contextmanager
def counting(stream: TextIO) -> Iterator[Steps]:
    """What to call with (what, done, total). Draws on `stream` only."""
    console = Console(file=stream)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _lines(stream)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def steps(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            # Without a total the bar pulses, and the time that has passed is all there is to say.
            bar.update(
                tasks[what], total=total or None, completed=done, visible=done < (total or 1)
            )

        yield steps


def _lines(stream: TextIO) -> Steps:
    last = time.monotonic()

    def steps(what: str, done: int, total: int) -> None:
        nonlocal last
        if total and time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            stream.write(f"trtfuse build: {what} {done} of {total}\n")
            stream.flush()

    return steps
