"""`trtfuse export`: a graph with a dynamic batch, proven before its file appears.

    source -> dynamic batch -> opset -> simplify -> fuse -> file

Each arrow is a rewrite followed by its proof: the same distinct items one by one, in batches, and
against the witness, which is the PyTorch module or the original graph in ONNX Runtime. A rewrite
that is only an improvement is dropped if it cannot be proven, with a note; any other ends the
export with the numbers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import onnx

from trtfuse.core.card import Card, InputCard
from trtfuse.core.errors import ExportFailed, UsageError
from trtfuse.core.files import replacing
from trtfuse.core.options import ExportOptions
from trtfuse.core.record import to_json
from trtfuse.core.specs import ModelSpec
from trtfuse.graph import check, probe, target
from trtfuse.graph.card import check_card
from trtfuse.graph.check import Proof, Reference
from trtfuse.graph.dynamic import Opened, with_dynamic_batch
from trtfuse.graph.ends import arranged
from trtfuse.graph.fold import fold, has_foldable
from trtfuse.graph.fuse import fuse, require_fusable
from trtfuse.graph.host import by_host, resizer
from trtfuse.graph.model import NotApplied, describe, opset, put_card, signature
from trtfuse.graph.opset import convert
from trtfuse.graph.repair import Rewrite
from trtfuse.graph.simplify import Isolate, directly, simplify
from trtfuse.graph.source import BATCHES, opened
from trtfuse.graph.weights import stored_bytes, write, write_beside
from trtfuse.graph.wire import outline

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite and its proof. Not `kept`: the graph before it was used instead."""

    name: str
    proof: Proof
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What was written and how it was proven."""

    model: ModelSpec
    steps: tuple[Step, ...]
    rewrites: tuple[Rewrite, ...]
    notes: tuple[str, ...]

    @property
    def largest_difference(self) -> float:
        """The largest absolute difference that any kept step was seen to make."""
        return max(step.proof.absolute for step in self.steps if step.kept)


def export(
    options: ExportOptions, progress: Progress, *, isolate: Isolate = directly
) -> ExportReport:
    """Write `options.output`, proven, and its report beside it. `progress` gets a line a step.

    Foreign code that may crash runs through `isolate`. Raises `UsageError` (also `CardError`,
    `MissingExtra`) before any work where it can, and `ExportFailed` with the numbers if the graph
    cannot be proven; then no file is written.
    """
    aim = target.named(options.target)
    version = target.version(options.target, options.opset)
    _require_writable(options)
    with _scratch(options.output) as scratch:
        progress(f"reading {options.name}")
        with opened(options, scratch) as opened_source:
            source = arranged(opened_source, options)
            progress("dynamic batch")
            if options.fuse:
                require_fusable(source.card, options.fuse)
            first = with_dynamic_batch(source, options)
        chain = Chain.starting(first, options.tolerance)
        if opset(chain.model) != version:
            progress(f"opset {version}")
            chain.improve(f"opset {version}", partial(convert, version=version))
        if options.opset and opset(chain.model) != options.opset:
            raise ExportFailed(
                f"{options.output}: not written; {chain.notes[-1]}. Leave --opset out, or export "
                f"from its training framework at {options.opset}."
            )
        if options.simplify and has_foldable(chain.model):
            progress("folding BatchNormalization")
            chain.improve("fold BatchNormalization", partial(fold, scratch=scratch))
        if options.simplify:
            progress("simplify")
            chain.improve("simplify", partial(simplify, scratch=scratch, isolate=isolate))
        card = source.card
        if card and options.fuse:
            progress(f"fusing {', '.join(options.fuse)}")
            card = chain.fuse(card, options)
        _require_readable(chain, options, aim)
        progress(f"checking {options.output}")
        model = chain.publish(options, card, scratch)
    report = ExportReport(
        model=model,
        steps=tuple(chain.steps),
        rewrites=first.rewrites,
        notes=(*source.notes, *chain.notes),
    )
    with replacing(options.output.with_suffix(".export.json")) as part:
        part.write_text(json.dumps(to_json(report), indent=2) + "\n")
    return report


@dataclass
class Chain:
    """The graph as far as it is proven, and how it got there."""

    model: onnx.ModelProto
    first: Opened
    """Later steps are held against its answers, so that differences do not add up unseen."""
    tolerance: float
    steps: list[Step]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def starting(cls, first: Opened, tolerance: float) -> Chain:
        """A chain that stands at `first`, whose proof holds."""
        return cls(
            model=first.model,
            first=first,
            tolerance=tolerance,
            steps=[Step(first.name, first.proof)],
            notes=list(first.notes),
        )

    def improve(self, name: str, rewrite: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
        """Go on with the rewritten graph if it can be made and proven; else note why not."""
        try:
            candidate = rewrite(self.model)
        except NotApplied as error:
            self.notes.append(f"{name}: not done; {error}")
            return
        proof = self._proof(candidate, self.first.folder)
        kept = proof.holds(self.tolerance)
        self.steps.append(Step(name, proof, kept))
        if kept:
            self.model = candidate
        else:
            self.notes.append(f"{name}: dropped; {proof.against(self.tolerance)}")

    def fuse(self, card: Card, options: ExportOptions) -> Card:
        """Go on with a graph that does part of the host's work; the card of what is left.

        Held against the host's own work on random pictures. Raises `ExportFailed`, `CardError`.
        """
        made = fuse(self.model, card, options.fuse)
        ends = signature(made.model)
        check_card(made.card, ends)
        resizing = Reference(made.resizing) if made.resizing else None
        left = None if resizing else made.card.input
        shapes = [((*size, card.input.channels),) for size in probe.pictures(card.input)]
        items, *others = (
            probe.random_items(
                probe.sized(ends.inputs, card=left, shapes=shape),
                count=max(BATCHES),
                seed=options.seed,
                card=left,
            )
            for shape in (shapes if resizing else [()])
        )
        before = {one.name: one.dtype for one in signature(self.model).inputs}
        run, folder = Reference(self.model, self.first.folder), self.first.folder
        apart = by_host(run, card, made.card, before[card.input.name], resizing)
        expected = check.observe(apart, items, BATCHES)
        seen = check.observe(Reference(made.model, folder), items, BATCHES)
        proof = check.combined(check.agreement(expected, seen), check.independence(seen))
        if resizing:
            proof = check.combined(proof, _resized(resizing, card.input, [items, *others]))
        if not expected.outputs or not proof.holds(self.tolerance):
            raise ExportFailed(
                f"{options.output}: not written; fusing changes the answers, "
                f"{proof.against(self.tolerance) or '; '.join(expected.faults)}."
            )
        self.steps.append(Step(f"fuse {', '.join(options.fuse)}", proof))
        if "post" in options.fuse and made.card.task == card.task:
            self.notes.append(f"fuse post: task {card.task.name!r} gives no picture, nothing to do")
        self.model = made.model
        self.first = replace(self.first, items=items, seen=seen)
        return made.card

    def publish(self, options: ExportOptions, card: Card | None, scratch: Path) -> ModelSpec:
        """Write the graph with its card; what lies on disk is proven before it gets its place."""
        final = onnx.ModelProto()
        final.CopyFrom(self.model)
        if card:
            put_card(final, card)
        folder = scratch / "final"
        folder.mkdir()
        path = folder / options.output.name
        data = folder / f"{options.output.name}.data"
        if stored_bytes(final) > options.external_data_bytes:
            write_beside(final, scratch, path, data, data.name)
        else:
            write(final, scratch, path)
        spec = describe(path)
        proof = self._proof(outline(path), folder)
        if not proof.holds(self.tolerance):
            raise ExportFailed(f"{options.output}: not written; {proof.against(self.tolerance)}.")
        self.steps.append(Step("file", proof))
        # The weights first: a graph that is there is whole.
        for made in (data, path) if data.exists() else (path,):
            with replacing(options.output.with_name(made.name)) as part:
                made.replace(part)
        return replace(spec, path=options.output)

    def _proof(self, model: onnx.ModelProto, folder: Path | None) -> Proof:
        expected = self.first.seen
        seen = check.observe(Reference(model, folder), self.first.items, expected.outputs)
        return check.combined(check.agreement(expected, seen), check.independence(seen))


def _resized(resizing: Reference, card: InputCard, pictures: Sequence[probe.Items]) -> Proof:
    """The part of a fused graph that resizes, against the host's rule, at every size given."""
    apart = resizer(card, resizing.model.graph.output[0].name)
    proofs = (
        check.agreement(check.observe(apart, one, (2,)), check.observe(resizing, one, (2,)))
        for one in pictures
    )
    return check.combined(*proofs)


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """A hidden folder beside the output, on its disk, so that the result is only renamed."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=output.parent)
    except OSError as error:
        raise UsageError(f"-o {output}: cannot be written ({error.strerror}).") from error
    with made as folder:
        yield Path(folder)


def _require_readable(chain: Chain, options: ExportOptions, aim: target.Target) -> None:
    """Raise `ExportFailed` if the runtime that was asked for will not read the graph as it is."""
    refusals = target.refusals(chain.model, aim, chain.first.folder)
    if refusals and options.target != "any":
        raise ExportFailed(
            f"{options.name}: {aim.name} will not read it, {options.output} was not written: "
            f"{'; '.join(refusals)}. Give another --target, or change the model."
        )
    chain.notes += [f"TensorRT 8.6 will not read it: {one}" for one in refusals]
    chain.notes += target.remarks(chain.model, aim, chain.first.folder)


def _require_writable(options: ExportOptions) -> None:
    if options.output.is_dir():
        raise UsageError(f"-o {options.output}: is a folder, needs to be the name of a file.")
    if options.output.suffix != ".onnx":
        raise UsageError(
            f"-o {options.output}: needs a name that ends in .onnx, by which it is read again."
        )
    source = Path(options.name)
    if source.exists() and options.output.exists() and source.samefile(options.output):
        raise UsageError(f"-o {options.output}: is the source itself. Give another name with -o.")
