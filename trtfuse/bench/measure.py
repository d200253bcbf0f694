"""`trtfuse bench`: the engines of a model, measured alone, through the pool, and beside others.

    device   the runner alone, by the device's own clock: inputs are there, copies are not counted
    pool     as `infer` has it, from submitting a batch whose inputs lie in the ring to its answer
    naive    the same runner called batch after batch from one thread: copies, and nothing overlaps
    ort      a plain ONNX Runtime loop on the CPU, over the graph that the engine was built from
    pytorch  the module that the graph was exported from, in eager mode, on the engine's device

All paths are open at once and take turns, so that a machine that grows warm or busy does so for
all of them. Rates are of batches that follow each other without a pause; latencies of a batch that
has the path for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from trtfuse import __version__
from trtfuse.bench import alone, machine
from trtfuse.bench.alone import Times, Turn, Turns
from trtfuse.bench.figures import latency
from trtfuse.bench.pooled import Line
from trtfuse.bench.result import SCHEMA, Cell, Result
from trtfuse.build import fleet
from trtfuse.build.build import build
from trtfuse.build.fleet import Fleet
from trtfuse.core.cores import threads_per_worker
from trtfuse.core.errors import EngineError, PoolError, UnknownName, UsageError
from trtfuse.core.options import BenchOptions, BuildOptions, InferOptions
from trtfuse.core.specs import BATCH, Arrays, DeviceSpec, EngineManifest, Precision
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Layout, created, for_engine
from trtfuse.pool.spawn import staying

Progress = Callable[[str], None]

_MEMORY_BYTES = 4 << 30
# Of the largest value. FP32 against FP32, TF32 on a GPU included, stays below a tenth of it.
_FAR = 0.02
# Batches of one turn, however long each takes.
_LEAST = 3


@dataclass(slots=True)
class Samples:
    """What the turns of one batch size have measured, by path."""

    batch: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Items per second, one value a turn."""
    times: dict[str, list[int]] = field(default_factory=dict)
    """Nanoseconds, one value a batch."""

    def add(self, path: str, rate: float, times: tuple[int, ...]) -> None:
        """Another turn of `path`."""
        self.rates.setdefault(path, []).append(rate)
        self.times.setdefault(path, []).extend(times)

    def cells(self) -> Iterator[Cell]:
        """One a path."""
        for path, rates in self.rates.items():
            yield Cell(
                path=path,
                batch=self.batch,
                items_per_s=tuple(rates),
                latency=latency(self.times[path]),
            )


Measuring = Callable[[Turn, Samples], None]
"""Takes one turn of a path, or of two that one run shows, and adds what it measured."""


def measure(options: BenchOptions, progress: Progress) -> Result:
    """Measure every path at every batch size; `progress` gets a line for each size.

    Raises what `infer` raises where there is no engine, UsageError where engine, graph or module
    are not for what is asked, PoolError where a worker died meanwhile.
    """
    whole, single = _fleets(options, progress)
    manifest, largest = whole.engines[0].manifest, max(options.batches)
    layout = for_engine(
        manifest,
        batch=largest,
        # What the workers hold, and one for each that is on its way back.
        wanted=sum(one.batches + 1 for one in whole.places),
        memory_bytes=_MEMORY_BYTES,
    )
    inputs, gpus = _inputs(manifest, largest), _gpus(whole)
    noted = {"trtfuse": __version__, "repeats": str(options.repeats), **machine.moment(gpus)}
    with ExitStack() as stack:
        turns: dict[str, Turns] = {
            name: stack.enter_context(staying(opens, *args, name=name))
            for name, opens, args in _alone(options, single, replace(layout, slots=1), inputs)
        }
        noted |= _answers(turns, min(options.batches), manifest)
        ring = stack.enter_context(created(layout))
        seats = [Seat(device=one.device, open_runner=one.open_runner) for one in whole.places]
        pool = stack.enter_context(Pool(seats, ring))
        paths: list[Measuring] = [partial(_in_pool, Line(pool, ring, inputs))]
        naive = "naive" in options.against
        paths += [partial(_by_itself, name, ask, naive) for name, ask in turns.items()]
        cells = [
            cell for batch in options.batches for cell in _cells(options, paths, batch, progress)
        ]
        if deaths := [death for record in pool.records for death in record.deaths]:
            raise PoolError(f"the numbers are void: {'; '.join(deaths)}.")
    noted |= {f"{name}, after": value for name, value in machine.moment(gpus).items()}
    return Result(
        schema=SCHEMA,
        model=manifest.model,
        conditions=_conditions(options, whole, gpus),
        noted=noted,
        cells=tuple(cells),
    )


