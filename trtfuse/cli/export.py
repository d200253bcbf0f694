"""`trtfuse export`: flags to ExportOptions, the steps and their proofs to the terminal."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtfuse.core.errors import UsageError
from trtfuse.core.options import ExportOptions, Sizes
from trtfuse.core.units import parse_bytes

if TYPE_CHECKING:
    from trtfuse.graph.export import ExportReport

_DEFAULT = ExportOptions(model="", output=Path())


def export(
    model: Annotated[
        str,
        typer.Argument(
            help="An .onnx, .pt2 or TorchScript .pt, or package.module:factory of a torch module."
        ),
    ],
    card: Annotated[
        Path | None, typer.Option(help="JSON card to put in. Default: the one it has.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default for a factory: FACTORY.onnx.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes of an input without the batch, as 3,256,256 or int64:77; one an input. "
            "A name keeps its size open: 3,height,width."
        ),
    ] = None,
    batch_input: Annotated[
        list[str] | None,
        typer.Option(help="An input that carries the batch. Default: found by running."),
    ] = None,
    batch_axis: Annotated[
        list[str] | None,
        typer.Option(
            help="Where an input or output has its batch, as state=1: moved to the front."
        ),
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(help="An input that is always this number, or this .npy: sr=16000."),
    ] = None,
    static_batch: Annotated[
        bool, typer.Option("--static-batch", help="Leave the batch as the graph has it.")
    ] = _DEFAULT.static_batch,
    arg: Annotated[
        list[str] | None, typer.Option(help="An argument of the factory, as name=value.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="State dict for the factory's module: .pt or .safetensors.")
    ] = _DEFAULT.weights,
    weights_key: Annotated[
        str | None, typer.Option(help="Where in a .pt file the state dict is, as params_ema.")
    ] = _DEFAULT.weights_key,
    fuse: Annotated[
        str, typer.Option(help="Work of the host to bring into the graph: pre,post,resize.")
    ] = "",
    simplify: Annotated[
        bool, typer.Option("--simplify/--no-simplify", help="Run onnxsim, and check it.")
    ] = _DEFAULT.simplify,
    simplify_timeout: Annotated[
        float, typer.Option(help="Seconds until onnxsim is ended, and left out.")
    ] = _DEFAULT.simplify_s,
    simplify_memory: Annotated[
        str | None, typer.Option(help="Memory that onnxsim may map. Default: 16GiB.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest difference allowed, relative to the largest value.")
    ] = _DEFAULT.tolerance,
    target: Annotated[
        str,
        typer.Option(
            help="Who has to read it: any, tensorrt8.6, tensorrt10, tensorrt11, rtx, ort."
        ),
    ] = _DEFAULT.target,
    opset: Annotated[
        int | None, typer.Option(help="ONNX operator set to raise it to. Default: the target's.")
    ] = _DEFAULT.opset,
    external_data_threshold: Annotated[
        str | None, typer.Option(help="Weights beyond this go to a file of their own: 2GB.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = _DEFAULT.seed,
) -> None:
    """Make an ONNX with a dynamic batch that is proven to answer as its source does.

    Distinct random items are run in batches and one by one, before and after every rewrite. If
    that cannot be proven, no file is written and the exit code is 3.
    """
    from trtfuse.api import export as run
    from trtfuse.pool.spawn import limit

    sizes, dtypes = _shapes(shape or [])
    options = ExportOptions(
        model=model,
        output=output or _default_output(model),
        card=card,
        shapes=sizes,
        dtypes=dtypes,
        batch_inputs=tuple(batch_input or ()),
        batch_axes=tuple(map(_batch_axis, batch_axis or ())),
        constants=tuple(_pair(text, "--constant", "sr=16000") for text in constant or ()),
        static_batch=static_batch,
        arguments=tuple(_argument(text) for text in arg or ()),
        weights=weights,
        weights_key=weights_key,
        fuse=tuple(part.strip() for part in fuse.split(",") if part),
        simplify=simplify,
        simplify_s=simplify_timeout,
        simplify_bytes=_bytes(simplify_memory, "--simplify-memory", _DEFAULT.simplify_bytes),
        tolerance=tolerance,
        target=target,
        opset=opset,
        external_data_bytes=_bytes(
            external_data_threshold, "--external-data-threshold", _DEFAULT.external_data_bytes
        ),
        seed=seed,
    )
    limit(resource.RLIMIT_DATA, _physical_memory())
    _return_memory()
    report = run(options, lambda line: typer.echo(f"{line} …", err=True))
    _show(report, options.tolerance)
    typer.echo(
        f"trtfuse export: OK {options.output}, {'static' if static_batch else 'dynamic'} batch, "
        f"largest difference {report.largest_difference:.3g}"
    )


def _return_memory() -> None:
    """Have glibc give every large block back when it is freed.

    It would keep them for the next of their size, which here is of another graph: 50 MB on top of
    the 270 that a ResNet-50 of 102 MB takes (benchmarks/export_memory.py).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 16)


