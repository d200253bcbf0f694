"""`trtfuse export`: a graph with a dynamic batch, proven before its file appears.

    source -> dynamic batch -> opset -> simplify -> file

Each arrow is a rewrite followed by its proof: the same distinct items one by one, in batches, and
against the witness, which is the PyTorch module or the original graph in ONNX Runtime. A rewrite
that is only an improvement is dropped if it cannot be proven, with a note; any other ends the
export with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from trtfuse.core.card import Card
from trtfuse.core.errors import ExportFailed, UsageError
from trtfuse.core.files import replacing
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import ModelSpec
from trtfuse.graph import check
from trtfuse.graph.batch import Rewrite
from trtfuse.graph.check import Proof, Reference
from trtfuse.graph.dynamic import Opened, with_dynamic_batch
from trtfuse.graph.model import NotApplied, describe, load, opset, put_card, write
from trtfuse.graph.opset import convert
from trtfuse.graph.simplify import simplify
from trtfuse.graph.source import opened

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


def export(options: ExportOptions, progress: Progress) -> ExportReport:
    """Write `options.output`, proven. `progress` gets a line as each step begins.

    Raises `UsageError` (also `CardError`, `MissingExtra`) before any work where it can, and
    `ExportFailed` with the numbers if the graph cannot be proven; then no file is written.
    """
    _require_writable(options)
    progress(f"reading {options.model}")
    with opened(options) as source:
        progress("dynamic batch")
        first = with_dynamic_batch(source, options)
    chain = Chain.starting(first, options.tolerance)
    if opset(chain.model) != options.opset:
        progress(f"opset {options.opset}")
        chain.improve(f"opset {options.opset}", lambda model: convert(model, options.opset))
    if options.simplify:
        progress("simplify")
        chain.improve("simplify", simplify)
    progress(f"checking {options.output}")
    return ExportReport(
        model=chain.publish(options.output, source.card),
        steps=tuple(chain.steps),
        rewrites=first.rewrites,
        notes=(*source.notes, *chain.notes),
    )


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
            steps=[Step("dynamic batch", first.proof)],
            notes=list(first.notes),
        )

    def improve(self, name: str, rewrite: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
        """Go on with the rewritten graph if it can be made and proven; else note why not."""
        try:
            candidate = rewrite(self.model)
        except NotApplied as error:
            self.notes.append(f"{name}: not done; {error}")
            return
        proof = self._proof(candidate)
        kept = proof.holds(self.tolerance)
        self.steps.append(Step(name, proof, kept))
        if kept:
            self.model = candidate
        else:
            self.notes.append(f"{name}: dropped; {proof.against(self.tolerance)}")

    def publish(self, output: Path, card: Card | None) -> ModelSpec:
        """Write the graph with its card; what lies on disk is proven before it gets its name."""
        final = onnx.ModelProto()
        final.CopyFrom(self.model)
        if card:
            put_card(final, card)
        with replacing(output) as part:
            write(final, part)
            spec = describe(part)
            proof = self._proof(load(part))
            if not proof.holds(self.tolerance):
                raise ExportFailed(f"{output}: not written; {proof.against(self.tolerance)}.")
        self.steps.append(Step("file", proof))
        return replace(spec, path=output)

    def _proof(self, model: onnx.ModelProto) -> Proof:
        expected = self.first.seen
        seen = check.observe(Reference(model), self.first.items, expected.outputs)
        return check.combined(check.agreement(expected, seen), check.independence(seen))


def _require_writable(options: ExportOptions) -> None:
    if options.output.is_dir():
        raise UsageError(f"-o {options.output}: is a folder, needs to be the name of a file.")
    source = Path(options.model)
    if source.exists() and options.output.exists() and source.samefile(options.output):
        raise UsageError(f"-o {options.output}: is the source itself. Give another name with -o.")
