"""`trtfuse build`: what is still right is kept; the rest is built, gated and published."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trtfuse import __version__
from trtfuse.build import backends, store
from trtfuse.build.chart import sensitivity_svg
from trtfuse.build.plan import Build, fp32, plan
from trtfuse.build.recast import AUTO, Candidate, Recast, Recasting, Steps
from trtfuse.build.store import Engine
from trtfuse.core import files
from trtfuse.core.errors import (
    BuildFailed,
    ChildDied,
    DeviceError,
    EngineMismatch,
    GateFailed,
    TrtfuseError,
    UsageError,
)
from trtfuse.core.inputs import fixed_batch
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import EngineManifest, GateResult, ModelSpec, Precision
from trtfuse.pool.spawn import Call, Work, side_by_side

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One engine that is there now."""

    engine: Engine
    built: bool
    """Whether it was built now; else it was up to date."""
    seconds: float
    """What that took, all in all."""
    devices: int = 1
    """How many of the devices chosen it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What a build did."""

    outcomes: tuple[Outcome, ...]
    removed: tuple[Path, ...]
    """Folders of engines of other weights under the same model name."""

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Those that are there now, one a kind of device."""
        return tuple(outcome.engine for outcome in self.outcomes)


def build(options: BuildOptions, progress: Progress, steps: Steps = lambda *_: None) -> BuildReport:
    """An engine for every kind of device that `options` choose.

    `progress` gets lines of text, `steps` how far a long part of it is. Raises UsageError,
    CardError, CalibrationError, BuildFailed; then nothing was published for that device.
    """
    targets = backends.to_build(options)
    if options.devices is None and options.runtime is None:
        used = any(target.device.kind == "cuda" for target in targets)
        for remark in backends.remarks_on_gpus(used=used):
            progress(remark)
    source = options.model.absolute()
    model = _describe(options, source)
    builds = plan(options, model, targets)
    if count := fixed_batch(model.inputs):
        progress(f"{source.name}: its batch is fixed at {count}; a smaller one is filled up")
    folder = options.engines / source.stem
    with store.building(folder, progress) as scratch:
        recasting = Recasting(options, model, builds[0].request.profile, scratch, progress, steps)
        bench = _Bench(options, model, folder, scratch, progress, recasting)
        outcomes = _all(side_by_side([bench.outcome(one) for one in builds], steps), progress)
        removed = store.remove_superseded(folder, model.sha256)
    return BuildReport(outcomes=outcomes, removed=removed)


@dataclass(frozen=True, slots=True)
class _Made:
    """An engine that passed its gates and is not published yet."""

    file: Path
    manifest: EngineManifest
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class _Bench:
    """One build command at work, in the folder of its model."""

    options: BuildOptions
    model: ModelSpec
    folder: Path
    scratch: Path
    progress: Progress
    recasting: Recasting

    def outcome(self, one: Build) -> Work[Outcome]:
        """The engine of one kind of device: kept, or built and published."""
        started, precision = time.perf_counter(), self.options.precision
        if precision == "best":
            made = self._best_so_far(one) or (yield from self._best(one))
        elif precision is Precision.INT8 and self.options.calibration.keep == AUTO:
            made = self._mixed_so_far(one) or (yield from self._mixed(one))
        else:
            candidate = self.recasting.candidate(one, precision, auto=False)
            made = self._current(candidate.build) or (yield from self._make(candidate))
        if isinstance(made, Engine):
            kept = store.adopt(made, self.model.path)
            return Outcome(engine=kept, built=False, seconds=0.0, devices=one.count)
        self._require_faster(made)
        if not store.is_model(self.model.path, self.model.sha256):
            raise BuildFailed(f"{self.model.path}: changed while it was being built. Build again.")
        folder = self.folder / made.candidate.build.folder
        engine = store.publish(made.file, folder, made.manifest)
        if made.manifest.sensitivity:
            title = f"{self.model.path.name}: noise of each layer alone in int8"
            with files.replacing(folder / "sensitivity.svg") as part:
                part.write_text(sensitivity_svg(made.manifest.sensitivity, title))
        seconds = time.perf_counter() - started
        return Outcome(engine=engine, built=True, seconds=seconds, devices=one.count)

    def _make(self, candidate: Candidate) -> Work[_Made]:
        """Build and gate in a child. Raises BuildFailed with the reason."""
        one, model = candidate.build, self.model
        if backends.BACKENDS[one.request.runtime].gated:
            self.recasting.prepare(candidate)
        name = one.device.name if one.count == 1 else f"{one.count} x {one.device.name}"
        self.progress(f"{model.path.name}: building for {name} ({candidate.name})")
        remarks = backends.BACKENDS[one.request.runtime].remarks
        if remark := remarks.get(one.request.precision):
            self.progress(f"{model.path.name}: {remark}")
        draft = _draft(model, candidate)
        folder = self.scratch / one.fingerprint
        folder.mkdir(exist_ok=True)
        device = f"{one.device.kind}:{one.device.index}"
        timings = self.options.engines / ".timings"
        args = (draft, device, folder, candidate.recast, timings)
        try:
            manifest = yield Call(make, args, f"builder of {draft.model} for {one.device.name}")
        except ChildDied as error:
            raise BuildFailed(f"{model.path}: {error} Nothing was published.") from error
        for note in manifest.notes:
            self.progress(f"{model.path.name}: {note}")
        return _Made(folder / manifest.engine, manifest, candidate)

    def _mixed_so_far(self, one: Build) -> Engine | None:
        """The engine that an earlier `--keep auto` came to, if its ranges are today's."""
        candidate: Candidate | None = self.recasting.candidate(one, Precision.INT8, auto=False)
        assert candidate
        if engine := self._current(candidate.build):
            return engine
        if self.options.rebuild or not self.recasting.has_searched(one):
            return None
        candidate = self.recasting.candidate(one, Precision.INT8, auto=True)
        while candidate:
            if engine := self._current(candidate.build):
                return engine
            candidate = candidate.keeping_more()
        return None

    def _mixed(self, one: Build) -> Work[_Made]:
        """INT8 without the fewest layers with which the engine passes: none, if that will do.

        The search runs the graph as written, and an engine's kernels round otherwise: where the
        engine still fails, more of the ranked layers are kept.
        """
        if not self.recasting.has_searched(one):
            try:
                whole = self.recasting.candidate(one, Precision.INT8, auto=False)
                return (yield from self._make(whole))
            except GateFailed as error:
                self.progress(str(error).partition("\n")[0])
        candidate = self.recasting.candidate(one, Precision.INT8, auto=True)
        while True:
            try:
                return (yield from self._make(candidate))
            except GateFailed as error:
                more = candidate.keeping_more()
                if more is None:
                    raise
                self.progress(str(error).partition("\n")[0])
                candidate = more

    def _best(self, one: Build) -> Work[_Made]:
        """The fastest of those that pass; INT8 without some layers where INT8 does not."""
        backend = backends.BACKENDS[one.request.runtime]
        if not backend.gated:
            raise UsageError(
                f"--precision best: nothing can be timed for {one.device.name} here. Name one."
            )
        tried, passed = [], []
        for precision in backend.precisions:
            whole = self.recasting.candidate(one, precision, auto=False)
            made, said = yield from self._attempt(whole.name, self._make(whole))
            tried.append(said)
            if made is None and precision is Precision.INT8:
                made, said = yield from self._attempt("int8 mixed", self._mixed(one))
                tried.append(said)
            if made:
                passed.append(made)
        if not passed:
            lines = "".join(f"\n  {line}" for line in tried)
            raise BuildFailed(f"{self.model.path}: no precision passes its gates:{lines}")
        best = min(passed, key=lambda made: made.manifest.batch_ms)
        return replace(best, manifest=replace(best.manifest, choice=tuple(tried)))

    def _attempt(self, name: str, work: Work[_Made]) -> Work[tuple[_Made | None, str]]:
        try:
            made = yield from work
        except BuildFailed as error:
            return None, f"{name}: {' '.join(str(error).split())}"
        return made, f"{made.candidate.name}: {made.manifest.batch_ms:.3g} ms a batch"

    def _best_so_far(self, one: Build) -> Engine | None:
        """The engine that an earlier `--precision best` chose, if its ranges are today's."""
        if self.options.rebuild:
            return None
        for engine in store.readable(self.folder):
            request = engine.manifest.request
            if not engine.manifest.choice or fp32(request) != one.request:
                continue
            today = self.recasting.candidate(one, request.precision, auto=False).build.request
            if request.ranges == today.ranges:
                return self._current(replace(one, request=request))
        return None

    def _current(self, one: Build) -> Engine | None:
        """The engine on disk if it is what `one` would make; else None, and the reason is told."""
        folder = self.folder / one.folder
        if self.options.rebuild or not folder.is_dir():
            return None
        try:
            engine = store.read(folder)
            if engine.manifest.request != one.request:
                return None
            store.verify_files(engine)
        except EngineMismatch as error:
            self.progress(f"not kept: {error}")
            return None
        return engine

    def _require_faster(self, made: _Made) -> None:
        """Raise BuildFailed where a wider precision of the same device is there and faster.

        On CPUs it is told only: people build INT8 there to see what it does to the answers.
        """
        request = made.manifest.request
        if request.precision is not Precision.INT8:
            return
        for engine in store.readable(self.folder):
            other = engine.manifest
            wider = other.request.precision is not Precision.INT8
            same = fp32(other.request) == fp32(request)
            if wider and same and 0 < other.batch_ms < made.manifest.batch_ms:
                said = (
                    f"{self.model.path.name}: int8 takes {made.manifest.batch_ms:.3g} ms a batch, "
                    f"{other.request.precision.value} {other.batch_ms:.3g} ms ({engine.folder})"
                )
                if made.candidate.build.device.kind == "cuda" and self.options.calibration.gate:
                    raise BuildFailed(f"{said}. Use that one, or build with --no-gate.")
                self.progress(said)


