"""`trtfuse bench`: flags to BenchOptions, tables to the terminal, and results held together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from trtfuse.cli.build import parse_precision, parse_sizes
from trtfuse.core.errors import UsageError
from trtfuse.core.options import Against, BenchOptions

if TYPE_CHECKING:
    from trtfuse.bench.compare import Compared
    from trtfuse.bench.result import Result

_DEFAULT = BenchOptions(model="")
_SLOWER, _UNCLEAR = 3, 1


class ModelFirst(TyperGroup):
    """A group whose first word may be a model: `bench face.onnx` is `bench run face.onnx`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the command where none is said."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


def bench(
    model: Annotated[
        str, typer.Argument(help="An .onnx file (built if need be), or a model under --engines.")
    ],
    engine: Annotated[
        str | None, typer.Option(help="One engine's folder name. Default: the only one that fits.")
    ] = _DEFAULT.engine,
    devices: Annotated[str | None, typer.Option(help="cpu, or cpu:2.")] = _DEFAULT.devices,
    gpus: Annotated[
        str | None, typer.Option(help="all, or some: 0,1, or their UUIDs.")
    ] = _DEFAULT.gpus,
    precision: Annotated[str | None, typer.Option(help="fp32, fp16, bf16 or int8.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "--instances", help="Per device. Default: one.")
    ] = _DEFAULT.workers,
    lanes: Annotated[
        int | None, typer.Option(help="Batches under way in a worker on a GPU.")
    ] = _DEFAULT.lanes,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph/--no-cuda-graph", help="On a GPU.")
    ] = _DEFAULT.cuda_graph,
    batch: Annotated[str, typer.Option(help="Sizes, one after the other.")] = ",".join(
        map(str, _DEFAULT.batches)
    ),
    size: Annotated[
        str | None, typer.Option(help="As in build, where the graph leaves its size open.")
    ] = None,
    against: Annotated[
        str, typer.Option(help="Also: naive, ort, pytorch (with --module); as naive,ort.")
    ] = "",
    module: Annotated[
        str | None, typer.Option(help="package.module:factory that the graph was exported from.")
    ] = _DEFAULT.module,
    repeats: Annotated[int, typer.Option(help="Of everything, in turn.")] = _DEFAULT.repeats,
    seconds: Annotated[
        float, typer.Option(help="Of one repeat of one path at one batch size.")
    ] = _DEFAULT.seconds,
    engines: Annotated[Path, typer.Option(help="Folder of engines.")] = _DEFAULT.engines,
    json: Annotated[Path | None, typer.Option(help="File to write the result to.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Picture to draw, as .svg.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="An earlier --json to be held against.")
    ] = None,
    fail_below: Annotated[
        float | None, typer.Option(help="With --baseline: the least ratio of items/s, as 0.95.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Condition that may differ; may be repeated.")
    ] = None,
) -> int:
    """Measure MODEL's engines: alone, through the pool, and beside other ways to run it.

    With --fail-below, a path that is surely slower ends with exit code 3, one of which the spread
    does not let it be told with 1.
    """
    if (fail_below is not None or allow) and baseline is None:
        raise UsageError("--fail-below and --allow: need a --baseline to hold the result against.")
    options = BenchOptions(
        model=model,
        engines=engines,
        engine=engine,
        sizes=None if size is None else parse_sizes(size),
        devices=devices,
        gpus=gpus,
        precision=None if precision is None else parse_precision(precision),
        workers=workers,
        lanes=lanes,
        cuda_graph=cuda_graph,
        batches=parse_batches(batch),
        against=tuple(cast(Against, name) for name in against.split(",") if name),
        module=module,
        repeats=repeats,
        seconds=seconds,
    )
    from trtfuse.bench import result as results
    from trtfuse.bench.chart import svg
    from trtfuse.bench.compare import compare as hold
    from trtfuse.bench.measure import measure
    from trtfuse.core.files import replacing

    earlier = None if baseline is None else results.read(baseline)
    found = measure(options, lambda line: typer.echo(line, err=True))
    show(found)
    if json is not None:
        results.write(json, found)
    if chart is not None:
        with replacing(chart) as part:
            part.write_text(svg(found), encoding="utf-8")
    code = 0
    if earlier is not None:
        compared = hold(earlier, found, allow=allow or ())
        code = show_compared(compared, fail_below)
    pool = next(cell for cell in found.cells if cell.path == "pool")
    state = "FAILED" if code else "OK"
    typer.echo(f"trtfuse bench: {state} {pool.rate.median:.1f} items/s at batch {pool.batch}")
    return code


def compare(
    old: Annotated[Path, typer.Argument(help="A result that --json has written.")],
    new: Annotated[Path, typer.Argument(help="Another.")],
    allow: Annotated[
        list[str] | None, typer.Option(help="Condition that may differ; may be repeated.")
    ] = None,
    fail_below: Annotated[
        float | None, typer.Option(help="The least ratio of items/s, new over old, as 0.95.")
    ] = None,
) -> int:
    """Hold NEW against OLD, if both were measured under the same conditions."""
    from trtfuse.bench.compare import compare as hold
    from trtfuse.bench.result import read

    return show_compared(hold(read(old), read(new), allow=allow or ()), fail_below)


def parse_batches(text: str) -> tuple[int, ...]:
    """`--batch`, as "1,8,32". Raises UsageError."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--batch {text}: needs sizes above 0, as 1,8,32.")
    return tuple(int(word) for word in words)


def show(result: Result) -> None:
    """Conditions, then a row a path and batch size."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from trtfuse.bench.machine import BUSY

    console = Console(soft_wrap=True)
    titles = ("batch", "items/s", "quartiles", "p50 ms", "p90 ms", "p99 ms", "n")
    for name, value in (*result.conditions.items(), *result.noted.items()):
        console.print(f"{name}: {value}", markup=False, highlight=False)
    # Narrow: a terminal of 80 columns would cut the names of the paths.
    table = Table(title=result.model, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("path", no_wrap=True, min_width=max(len(cell.path) for cell in result.cells))
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for cell in result.cells:
        rate, took = cell.rate, cell.latency
        table.add_row(
            cell.path,
            str(cell.batch),
            f"{rate.median:,.1f}",
            f"{rate.low:,.1f} to {rate.high:,.1f}",
            f"{took.p50_ms:.3f}",
            f"{took.p90_ms:.3f}",
            "few" if took.p99_ms is None else f"{took.p99_ms:.3f}",
            str(took.samples),
        )
    console.print(table)
    if float(result.noted["load"]) > BUSY:
        console.print("Others were using this machine: these numbers are too low.")


def show_compared(compared: tuple[Compared, ...], fail_below: float | None) -> int:
    """A row a path and batch size, new over old; the exit code that `fail_below` makes of them."""
    from rich.console import Console
    from rich.table import Table

    from trtfuse.bench.compare import verdict

    table = Table(title="items/s, new over old", title_justify="left")
    table.add_column("path")
    for column in ("batch", "ratio", "95 % interval", f"at least {fail_below}"):
        table.add_column(column, justify="right")
    said = ["-" if fail_below is None else verdict(c, fail_below=fail_below) for c in compared]
    for one, word in zip(compared, said, strict=True):
        ratio = one.ratio
        interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
        table.add_row(one.path, str(one.batch), f"{ratio.value:.3f}", interval, word)
    Console(soft_wrap=True).print(table)
    if "slower" in said:
        return _SLOWER
    return _UNCLEAR if "unclear" in said else 0
