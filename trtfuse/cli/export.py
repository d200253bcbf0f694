"""`trtfuse export`: flags to ExportOptions, the steps and their proofs to the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtfuse.core.errors import UsageError
from trtfuse.core.options import ExportOptions

if TYPE_CHECKING:
    from trtfuse.graph.export import ExportReport

_DEFAULT = ExportOptions(model="", output=Path())


def export(
    model: Annotated[
        str, typer.Argument(help="An .onnx file, or package.module:factory of a torch module.")
    ],
    card: Annotated[
        Path | None, typer.Option(help="JSON card to put in. Default: the one it has.")
    ] = _DEFAULT.card,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default for a factory: FACTORY.onnx.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Sizes of an input without the batch, as 3,256,256; one an input."),
    ] = None,
    simplify: Annotated[
        bool, typer.Option("--simplify/--no-simplify", help="Run onnxsim, and check it.")
    ] = _DEFAULT.simplify,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference allowed, relative to the largest value.")
    ] = _DEFAULT.tolerance,
    opset: Annotated[
        int, typer.Option(help="ONNX operator set; older graphs are brought up to it.")
    ] = _DEFAULT.opset,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = _DEFAULT.seed,
) -> None:
    """Make an ONNX with a dynamic batch that is proven to answer as its source does.

    Distinct random items are run in batches and one by one, before and after every rewrite. If
    that cannot be proven, no file is written and the exit code is 3.
    """
    from trtfuse.graph.export import export as run

    options = ExportOptions(
        model=model,
        output=output or _default_output(model),
        card=card,
        shapes=tuple(_shape(text) for text in shape or ()),
        simplify=simplify,
        tolerance=tolerance,
        opset=opset,
        seed=seed,
    )
    report = run(options, lambda line: typer.echo(f"{line} …", err=True))
    _show(report, options.tolerance)
    typer.echo(
        f"trtfuse export: OK {options.output}, dynamic batch, "
        f"largest difference {report.largest_difference:.3g}"
    )


def _default_output(model: str) -> Path:
    from trtfuse.graph.source import is_factory

    if not is_factory(model):
        raise UsageError(f"{model}: say where the result goes, for example with -o exported.onnx")
    return Path(f"{model.rpartition(':')[2]}.onnx")


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise UsageError(f"--shape {text}: needs whole numbers above 0, as 3,256,256.")
    return tuple(int(size) for size in sizes)


def _show(report: ExportReport, tolerance: float) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(title=f"Largest difference after each step ({tolerance:g} relative is allowed)")
    for heading in ("step", "absolute", "relative", ""):
        table.add_column(heading)
    for step in report.steps:
        numbers = (f"{step.proof.absolute:.3g}", f"{step.proof.relative:.3g}")
        table.add_row(step.name, *numbers, "kept" if step.kept else "dropped")
    console.print(table)
    for rewrite in report.rewrites:
        before, after = (list(map(str, one)) for one in (rewrite.before, rewrite.after))
        console.print(escape(f"{rewrite.name}: [{', '.join(before)}] -> [{', '.join(after)}]"))
    for note in report.notes:
        console.print(escape(f"Note: {note}."))