def _all(ends: list[Outcome | TrtfuseError], progress: Progress) -> tuple[Outcome, ...]:
    """The outcomes. Raises the first error, if there is one, and tells the others."""
    errors = [end for end in ends if isinstance(end, TrtfuseError)]
    for error in errors[1:]:
        progress(str(error))
    if errors:
        raise errors[0]
    return tuple(end for end in ends if isinstance(end, Outcome))


def _describe(options: BuildOptions, source: Path) -> ModelSpec:
    """From an engine's manifest if it was built from these bytes, else from the graph."""
    if not source.is_file():
        if ":" in source.name:
            raise UsageError(
                f"{options.model}: is built from an ONNX file. Make one first: trtfuse export "
                f"{options.model} -o model.onnx"
            )
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


def _draft(model: ModelSpec, candidate: Candidate) -> EngineManifest:
    """The manifest, but for what only the build will tell."""
    one = candidate.build
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
        sensitivity=candidate.sensitivity,
    )


def make(
    draft: EngineManifest,
    device: str,
    scratch: Path,
    recast: Recast | None = None,
    timings: Path | None = None,
) -> EngineManifest:
    """In a child: write the engine into `scratch` and gate it on `device`; its whole manifest.

    Without `recast` the graph is built as it is; `timings` is what `Backend.builder` says. A crash
    of the builder or of the new engine ends the child alone.
    """
    from trtfuse.build import gates
    from trtfuse.graph import model, precision
    from trtfuse.graph.check import Reference
    from trtfuse.graph.weights import write

    source, request = model.load(draft.source), draft.request
    graph = source
    notes: tuple[str, ...] = ()
    if recast:
        measured = precision.Measured(
            amax=recast.amax, reach=recast.reach, exponents=recast.exponents
        )
        written = precision.write(
            graph, request.precision, measured, rest=request.rest, keep=request.keep
        )
        graph, notes = written.model, (*written.notes, *map(str, written.kept))
    # A copy that holds its weights itself: builders take one file, and leave no link to another.
    whole, engine = scratch / draft.source.name, scratch / draft.engine
    write(graph, None, whole)
    backend = backends.BACKENDS[request.runtime]
    started = time.perf_counter()
    backend.builder(whole, request, engine, device, timings)
    build_s = time.perf_counter() - started
    opener = backend.opener(engine, draft, 1)
    try:
        judged: tuple[GateResult, ...] = ()
        if not backend.gated:
            passed = gates.unseen(Reference(source), draft)
            notes += (f"not gated: no {draft.request.device_name} is here to run it",)
        else:
            passed = gates.pass_gates(opener, device, Reference(graph), draft)
            if recast:
                judged = gates.pass_quality(opener, device, draft, recast)
    except DeviceError as error:
        raise BuildFailed(f"{draft.source}: {error} Nothing was published.") from error
    return replace(
        draft,
        engine_sha256=files.sha256(engine),
        engine_bytes=engine.stat().st_size,
        output_max=passed.output_max,
        gates=(*passed.gates, *judged),
        build_s=round(build_s, 3),
        batch_ms=round(passed.batch_ms, 4),
        notes=notes,
        lane_bytes=passed.lane_bytes,
    )
