"""Which workers a run has: the devices asked for, and for each the engine that fits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trtfuse.build import backends, store
from trtfuse.build.backends import BACKENDS, OnGpu
from trtfuse.build.plan import Target
from trtfuse.build.store import Engine
from trtfuse.core.cores import usable_cores
from trtfuse.core.errors import EngineError, UsageError
from trtfuse.core.flow import OpenRunner
from trtfuse.core.options import InferOptions
from trtfuse.core.specs import DeviceSpec, EngineManifest
from trtfuse.pool.spawn import run_in_child


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One worker to be."""

    device: str
    open_runner: OpenRunner
    engine: str
    """Name of the engine's folder."""
    batches: int
    """That it holds: what it computes, and one that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All workers of a run."""

    engines: tuple[Engine, ...]
    """Verified, each once; alike in all that does not depend on a device."""
    places: tuple[Place, ...]
    notes: tuple[str, ...] = ()
    """How GPUs are numbered, and which are there and take no part, and why."""


def find(options: InferOptions) -> Fleet:
    """The workers that `options` ask for, each with its engine.

    Raises DeviceError, MissingExtra, UnknownName where a device is not there, EngineNotFound and
    EngineMismatch where its engine is not, UsageError where engines are not of one kind.
    """
    if options.gpus is not None:
        targets = backends.gpus(options.gpus)
        return manned(targets, options, backends.remarks_on_gpus(used=True))
    if options.devices is not None:
        return _on_cpu(options)
    found, passed_over = _with_engines(backends.of_kind("cuda"), options)
    notes = tuple(
        f"{target.device.name} (cuda:{target.device.index}) takes no part: no engine is for it. "
        f"To see why: --gpus {target.device.index}"
        for target, _ in passed_over
    )
    notes += backends.remarks_on_gpus(used=bool(found))
    if found:
        return manned(found, options, notes)
    try:
        return _on_cpu(options, notes)
    except EngineError as error:
        # Where a GPU is, an engine for it is what is missing.
        raise (passed_over[0][1] if passed_over else error) from None


def _with_engines(
    targets: Sequence[Target], options: InferOptions
) -> tuple[list[Target], list[tuple[Target, EngineError]]]:
    """Those that have an engine, and why each of the others has none."""
    found: list[Target] = []
    passed_over: list[tuple[Target, EngineError]] = []
    for target in targets:
        try:
            _engine(target, options)
        except EngineError as error:
            passed_over.append((target, error))
        else:
            found.append(target)
    return found, passed_over


def _on_cpu(options: InferOptions, notes: tuple[str, ...] = ()) -> Fleet:
    (request,) = backends.parse_devices("cpu" if options.devices is None else options.devices)
    if request.workers and options.workers:
        raise UsageError(
            f"--devices {options.devices} and --workers {options.workers}: both say how many "
            "workers there are. Leave one out."
        )
    if request.workers:
        options = replace(options, workers=request.workers)
    return manned(backends.targets(request), options, notes)


def manned(targets: Sequence[Target], options: InferOptions, notes: tuple[str, ...] = ()) -> Fleet:
    """The workers on `targets`, each with its engine. Raises as `find`."""
    found = [(target, _engine(target, options)) for target in targets]
    engines = {engine.folder: engine for _, engine in found}
    require_alike([engine.manifest for engine in engines.values()])
    for engine in engines.values():
        store.verify(engine)
    places = [
        place
        for target, engine in found
        for place in _places(target, engine, options, share=len(found))
    ]
    return Fleet(engines=tuple(engines.values()), places=tuple(places), notes=notes)


def _places(
    target: Target, engine: Engine, options: InferOptions, *, share: int
) -> Iterator[Place]:
    """The workers of one device, which is one of `share` in the run."""
    backend, device = BACKENDS[target.runtime], target.device
    if device.kind == "cpu" and (options.lanes is not None or not options.cuda_graph):
        raise UsageError(f"--lanes and --no-cuda-graph are for GPUs, and {device.name} is none.")
    on_gpu = OnGpu(cuda_graph=options.cuda_graph)
    if options.lanes is not None:
        on_gpu = replace(on_gpu, lanes=options.lanes, fewest=options.lanes)
    if options.workers == "auto":
        if backend.fitting is None:
            raise UsageError(f"--instances auto: is for GPUs, and {device.name} is none.")
        one, name = backend.opener(engine.path, engine.manifest, 1, on_gpu), _name(device, 0)
        room = run_in_child(backend.fitting, one, name, name=f"probe of {name}")
        # A worker that has no core to feed it adds nothing but its memory.
        workers = max(1, min(room, usable_cores() // share))
    else:
        workers = options.workers or 1
    opener = backend.opener(engine.path, engine.manifest, workers, on_gpu)
    batches = 1 + (1 if device.kind == "cpu" else on_gpu.lanes)
    for number in range(workers):
        yield Place(
            device=_name(device, number),
            open_runner=opener,
            engine=engine.folder.name,
            batches=batches,
        )


def _name(device: DeviceSpec, number: int) -> str:
    """A CPU's workers are numbered; a GPU's all have its own name, which says where to run."""
    return f"{device.kind}:{number if device.kind == 'cpu' else device.index}"


def _engine(target: Target, options: InferOptions) -> Engine:
    return store.find(
        options.engines,
        model=options.model,
        engine=options.engine,
        target=target,
        precision=options.precision,
    )


def require_alike(manifests: Sequence[EngineManifest]) -> None:
    """Raise UsageError unless engines answer alike and take the same shapes: they share a ring."""
    first, *others = manifests
    for other in others:
        pairs = {
            "model": (first.request.model_sha256[:8], other.request.model_sha256[:8]),
            "card": (first.card, other.card),
            "precision": (first.request.precision.value, other.request.precision.value),
            "profile": (first.profile, other.profile),
        }
        for name, (one, two) in pairs.items():
            if one != two:
                raise UsageError(
                    f"The engines for {first.request.device_name} and {other.request.device_name} "
                    f"differ in their {name}: {one}, and {two}. One run needs engines of one kind: "
                    f"build them together, with trtfuse build {first.source} --gpus all"
                )
