"""`trtfuse build`: what is still right is kept; the rest is built, gated and published."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trtfuse import __version__
from trtfuse.build import backends, store
from trtfuse.build.plan import Build, plan
from trtfuse.build.store import Engine
from trtfuse.core import files
from trtfuse.core.errors import BuildFailed, ChildDied, DeviceError, EngineMismatch, UsageError
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import EngineManifest, ModelSpec
from trtfuse.pool.spawn import run_in_child

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One engine that is there now."""

    engine: Engine
    built: bool
    """Whether it was built now; else it was up to date."""
    seconds: float
    """What that took, all in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did."""

    outcomes: tuple[Outcome, ...]
    removed: tuple[Path, ...]
    """Folders of engines of other weights under the same model name."""


def build(options: BuildOptions, progress: Progress) -> BuildReport:
    """An engine for every kind of device that `options` choose; `progress` gets lines of text.

    Raises UsageError, CardError, BuildFailed; then nothing was published for that device.
    """
    targets = [t for chosen in backends.chosen(options.devices) for t in backends.targets(chosen)]
    source = options.model.absolute()
    model = _describe(options, source)
    builds = plan(options, model, targets)
    folder = options.engines / source.stem
    outcomes = []
    with store.building(folder, progress) as scratch:
        for one in builds:
            engine = None if options.rebuild else _current(folder / one.folder, one, progress)
            if engine:
                outcome = Outcome(engine=store.adopt(engine, source), built=False, seconds=0.0)
            else:
                outcome = _built(model, one, folder / one.folder, scratch, progress)
            outcomes.append(outcome)
        removed = store.remove_superseded(folder, model.sha256)
    return BuildReport(outcomes=tuple(outcomes), removed=removed)


def _describe(options: BuildOptions, source: Path) -> ModelSpec:
    """From an engine's manifest if it was built from these bytes, else from the graph."""
    if not source.is_file():
        raise UsageError(f"{source}: {'is not a file' if source.exists() else 'does not exist'}.")
    known = store.described(options.engines / source.stem, source)
    if known and not options.rebuild:
        return known
    from trtfuse.graph.card import check_card
    from trtfuse.graph.model import describe

    model = describe(source)
    if model.card:
        check_card(model.card, model)
    return model


def _current(folder: Path, one: Build, progress: Progress) -> Engine | None:
    """The engine in `folder` if it is what `one` would make; else None, and the reason is told."""
    if not folder.is_dir():
        return None
    try:
        engine = store.read(folder)
        if engine.manifest.request != one.request:
            return None
        store.verify_files(engine)
    except EngineMismatch as error:
        progress(f"not kept: {error}")
        return None
    return engine


def _built(
    model: ModelSpec, one: Build, folder: Path, scratch: Path, progress: Progress
) -> Outcome:
    started = time.perf_counter()
    progress(f"{model.path.name}: building for {one.device.name} ({one.request.precision.value})")
    draft, device = _draft(model, one), f"{one.device.kind}:{one.device.index}"
    try:
        manifest = run_in_child(make, draft, device, scratch, name=f"builder of {draft.model}")
    except ChildDied as error:
        raise BuildFailed(f"{model.path}: {error} Nothing was published.") from error
    if not store.is_model(model.path, model.sha256):
        raise BuildFailed(f"{model.path}: changed while it was being built. Build it again.")
    engine = store.publish(scratch / manifest.engine, folder, manifest)
    return Outcome(engine=engine, built=True, seconds=time.perf_counter() - started)


def _draft(model: ModelSpec, one: Build) -> EngineManifest:
    """The manifest, but for what only the build will tell."""
    return EngineManifest(
        schema=store.SCHEMA,
        model=model.path.stem,
        source=model.path,
        engine=backends.BACKENDS[one.request.runtime].engine,
        engine_sha256="",
        request=one.request,
        fingerprint=one.fingerprint,
        inputs=model.inputs,
        outputs=model.outputs,
        output_max=(),
        card=model.card,
        gates=(),
        build_s=0.0,
        trtfuse=__version__,
    )


def make(draft: EngineManifest, device: str, scratch: Path) -> EngineManifest:
    """In a child: write the engine into `scratch` and gate it on `device`; its whole manifest.

    A crash of the builder or of the new engine ends the child alone.
    """
    from trtfuse.build.gates import pass_gates
    from trtfuse.graph import model
    from trtfuse.graph.check import Reference

    graph = model.load(draft.source)
    # A copy that holds its weights itself: builders take one file, and leave no link to another.
    whole, engine = scratch / draft.source.name, scratch / draft.engine
    model.write(graph, whole)
    backend = backends.BACKENDS[draft.request.runtime]
    started = time.perf_counter()
    backend.builder(whole, draft.request, engine)
    build_s = time.perf_counter() - started
    try:
        passed = pass_gates(backend.opener(engine, draft, 1), device, Reference(graph), draft)
    except DeviceError as error:
        raise BuildFailed(f"{draft.source}: {error} Nothing was published.") from error
    return replace(
        draft,
        engine_sha256=files.sha256(engine),
        output_max=passed.output_max,
        gates=passed.gates,
        build_s=round(build_s, 3),
    )
