"""The step that no export can do without: from a source to a graph whose batch is proven dynamic.

The proof has three parts. The rewritten nodes answer as the witness does, at the sizes and batches
that the witness takes. At the sizes of the export, items in a batch answer as they do alone. And
where sizes are open, so they do at other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from trtfuse.core.errors import ExportFailed
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import BATCH, TensorSpec
from trtfuse.graph import batch, check, probe
from trtfuse.graph.card import check_card, check_input
from trtfuse.graph.check import NO_RUN, Observation, Proof, Reference, Run
from trtfuse.graph.model import signature
from trtfuse.graph.probe import Items
from trtfuse.graph.repair import Rewrite, nodes_with_fixed_batch, nodes_with_fixed_size
from trtfuse.graph.source import BATCHES, Source

# Nodes in one message.
_MOST_NAMED = 8

# Two steps of float16's 11 bits: one library rounds after each operation, the other does not.
_FLOAT16 = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A graph, the items it was proven on, and what it answered."""

    model: onnx.ModelProto
    folder: Path | None
    items: Items
    seen: Observation
    proof: Proof
    rewrites: tuple[Rewrite, ...]
    notes: tuple[str, ...]
    name: str = "dynamic batch"
    """What was done, as a step of the report."""

    @property
    def run(self) -> Reference:
        """The graph, to be run; holds a session as long as it lives."""
        return Reference(self.model, self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witness:
    """What the source answers, at the sizes and batches that it takes."""

    sizes: tuple[TensorSpec, ...]
    items: Items
    batches: tuple[int, ...]
    seen: Observation
    notes: tuple[str, ...]


def with_dynamic_batch(source: Source, options: ExportOptions) -> Opened:
    """Open the batch of `source`, or leave it where the options say so.

    Raises `CardError`, or `ExportFailed` with numbers and nodes.
    """
    card = source.card.input if source.card else None
    declared = signature(source.model).inputs
    if not declared:
        raise ExportFailed(
            f"{options.name}: has no inputs, so its answers are always the same: nothing to export."
        )
    if card:
        check_input(card, declared)
    if options.static_batch:
        return _checked(_as_it_is(source, options, declared), options)
    refusals: list[ExportFailed] = []
    for planned in batch.plans(declared, card, batched=options.batch_inputs, shapes=source.shapes):
        try:
            return _checked(_opened(source, options, planned), options)
        except ExportFailed as error:
            refusals.append(error)
    raise refusals[0]


def _opened(source: Source, options: ExportOptions, planned: batch.Inputs) -> Opened:
    card = source.card.input if source.card else None
    declared = signature(source.model).inputs
    sizes = probe.sized(planned, card=card, shapes=source.shapes)
    items = probe.random_items(sizes, count=max(BATCHES), seed=options.seed, card=card)
    witness = _witness(source, sizes, options)
    if witness.sizes != sizes:
        _require_free_size(source.model, options)
    held = batch.baked_batch(declared, planned)
    for attempt, deep in _attempts(held, source.traced_at):
        dynamic = batch.make_dynamic(source.model, planned, held=attempt, deep=deep)
        if source.card:
            check_card(source.card, signature(dynamic.model))
        opened = _proven(source, dynamic, planned, witness, items)
        if opened.proof.holds(options.tolerance):
            return _at_other_sizes(opened, source, options, planned, sizes)
    # Where every constant was made to follow, the batch is lost in one that the source has.
    left, own = (
        nodes_with_fixed_batch(model, planned, held or source.traced_at)
        for model in (opened.model, source.model)
    )
    shared = [one.name for one in planned if one.shape[:1] != (BATCH,)]
    _require_steady(source.witness(), witness.items, witness.seen, options)
    raise ExportFailed(
        _refusal(source, options, opened, left or own, shared, resized=witness.sizes != sizes)
    )


def _attempts(held: int | None, traced_at: int) -> Iterator[tuple[int | None, bool]]:
    """The batch that constants may hold, and how far to go: no further than is needed."""
    if held is None:  # an open batch may be all there is to it
        yield None, False
    yield held or traced_at, False
    yield held or traced_at, True


def _witness(source: Source, sizes: tuple[TensorSpec, ...], options: ExportOptions) -> _Witness:
    own = probe.taken(source.takes, sizes)
    fixed = batch.baked_batch(source.takes, sizes)
    batches = (fixed,) if fixed else BATCHES
    card = source.card.input if source.card else None
    count = max(*batches, *BATCHES)
    items = probe.random_items(own, count=count, seed=options.seed, card=card)
    seen = check.observe(source.witness(), items, batches)
    if not seen.outputs:
        raise ExportFailed(_own_fault(options, seen))
    notes: tuple[str, ...] = ()
    proof = check.independence(seen)
    if 1 in seen.outputs and not proof.holds(options.tolerance):
        # A constant that holds the batch: only what the source says of single items is true.
        seen = Observation({1: seen.outputs[1]})
        notes = (f"the source is right at batch 1 only: {proof.against(options.tolerance)}",)
    return _Witness(sizes=own, items=items, batches=batches, seen=seen, notes=notes)


def _proven(
    source: Source,
    dynamic: batch.Dynamic,
    planned: batch.Inputs,
    witness: _Witness,
    items: Items,
) -> Opened:
    seen = check.observe(Reference(dynamic.model, source.folder), items, BATCHES)
    # Where the export has another size than the witness, the same nodes are declared without one.
    anywhere = batch.declare(dynamic.model, probe.relaxed(planned, witness.sizes))
    if anywhere == dynamic.model and witness.batches == BATCHES:
        there = seen  # the same graph on the same items: the seed is one
    else:
        run = Reference(anywhere, source.folder)
        there = check.observe(run, witness.items, witness.batches)
    return Opened(
        model=dynamic.model,
        folder=source.folder,
        items=items,
        seen=seen,
        proof=check.combined(check.agreement(witness.seen, there), check.independence(seen)),
        rewrites=dynamic.rewrites,
        notes=witness.notes,
    )


def _at_other_sizes(
    opened: Opened,
    source: Source,
    options: ExportOptions,
    planned: batch.Inputs,
    sizes: batch.Inputs,
) -> Opened:
    """`opened`, proven where its open sizes are others too. Raises `ExportFailed`."""
    card = source.card.input if source.card else None
    others = probe.sized(planned, card=card, shapes=source.shapes, other=True)
    notes = list(opened.notes)
    for plan, size, other in zip(planned, sizes, others, strict=True):
        if size == other and any(isinstance(n, str) for n in plan.shape[1:]):
            notes.append(f"input {plan.name!r}: proven at {_text(size)} only, its sizes stay open")
    if others == sizes:
        return replace(opened, notes=tuple(notes))
    items = probe.random_items(others, count=2, seed=options.seed, card=card)
    seen = check.observe(opened.run, items, (1, 2))
    proof = check.independence(seen)
    if probe.taken(source.takes, others) == others:
        truth = check.observe(source.witness(), items, (1, 2))
        if not truth.outputs:
            notes.append(f"sizes: the source takes some only; {truth.faults[0]}")
            return replace(opened, notes=tuple(notes))
        proof = check.combined(proof, check.agreement(truth, seen))
    if not proof.holds(options.tolerance):
        raise ExportFailed(
            f"{options.name}: right at {', '.join(map(_text, sizes))}, but not at "
            f"{', '.join(map(_text, others))}; {options.output} was not written. "
            f"{proof.against(options.tolerance)}. Fix its size in a card or with --shape."
        )
    return replace(opened, proof=check.combined(opened.proof, proof), notes=tuple(notes))


def _as_it_is(source: Source, options: ExportOptions, declared: batch.Inputs) -> Opened:
    """The graph with the batch it has, held against the witness."""
    card = source.card.input if source.card else None
    # An axis of that name is a promise, which is not made here: it is fixed at what is run.
    fixed = tuple(
        replace(one, shape=tuple(1 if n == BATCH else n for n in one.shape)) for one in declared
    )
    # A size that was given without the batch, as otherwise, is one behind it.
    shapes = tuple(
        (*one.shape[: len(one.shape) - len(given)], *given)
        for one, given in zip(fixed, source.shapes, strict=False)
    )
    sizes = probe.sized(fixed, card=card, shapes=shapes)
    items = probe.whole_items(sizes, count=3, seed=options.seed, card=card)
    truth = check.observe(source.witness(), items, (1,))
    if not truth.outputs:
        raise ExportFailed(_own_fault(options, truth))
    model = batch.declare(source.model, fixed)
    if source.card:
        check_card(source.card, signature(model))
    seen = check.observe(Reference(model, source.folder), items, (1,))
    proof = check.agreement(truth, seen)
    if not proof.holds(options.tolerance):
        _require_steady(source.witness(), items, truth, options)
        raise ExportFailed(
            f"{options.name}: answers otherwise than its source, {options.output} was not "
            f"written. {proof.against(options.tolerance)}."
        )
    return Opened(
        model=model,
        folder=source.folder,
        items=items,
        seen=seen,
        proof=proof,
        rewrites=(),
        notes=("the batch was left as it is",),
        name="static batch",
    )


def _checked(opened: Opened, options: ExportOptions) -> Opened:
    """`opened`, with a note of outputs that say nothing. Raises `ExportFailed` if all are such."""
    same = check.same_for_all(opened.seen)
    rows = opened.seen.outputs[1]
    if same and len(same) == len(rows) and any(rows[name].dtype.kind == "f" for name in same):
        raise ExportFailed(
            f"{options.name}: every output is the same for all of {opened.items.count} random "
            f"items, so nothing can be proven; {options.output} was not written. Are its weights "
            f"there? If it is its value range, give a card with the right one."
        )
    notes = (f"output {n!r} is the same for every item: nothing is proven of it" for n in same)
    return replace(opened, notes=(*opened.notes, *notes))


def _require_free_size(model: onnx.ModelProto, options: ExportOptions) -> None:
    if fixed := nodes_with_fixed_size(model):
        raise ExportFailed(
            f"{options.name}: the card asks for another size than the graph has, and the graph "
            f"holds its own size in {', '.join(fixed)}. Give the graph's size in the card."
        )


def _require_steady(run: Run, items: Items, before: Observation, options: ExportOptions) -> None:
    """Raise `ExportFailed` if the source answers otherwise when it is asked again."""
    again = check.agreement(before, check.observe(run, items, before.outputs))
    if not again.holds(options.tolerance):
        raise ExportFailed(
            f"{options.name}: the source itself answers otherwise when it is asked the same again, "
            f"so nothing can be proven of it; {options.output} was not written. "
            f"{again.against(options.tolerance)}. Leave out of it what is random, or kept from "
            f"one call to the next."
        )


def _own_fault(options: ExportOptions, seen: Observation) -> str:
    if not seen.loaded:
        return (
            f"{options.name}: the source itself {seen.faults[0].rstrip('.')}. A graph that ONNX "
            f"Runtime does not know cannot be proven, and is not exported."
        )
    ways = (
        "If a batch is not on axis 0, have it moved there with --batch-axis NAME=AXIS, or keep it "
        "with --static-batch."
    )
    if any(one.startswith(NO_RUN) for one in seen.faults):
        ways = (
            f"If its sizes are open, give ones that it takes with --shape; if an input is always "
            f"the same number, say which with --constant NAME=VALUE. {ways}"
        )
    faults = "; ".join(seen.faults).rstrip(".")
    return f"{options.name}: the source itself fails on random inputs: {faults}. {ways}"


def _refusal(
    source: Source,
    options: ExportOptions,
    opened: Opened,
    suspects: Sequence[str],
    shared: Sequence[str],
    *,
    resized: bool,
) -> str:
    if _computes_in_float16(opened.model) and opened.proof.holds(_FLOAT16):
        return (
            f"{options.name}: {opened.proof.against(options.tolerance)}; {options.output} was not "
            f"written. It computes in float16: --tolerance {_FLOAT16} allows for its rounding."
        )
    parts = [
        f"{options.name}: its batch {'and size ' if resized else ''}cannot be made dynamic, "
        f"{options.output} was not written. {opened.proof.against(options.tolerance)}."
    ]
    parts += [f"{note[:1].upper()}{note[1:]}." for note in (*opened.notes, *source.notes)]
    if suspects:
        more = f" and {len(suspects) - _MOST_NAMED} more" if len(suspects) > _MOST_NAMED else ""
        named = ", ".join(suspects[:_MOST_NAMED])
        parts.append(f"Nodes that hold the batch as a number: {named}{more}.")
    if mixing := check.first_mixing_node(opened.run, opened.items, options.tolerance):
        parts.append(f"The first node where the items of a batch change each other: {mixing}.")
    if shared:
        parts.append(f"Inputs that were taken for one all items share: {', '.join(shared)}.")
    own_size = "give the graph's own size in the card, or " if resized else ""
    ways = f"{own_size}{source.remedy}, or keep the batch as it is with --static-batch."
    parts.append(f"{ways[:1].upper()}{ways[1:]}")
    return " ".join(parts)


def _computes_in_float16(model: onnx.ModelProto) -> bool:
    return any(one.data_type == onnx.TensorProto.FLOAT16 for one in model.graph.initializer)


def _text(tensor: TensorSpec) -> str:
    return f"{tensor.name} [{', '.join(map(str, tensor.shape))}]"
