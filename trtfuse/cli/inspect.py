"""`trtfuse inspect`: what an artifact is, from its file alone; what a model sees of a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtfuse.core.errors import UsageError
from trtfuse.core.specs import TensorSpec
from trtfuse.core.units import file_size

if TYPE_CHECKING:
    from rich.console import Console

    from trtfuse.graph.inspect import Inspection


def inspect(
    artifact: Annotated[
        Path, typer.Argument(help="An .onnx file, or an engine's folder, a model's, or engines/.")
    ],
    batch: Annotated[int, typer.Option(help="Items that cost is counted for.")] = 1,
    size: Annotated[
        str | None, typer.Option(help="HEIGHTxWIDTH of open sizes. Default: the card's, or ours.")
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(help="A picture: show the numbers that the model is given for it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, as JSON.")] = False,
) -> None:
    """Say what a file is: inputs, outputs, cost, card, precision, and which TensorRT takes it.

    Of engines: whether each runs here, and if not, which value differs. Nothing is run.
    """
    if artifact.is_dir() or artifact.suffix == ".plan":
        if (batch, size, explain) != (1, None, None):
            raise UsageError(f"{artifact}: --batch, --size and --explain are for .onnx files.")
        from trtfuse.cli.engines import inspect_engines

        inspect_engines(artifact, as_json=as_json)
        return
    if artifact.suffix != ".onnx":
        raise UsageError(f"{artifact}: what is inspected is an .onnx file, or engines.")
    if batch < 1:
        raise UsageError(f"--batch {batch}: needs a whole number above 0.")
    if explain:
        _show_seen(artifact, explain, as_json=as_json)
        return
    from trtfuse.graph.inspect import inspect as run

    found = run(artifact, batch=batch, size=_size(size))
    if as_json:
        from trtfuse.core.record import to_json

        typer.echo(json.dumps(to_json(found), indent=2))
    else:
        _show(found)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--size {text}: needs height and width, as 256x512.")
    return int(parts[0]), int(parts[1])


def _show(found: Inspection) -> None:
    from rich.console import Console

    console = Console()
    _rows(console, "", [*_identity(found), *_cost(found)])
    ends = [*(("in", one) for one in found.inputs), *(("out", one) for one in found.outputs)]
    _rows(console, "Inputs and outputs", [(f"{kind} {one.name}", _spec(one)) for kind, one in ends])
    _rows(console, "Operators", [(name, str(count)) for name, count in found.operators])
    verdicts = [(name, "; ".join(said) or "nothing against it") for name, said in found.refusals]
    _rows(console, "What would refuse it", verdicts)
    for remark in found.remarks:
        typer.echo(f"Note: {remark}.")


def _show_seen(model: Path, picture: Path, *, as_json: bool) -> None:
    """What the model is given for a picture, as rows or as JSON."""
    from rich.console import Console

    from trtfuse.build.explain import explain
    from trtfuse.core.record import to_json

    seen = explain(model, picture)
    if as_json:
        typer.echo(json.dumps(to_json(seen), indent=2))
        return
    card, at = seen.card, seen.geometry
    channels = ("grey",) if card.colour == "GRAY" else tuple(card.colour)
    lows, highs = zip(*seen.extremes, strict=True)
    scale = f"by {at.scale_y:.4g} and {at.scale_x:.4g}, at row {at.top} and column {at.left}"
    rule = f"0 to 255 become {card.range[0]:g} to {card.range[1]:g}"
    if card.mean or card.std:
        rule += f", then (value - {_each(card.mean or (0,))}) / {_each(card.std or (1,))}"
    rows = [
        ("input", f"{card.name!r}: {seen.dtype} {list(seen.shape)}, {card.layout}, {card.colour}"),
        ("picture", f"{picture}, {at.picture[0]} x {at.picture[1]}, {card.resize}: {scale}"),
        ("rule", rule),
        ("first pixel", "R {}, G {}, B {}".format(*seen.pixel)),
        ("first values", _by_channel(channels, seen.first)),
        ("least", _by_channel(channels, lows)),
        ("largest", _by_channel(channels, highs)),
    ]
    _rows(Console(), "What the model sees", rows)


def _by_channel(names: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(f"{name} {one:.6g}" for name, one in zip(names, values, strict=True))


def _each(values: Sequence[float]) -> str:
    text = ", ".join(f"{one:g}" for one in values)
    return f"[{text}]" if len(values) > 1 else text


def _identity(found: Inspection) -> list[tuple[str, str]]:
    beside = f", with {', '.join(one.name for one in found.external)}" if found.external else ""
    foreign = f", and {', '.join(found.domains)}" if found.domains else ""
    card = f"{found.card.task.name} on {found.card.input.name!r}" if found.card else "none"
    return [
        ("file", f"{found.path}, {file_size(found.file_bytes)}{beside}"),
        ("producer", found.producer or "not said"),
        ("opset, IR", f"{found.opset}{foreign}, {found.ir}"),
        ("precision", found.precision),
        ("card", card),
        ("open axes", ", ".join(found.open_axes) or "none"),
    ]


def _cost(found: Inspection) -> list[tuple[str, str]]:
    cost = found.cost
    at = "; ".join(f"{one.name} {list(one.shape)}" for one in found.sizes)
    unknown = f" (not counted: {', '.join(cost.unknown)})" if cost.unknown else ""
    return [
        ("parameters", f"{cost.parameters:,} in {file_size(cost.weight_bytes)}"),
        ("cost at", at),
        ("FLOPs", f"{cost.flops / 1e9:.3f} G{unknown}"),
        (
            "activations",
            f"{file_size(cost.activation_bytes)}, the largest {file_size(cost.largest_bytes)}",
        ),
    ]


def _spec(tensor: TensorSpec) -> str:
    return f"{tensor.dtype} [{', '.join(map(str, tensor.shape))}]"


def _rows(console: Console, title: str, rows: list[tuple[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(str(value)))
    console.print(table)