def _cells(
    options: BenchOptions, paths: list[Measuring], batch: int, progress: Progress
) -> Iterator[Cell]:
    """Every path at one batch size: a turn each to warm up, then rounds that begin elsewhere."""
    turn = Turn(batch=batch, seconds=options.seconds, least=_LEAST)
    warm, samples = Samples(batch), Samples(batch)
    for take in paths:
        take(turn, warm)
    for repeat in range(options.repeats):
        first = repeat % len(paths)
        for take in (*paths[first:], *paths[:first]):
            take(turn, samples)
    progress(f"batch {batch}: measured {options.repeats} times")
    return samples.cells()


def _in_pool(line: Line, turn: Turn, samples: Samples) -> None:
    samples.add("pool", line.rate(turn), line.times(turn))


def _by_itself(name: str, ask: Turns, naive: bool, turn: Turn, samples: Samples) -> None:
    """What runs alone in its child. A runner's run shows its device, and the naive way, at once."""
    found: Times = ask(turn)
    series = {name: found.wall}
    if found.compute:
        series = {name: found.compute, **({"naive": found.wall} if naive else {})}
    for path, times in series.items():
        samples.add(path, len(times) * turn.batch / sum(times) * 1e9, times)


def _fleets(options: BenchOptions, progress: Progress) -> tuple[Fleet, Fleet]:
    """All workers, and one that has the first device for itself."""
    asked = InferOptions(
        source=Path(),
        model=options.model,
        engine=options.engine,
        engines=options.engines,
        devices=options.devices,
        gpus=options.gpus,
        precision=options.precision,
        workers=options.workers,
        lanes=options.lanes,
        cuda_graph=options.cuda_graph,
    )
    if options.model.endswith(".onnx"):
        asked = _built(options, asked, progress)
    whole = fleet.find(asked)
    kind, _, number = whole.places[0].device.partition(":")
    on_gpu = kind == "cuda"
    alone_there = replace(
        asked,
        gpus=number if on_gpu else None,
        devices=None if on_gpu else "cpu:1",
        workers=None,
    )
    return whole, fleet.find(alone_there)


def _built(options: BenchOptions, asked: InferOptions, progress: Progress) -> InferOptions:
    """`asked`, for engines of an .onnx file that take the largest batch; built if need be."""
    source, largest = Path(options.model), max(options.batches)
    named = replace(asked, model=source.stem, precision=options.precision or Precision.FP32)
    if options.sizes is None and _takes(named, source, largest):
        return named
    report = build(
        BuildOptions(
            model=source,
            devices=options.devices,
            gpus=options.gpus,
            precision=options.precision or Precision.FP32,
            batch=(1, largest, largest),
            sizes=options.sizes,
            engines=options.engines,
        ),
        progress,
    )
    names = [outcome.engine.folder.name for outcome in report.outcomes]
    return replace(asked, model=source.stem, engine=names[0] if len(names) == 1 else None)


def _takes(named: InferOptions, source: Path, largest: int) -> bool:
    """Whether there are engines of this very file for the devices, and they take the batch."""
    try:
        engines = fleet.find(named).engines
    except (EngineError, UnknownName):
        return named.engine is not None  # the one that was named; `find` then says what is wrong
    return all(
        one.manifest.source.absolute() == source.absolute()
        and one.manifest.request.profile[0][1].max[0] >= largest
        for one in engines
    )


