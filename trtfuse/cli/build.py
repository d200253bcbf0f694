"""`trtfuse build`: flags to BuildOptions, the closing table to the terminal."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.options import BuildOptions, CalibrationOptions, Runtime
from trtfuse.core.specs import (
    EngineManifest,
    GateResult,
    Hardware,
    Precision,
    ShapeRange,
    TrtSettings,
)
from trtfuse.core.units import file_size, parse_bytes

if TYPE_CHECKING:
    from trtfuse.build.build import BuildReport, Outcome

_DEFAULT = BuildOptions(model=Path())
_TENSORRT = TrtSettings()
_CALIBRATION = CalibrationOptions()
Size = tuple[int, int]


def build(
    model: Annotated[Path, typer.Argument(help="ONNX file, as `trtfuse export` writes it.")],
    devices: Annotated[
        str | None, typer.Option(help="cpu. Default: what is there.")
    ] = _DEFAULT.devices,
    gpus: Annotated[
        str | None, typer.Option(help="all, or some: 0,1, or their UUIDs.")
    ] = _DEFAULT.gpus,
    runtime: Annotated[
        str | None, typer.Option(help="rtx: TensorRT-RTX, for GPUs that need not be here.")
    ] = _DEFAULT.runtime,
    compute_capability: Annotated[
        str | None, typer.Option(help="With --runtime rtx, as 8.6,8.9. Default: all it knows.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="Most memory a layer may compute in, as 4GiB. Default: all.")
    ] = None,
    optimization_level: Annotated[
        int, typer.Option(min=0, max=5, help="0 to 5: how long TensorRT searches.")
    ] = _TENSORRT.optimization_level,
    hardware: Annotated[
        str, typer.Option(help="GPUs it may run on: exact, same-capability or ampere+.")
    ] = _TENSORRT.hardware,
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="For TensorRT's lean runtimes, too.")
    ] = _TENSORRT.version_compatible,
    precision: Annotated[
        str, typer.Option(help="fp32, fp16, bf16, int8, or best: the fastest that passes.")
    ] = Precision.FP32.value,
    batch: Annotated[
        str | None,
        typer.Option(help="min:opt:max items of one batch. Default: 1:4:8, or the graph's own."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="min:opt:max HEIGHTxWIDTH, as 256x256:512x512:1024x1024, or one of it; needed "
            "where the graph leaves them open."
        ),
    ] = None,
    min_shapes: Annotated[
        str | None,
        typer.Option("--minShapes", help="Profile as trtexec has it: x:1x3x224x224,y:1x8, …"),
    ] = None,
    opt_shapes: Annotated[
        str | None, typer.Option("--optShapes", help="Alone, it is least and most as well.")
    ] = None,
    max_shapes: Annotated[
        str | None, typer.Option("--maxShapes", help="All inputs, in the place of --batch, --size.")
    ] = None,
    calib_data: Annotated[
        Path | None,
        typer.Option(
            help="Inputs that int8 rests on and precisions are judged by: a folder of pictures, a "
            ".npy file, or a script whose load_data() yields inputs."
        ),
    ] = _CALIBRATION.data,
    calib_method: Annotated[
        str, typer.Option(help="entropy, percentile:99.99, minmax or mse.")
    ] = _CALIBRATION.method,
    calib_count: Annotated[int, typer.Option(help="At most so many inputs.")] = _CALIBRATION.count,
    calib_seed: Annotated[int, typer.Option(help="Of their choice.")] = _CALIBRATION.seed,
    held_out: Annotated[
        float, typer.Option(help="Share of the inputs that judges.")
    ] = _CALIBRATION.held_out,
    few: Annotated[
        bool, typer.Option("--few", help="Accept fewer than 32 inputs.")
    ] = _CALIBRATION.few,
    calibration_cache: Annotated[
        Path | None,
        typer.Option(help="TensorRT's calibration cache: read if it is there, else written."),
    ] = _CALIBRATION.cache,
    ranges: Annotated[Path, typer.Option(help="Folder of range files.")] = _CALIBRATION.ranges,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Layers that stay out of the precision (a,b,…), or auto: find them."),
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(help="Of the gate, as psnr=35; may be repeated.")
    ] = None,
    gate: Annotated[
        bool, typer.Option(help="Hold the answers against FP32 before publishing.")
    ] = _CALIBRATION.gate,
    budget: Annotated[
        float, typer.Option(help="Minutes that --keep auto may search.")
    ] = _CALIBRATION.budget_min,
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
        gpus=gpus,
        runtime=cast(Runtime, runtime),
        settings=TrtSettings(
            workspace_bytes=parse_workspace(workspace),
            optimization_level=optimization_level,
            hardware=parse_hardware(hardware),
            version_compatible=version_compatible,
            compute_capabilities=parse_capabilities(compute_capability or ""),
        ),
        precision="best" if precision == "best" else parse_precision(precision),
        calibration=CalibrationOptions(
            data=calib_data,
            method=calib_method,
            count=calib_count,
            seed=calib_seed,
            held_out=held_out,
            few=few,
            cache=calibration_cache,
            ranges=ranges,
            keep=tuple(name for text in keep or () for name in text.split(",")),
            limits=tuple(limit or ()),
            gate=gate,
            budget_min=budget,
        ),
        batch=parse_batch(batch) if batch else None,
        sizes=parse_sizes(size) if size is not None else None,
        shapes=parse_shapes(min_shapes, opt_shapes, max_shapes, beside=(batch, size)),
        engines=engines,
        rebuild=rebuild,
    )
    from trtfuse.build.build import build as run
    from trtfuse.cli.steps import counting

    with counting(sys.stderr) as steps:
        report = run(options, lambda line: typer.echo(line, err=True), steps)
    _show(report)
    for outcome in report.outcomes:
        typer.echo(last_line(outcome))


def parse_precision(text: str) -> Precision:
    """`--precision`. Raises UnknownName."""
    known = [precision.value for precision in Precision]
    if text not in known:
        raise UnknownName.among("--precision", text, [*known, "best"])
    return Precision(text)


def parse_workspace(text: str | None) -> int | None:
    """`--workspace`, as "4GiB". Raises UsageError."""
    nbytes = None if text is None else parse_bytes(text, flag="--workspace")
    if nbytes == 0:
        raise UsageError(
            f"--workspace {text}: needs more than that. Leave it out for all there is."
        )
    return nbytes


def parse_hardware(text: str) -> Hardware:
    """`--hardware`. Raises UnknownName."""
    if text not in get_args(Hardware):
        raise UnknownName.among("--hardware", text, get_args(Hardware))
    return cast(Hardware, text)


def parse_capabilities(text: str) -> tuple[str, ...]:
    """`--compute-capability`, as "8.6,8.9"; in order, each once. Raises UsageError."""
    words = [word.strip() for word in text.split(",")] if text else []
    for word in words:
        if not re.fullmatch(r"\d+\.\d", word, re.ASCII):
            raise UsageError(f"--compute-capability {text}: needs numbers as 8.6,8.9.")
    return tuple(sorted(set(words), key=float))


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


def parse_shapes(
    least: str | None, best: str | None, most: str | None, *, beside: tuple[str | None, str | None]
) -> tuple[tuple[str, ShapeRange], ...]:
    """`--minShapes`, `--optShapes`, `--maxShapes`, all three or the second alone, as in trtexec.

    `beside` is what --batch and --size say, which must be nothing then. Raises UsageError.
    """
    if least is best is most is None:
        return ()
    if beside != (None, None):
        raise UsageError("--optShapes says the whole profile: leave --batch and --size out.")
    if best is None or (least is None) is not (most is None):
        raise UsageError("--minShapes, --optShapes, --maxShapes: give all three, or --optShapes.")
    middle = _shapes(best, "--optShapes")
    low = middle if least is None else _shapes(least, "--minShapes")
    high = middle if most is None else _shapes(most, "--maxShapes")
    if not set(low) == set(middle) == set(high):
        raise UsageError("--minShapes, --optShapes, --maxShapes: need the same inputs.")
    found = []
    for name in middle:
        try:
            found.append((name, ShapeRange(min=low[name], opt=middle[name], max=high[name])))
        except ValueError as error:
            raise UsageError(f"--optShapes: {name}: {error}.") from error
    return tuple(found)


def _shapes(text: str, flag: str) -> dict[str, tuple[int, ...]]:
    """ "x:1x3x8x8,y:1x4"; a name may hold colons, and stand in quotes."""
    found = {}
    for word in text.split(","):
        name, _, sizes = word.rpartition(":")
        if not name or not re.fullmatch(r"\d+(x\d+)*", sizes, re.ASCII):
            raise UsageError(f"{flag} {text}: needs NAME:SIZES, for example x:1x3x224x224.")
        found[name.strip("'")] = tuple(map(int, sizes.split("x")))
    return found


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
        name = engine.manifest.request.device_name
        table.add_row(
            f"{outcome.devices} x {name}" if outcome.devices > 1 else name,
            engine.folder.name,
            file_size(engine.path.stat().st_size),
            _gates(engine.manifest.gates),
            f"{outcome.seconds:.1f} s" if outcome.built else "kept",
        )
    Console().print(table)
    if (count := sum(outcome.devices for outcome in report.outcomes)) > 1:
        built = sum(outcome.built for outcome in report.outcomes)
        typer.echo(f"{count} devices, {built} build{'' if built == 1 else 's'}")
    for outcome in report.outcomes:
        _show_precision(outcome.engine.manifest)
    for folder in report.removed:
        typer.echo(f"Removed {folder}: built from other weights under this name.")
    if any(outcome.engine.manifest.card is None for outcome in report.outcomes):
        typer.echo(
            "The model has no card: the engine can be served arrays, but `trtfuse infer` needs to "
            "know its pictures. Add one with: trtfuse export MODEL --card card.json -o OUTPUT"
        )


def _show_precision(manifest: EngineManifest) -> None:
    """The checks of a precision, the layers that were kept for it, and what else was tried."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    judged = [gate for gate in manifest.gates if gate.name.rpartition(": ")[2] != "difference"]
    if manifest.request.precision is not Precision.FP32 and judged:
        table = Table("check", "value", "limit", title=judged[-1].conditions, title_justify="left")
        for gate in judged:
            bound = "at least" if gate.least else "at most"
            table.add_row(gate.name, f"{gate.value:.4g}", f"{bound} {gate.limit:g}")
        console.print(table)
    if manifest.sensitivity:
        table = Table("layer", "alone", "kept", "left", title="sensitivity to int8")
        for one in manifest.sensitivity[:20]:
            left = "" if one.left is None else f"{one.left:.3g}"
            table.add_row(one.layer, f"{one.alone:.3g}", "yes" if one.kept else "", left)
        console.print(table)
    for line in manifest.choice:
        typer.echo(f"tried {line}")


def _gates(gates: tuple[GateResult, ...]) -> str:
    """The gate that came nearest to its limit."""
    if not gates:
        return "none"
    worst = max(gates, key=_nearness)
    return f"{worst.name} {worst.value:.1e}, limit {worst.limit:g}"


def _nearness(gate: GateResult) -> float:
    """1 at the limit, more beyond it."""
    part, whole = (gate.limit, gate.value) if gate.least else (gate.value, gate.limit)
    return part / whole if whole > 0 else (float("inf") if part > 0 else 0.0)