_M_MMAP_THRESHOLD = -3  # malloc.h


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bytes(text: str | None, flag: str, default: int) -> int:
    return default if text is None else parse_bytes(text, flag=flag)


def _argument(text: str) -> tuple[str, str]:
    name, value = _pair(text, "--arg", "scale=4")
    if not name.isidentifier():
        raise UsageError(f"--arg {text}: needs a name and a value, as scale=4.")
    return name, value


def _batch_axis(text: str) -> tuple[str, int]:
    name, axis = _pair(text, "--batch-axis", "state=1")
    if not axis.isdecimal():
        raise UsageError(f"--batch-axis {text}: needs a name and an axis, as state=1.")
    return name, int(axis)


def _pair(text: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{flag} {text}: needs a name and a value, as {example}.")
    return name, value


def _default_output(model: str) -> Path:
    from trtfuse.graph.source import is_factory

    if not is_factory(model):
        raise UsageError(f"{model}: say where the result goes, for example with -o exported.onnx")
    return Path(f"{model.rpartition(':')[2]}.onnx")


def _shapes(texts: list[str]) -> tuple[tuple[Sizes, ...], tuple[str, ...]]:
    """Sizes and dtypes, one an input; no dtypes where none is named."""
    parts = [text.rpartition(":") for text in texts]
    dtypes = tuple(dtype or "float32" for dtype, _, _ in parts)
    sizes = tuple(_sizes(whole, rest) for whole, (_, _, rest) in zip(texts, parts, strict=True))
    return sizes, dtypes if any(dtype for dtype, _, _ in parts) else ()


def _sizes(whole: str, text: str) -> Sizes:
    if whole.endswith(":"):  # "float32:" is a number: an input without axes
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isidentifier() or (word.isdecimal() and int(word) > 0) for word in words):
        raise UsageError(
            f"--shape {whole}: needs whole numbers above 0, as 3,256,256, or names of sizes "
            f"that stay open."
        )
    return tuple(int(word) if word.isdecimal() else word for word in words)


def _show(report: ExportReport, tolerance: float) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(title=f"Differences after each step ({tolerance:g} relative is allowed)")
    for heading in ("step", "largest", "relative", "mean", ""):
        table.add_column(heading)
    for step in report.steps:
        numbers = (step.proof.absolute, step.proof.relative, step.proof.mean)
        kept = "kept" if step.kept else "dropped"
        table.add_row(step.name, *(f"{number:.3g}" for number in numbers), kept)
    console.print(table)
    for rewrite in report.rewrites:
        before, after = (list(map(str, one)) for one in (rewrite.before, rewrite.after))
        console.print(escape(f"{rewrite.name}: [{', '.join(before)}] -> [{', '.join(after)}]"))
    for note in report.notes:
        console.print(escape(f"Note: {note}."))