def _alone(
    options: BenchOptions, single: Fleet, layout: Layout, inputs: Arrays
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """What runs in a child of its own: its name, what opens it, and with what."""
    place, manifest = single.places[0], single.engines[0].manifest
    yield "device", alone.ours, (place.open_runner, place.device, layout, inputs)
    if "ort" in options.against:
        if not manifest.source.is_file():
            raise UsageError(
                f"--against ort: runs the graph, and {manifest.source} is not there any more."
            )
        yield "ort", alone.theirs, (alone.OpenOrt(manifest.source), inputs)
    if options.module is not None:
        opens = alone.OpenPytorch(options.module, manifest, place.device)
        yield "pytorch", alone.theirs, (opens, inputs)


def _answers(turns: Mapping[str, Turns], batch: int, manifest: EngineManifest) -> dict[str, str]:
    """How far each answers from the engine. Raises UsageError where it computes something else."""
    once = Turn(batch=batch, seconds=0.0, least=1)
    answers = {name: ask(once).answers or {} for name, ask in turns.items()}
    expected = answers.pop("device")
    found = {}
    for name, given in answers.items():
        shapes = {n: one.shape for n, one in given.items()}
        if shapes != {n: one.shape for n, one in expected.items()}:
            raise UsageError(
                f"--against {name}: gives {shapes}, the engine gives "
                f"{ {n: one.shape for n, one in expected.items()} }. It is another model."
            )
        off = max(
            float(np.abs(given[n].astype(np.float64) - one).max() / max(np.abs(one).max(), 1e-9))
            for n, one in expected.items()
        )
        if off > _FAR and manifest.request.precision is Precision.FP32:
            raise UsageError(
                f"--against {name}: its answers are {off:.1e} of the largest value from those of "
                f"the FP32 engine. It is another model, or has other weights or arguments; for "
                f"--module, name a function that makes it as it was exported."
            )
        found[f"{name}, answers"] = f"{off:.1e} of the largest value from the engine's"
    return found


def _inputs(manifest: EngineManifest, batch: int) -> Arrays:
    """Random items of the profile's best sizes, in the card's range."""
    from trtfuse.graph import probe

    tensors = [
        replace(one, shape=(BATCH, *manifest.profile[one.name].opt[1:])) for one in manifest.inputs
    ]
    card = manifest.card.input if manifest.card else None
    return probe.random_items(tensors, count=batch, seed=0, card=card).rows(0, batch)


def _gpus(whole: Fleet) -> tuple[DeviceSpec, ...]:
    used = {place.device for place in whole.places if place.device.startswith("cuda")}
    if not used:
        return ()
    from trtfuse.gpu.devices import scan

    return tuple(gpu for gpu in scan().gpus if f"cuda:{gpu.index}" in used)


def _conditions(
    options: BenchOptions, whole: Fleet, gpus: tuple[DeviceSpec, ...]
) -> dict[str, str]:
    manifest = whole.engines[0].manifest
    request = manifest.request
    found = {
        **machine.settings(gpus),
        "model": request.model_sha256[:12],
        "precision": request.precision.value,
        "runtime": f"{request.runtime} {request.runtime_version}",
        "shapes": ", ".join(
            f"{name} {'x'.join(map(str, shapes.opt[1:]))}" for name, shapes in request.profile
        ),
        "workers": ", ".join(place.device for place in whole.places),
        "turn": f"{options.seconds:g} s",
    }
    if gpus:
        found["lanes"] = str(whole.places[0].batches - 1)
        found["cuda graph"] = str(options.cuda_graph)
    else:
        found["threads"] = str(threads_per_worker(len(whole.places)))
    if "ort" in options.against:
        found["ort"] = f"onnxruntime {version('onnxruntime')}, its defaults, on the CPU"
    if options.module is not None:
        found["pytorch"] = f"torch {version('torch')}, {options.module}, eager"
    return found
