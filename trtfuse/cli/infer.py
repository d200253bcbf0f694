"""`trtfuse infer`: flags to InferOptions, progress and the closing table to the terminal."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from trtfuse.core.options import InferOptions
from trtfuse.core.units import parse_bytes

_DEFAULT = InferOptions(source=Path())


def infer(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures, or one picture.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where results go. Default: FOLDER-out.")
    ] = _DEFAULT.output,
    model: Annotated[
        str | None, typer.Option(help="Model under engines/. Default: the only one.")
    ] = _DEFAULT.model,
    engine: Annotated[
        str | None, typer.Option(help="One engine's folder name. Default: the only one that fits.")
    ] = _DEFAULT.engine,
    engines: Annotated[Path, typer.Option(help="Folder of engines.")] = _DEFAULT.engines,
    devices: Annotated[
        str | None, typer.Option(help="cpu, or cpu:N for N workers on it. Default: what is there.")
    ] = _DEFAULT.devices,
    workers: Annotated[
        int | None, typer.Option(help="Workers per device. Default: 1.")
    ] = _DEFAULT.workers,
    batch: Annotated[
        int | None, typer.Option(help="Items in one batch. Default: the engine's best.")
    ] = _DEFAULT.batch,
    memory: Annotated[
        str, typer.Option(help="Upper limit of the shared memory ring, as 512MiB or 2GiB.")
    ] = f"{_DEFAULT.memory_bytes >> 20}MiB",
    feeders: Annotated[
        int | None, typer.Option(help="Threads that decode. Default: one a core, at most 16.")
    ] = _DEFAULT.feeders,
    writers: Annotated[
        int | None, typer.Option(help="Threads that write. Default: as many as feeders.")
    ] = _DEFAULT.writers,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Also draw detections on copies of the pictures.")
    ] = _DEFAULT.annotate,
    restarts: Annotated[
        int, typer.Option(help="Workers that may be started again in one run, all together.")
    ] = _DEFAULT.restarts,
) -> int:
    """Run every picture below FOLDER through the pool; results.jsonl in input order.

    A picture that cannot be read is one failed item with its reason; the rest goes on, and the
    exit code is 1.
    """
    options = InferOptions(
        source=folder,
        output=output,
        model=model,
        engine=engine,
        engines=engines,
        devices=devices,
        workers=workers,
        batch=batch,
        memory_bytes=parse_bytes(memory, flag="--memory"),
        feeders=feeders,
        writers=writers,
        annotate=annotate,
        restarts=restarts,
    )
    from trtfuse.cli.progress import last_line, show_report, watching
    from trtfuse.infer import infer as run

    with watching(sys.stderr) as watch:
        report = run(options, watch=watch, command=_command())
    show_report(report)
    typer.echo(last_line(report))
    return 1 if report.failures else 0


def _command() -> tuple[str, ...]:
    return tuple(shlex.quote(word) for word in ["trtfuse", *sys.argv[1:]])
