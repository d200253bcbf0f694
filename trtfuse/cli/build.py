"""`trtfuse build`: flags to BuildOptions, the closing table to the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import GateResult, Precision

if TYPE_CHECKING:
    from trtfuse.build.build import BuildReport, Outcome

_DEFAULT = BuildOptions(model=Path())
Size = tuple[int, int]


def build(
    model: Annotated[Path, typer.Argument(help="ONNX file, as `trtfuse export` writes it.")],
    devices: Annotated[
        str | None, typer.Option(help="cpu. Default: what is there.")
    ] = _DEFAULT.devices,
    precision: Annotated[str, typer.Option(help="fp32.")] = _DEFAULT.precision.value,
    batch: Annotated[str, typer.Option(help="min:opt:max items of one batch.")] = ":".join(
        map(str, _DEFAULT.batch)
    ),
    size: Annotated[
        str | None,
        typer.Option(
            help="min:opt:max HEIGHTxWIDTH, as 256x256:512x512:1024x1024, or one of it; needed "
            "where the graph leaves them open."
        ),
    ] = None,
    engines: Annotated[Path, typer.Option(help="Folder of engines.")] = _DEFAULT.engines,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build even what is up to date.")
    ] = _DEFAULT.rebuild,
) -> None:
    """Build MODEL for every kind of device chosen; each engine must answer as the graph does.

    What is up to date, by the fingerprint of everything that matters, is kept.
    """
    options = BuildOptions(
        model=model,
        devices=devices,
        precision=parse_precision(precision),
        batch=parse_batch(batch),
        sizes=parse_sizes(size) if size is not None else None,
        engines=engines,
        rebuild=rebuild,
    )
    from trtfuse.build.build import build as run

    report = run(options, progress=lambda line: typer.echo(line, err=True))
    _show(report)
    for outcome in report.outcomes:
        typer.echo(last_line(outcome))


def parse_precision(text: str) -> Precision:
    """`--precision`. Raises UnknownName."""
    known = [precision.value for precision in Precision]
    if text not in known:
        raise UnknownName.among("--precision", text, known)
    return Precision(text)


def parse_batch(text: str) -> tuple[int, int, int]:
    """`--batch`, as "1:4:8". Raises UsageError."""
    match = re.fullmatch(r"(\d+):(\d+):(\d+)", text, re.ASCII)
    if match is None:
        raise UsageError(f"--batch {text}: needs min:opt:max, for example --batch 1:4:8")
    return int(match[1]), int(match[2]), int(match[3])


def parse_sizes(text: str) -> tuple[Size, Size, Size]:
    """`--size`, as "256x256:512x512:1024x1024" or "512x512"; heights first. Raises UsageError."""
    matches = [re.fullmatch(r"(\d+)x(\d+)", word, re.ASCII) for word in text.split(":")]
    sizes = [(int(match[1]), int(match[2])) for match in matches if match]
    if len(sizes) != len(matches) or len(sizes) not in (1, 3):
        raise UsageError(
            f"--size {text}: needs HEIGHTxWIDTH as min:opt:max, for example "
            f"--size 256x256:512x512:1024x1024, or one for all three."
        )
    return sizes[0], sizes[len(sizes) // 2], sizes[-1]


def last_line(outcome: Outcome) -> str:
    """The stable line that scripts may search for."""
    engine = outcome.engine
    request = engine.manifest.request
    if outcome.built:
        why = f"built in {outcome.seconds:.1f} s"
    else:
        _, shapes = request.profile[0]
        batch = ":".join(str(shape[0]) for shape in (shapes.min, shapes.opt, shapes.max))
        why = (
            f"up to date: model {request.model_sha256[:8]}, "
            f"{request.runtime} {request.runtime_version}, batch {batch}"
        )
    return f"trtfuse build: OK {engine.folder} ({why})"


def _show(report: BuildReport) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    table = Table("device", Column("engine", overflow="fold"), "size", "gate", "built in")
    for outcome in report.outcomes:
        engine = outcome.engine
        table.add_row(
            engine.manifest.request.device_name,
            engine.folder.name,
            f"{engine.path.stat().st_size / 1e6:.1f} MB",
            _gates(engine.manifest.gates),
            f"{outcome.seconds:.1f} s" if outcome.built else "kept",
        )
    Console().print(table)
    for folder in report.removed:
        typer.echo(f"Removed {folder}: built from other weights under this name.")
    if any(outcome.engine.manifest.card is None for outcome in report.outcomes):
        typer.echo(
            "The model has no card: the engine can be served arrays, but `trtfuse infer` needs to "
            "know its pictures. Add one with: trtfuse export MODEL --card card.json -o OUTPUT"
        )


def _gates(gates: tuple[GateResult, ...]) -> str:
    """The gate that came nearest to its limit."""
    worst = max(gates, key=lambda gate: gate.value / gate.limit)
    return f"{worst.name} {worst.value:.1e}, limit {worst.limit:g}"
