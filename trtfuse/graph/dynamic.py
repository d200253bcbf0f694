"""The step that no export can do without: from a source to a graph whose batch is proven dynamic.

The proof has two halves. The rewritten nodes answer as the witness does, at the sizes and batches
that the witness takes. And at the sizes of the export, items in a batch answer as they do alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from trtfuse.core.errors import ExportFailed
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import TensorSpec
from trtfuse.graph import batch, check, probe
from trtfuse.graph.card import check_card, check_input
from trtfuse.graph.check import Observation, Proof, Reference
from trtfuse.graph.model import signature
from trtfuse.graph.probe import Items
from trtfuse.graph.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A graph with a dynamic batch, the items it was proven on, and what it answered."""

    model: onnx.ModelProto
    items: Items
    seen: Observation
    proof: Proof
    rewrites: tuple[batch.Rewrite, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witness:
    """What the source answers, at the sizes and batches that it takes."""

    sizes: tuple[TensorSpec, ...]
    items: Items
    batches: tuple[int, ...]
    seen: Observation
    notes: tuple[str, ...]


def with_dynamic_batch(source: Source, options: ExportOptions) -> Opened:
    """Open the batch of `source`. Raises `CardError`, or `ExportFailed` with numbers and nodes."""
    card = source.card.input if source.card else None
    declared = signature(source.model).inputs
    if card:
        check_input(card, declared)
    planned = batch.planned_inputs(declared, card)
    sizes = probe.sized(planned, card=card, shapes=source.shapes)
    items = probe.random_items(sizes, count=max(source.batches), seed=options.seed, card=card)
    witness = _witness(source, sizes, options)
    if witness.sizes != sizes:
        _require_free_size(source.model, options)
    baked = batch.baked_batch(declared, planned)
    # An open batch may be all there is to it; constants are touched only where it is not enough.
    for repair in (baked,) if baked else (None, source.traced_at):
        dynamic = batch.make_dynamic(source.model, planned, repair=repair)
        if source.card:
            check_card(source.card, signature(dynamic.model))
        opened = _proven(dynamic, planned, witness, items, source.batches)
        if opened.proof.holds(options.tolerance):
            return opened
    suspects = batch.nodes_with_fixed_batch(opened.model, planned, baked or source.traced_at)
    raise ExportFailed(_refusal(options, opened, suspects, resized=witness.sizes != sizes))


def _witness(source: Source, sizes: tuple[TensorSpec, ...], options: ExportOptions) -> _Witness:
    own = probe.taken(source.takes, sizes)
    fixed = batch.baked_batch(source.takes, sizes)
    batches = (fixed,) if fixed else source.batches
    count = max(*batches, *source.batches)
    card = source.card.input if source.card else None
    items = probe.random_items(own, count=count, seed=options.seed, card=card)
    seen = check.observe(source.run, items, batches)
    if not seen.outputs:
        raise ExportFailed(
            f"{options.model}: the source itself fails on random inputs: {'; '.join(seen.faults)}."
        )
    notes: tuple[str, ...] = ()
    proof = check.independence(seen)
    if 1 in seen.outputs and not proof.holds(options.tolerance):
        # A constant that holds the batch: only what the source says of single items is true.
        seen = Observation({1: seen.outputs[1]})
        notes = (f"the source is right at batch 1 only: {proof.against(options.tolerance)}",)
    return _Witness(sizes=own, items=items, batches=batches, seen=seen, notes=notes)


def _proven(
    dynamic: batch.Dynamic,
    planned: tuple[TensorSpec, ...],
    witness: _Witness,
    items: Items,
    batches: tuple[int, ...],
) -> Opened:
    seen = check.observe(Reference(dynamic.model), items, batches)
    # Where the export has another size than the witness, the same nodes are declared without one.
    anywhere = batch.declare(dynamic.model, probe.relaxed(planned, witness.sizes))
    there = check.observe(Reference(anywhere), witness.items, witness.batches)
    return Opened(
        model=dynamic.model,
        items=items,
        seen=seen,
        proof=check.combined(check.agreement(witness.seen, there), check.independence(seen)),
        rewrites=dynamic.rewrites,
        notes=witness.notes,
    )


def _require_free_size(model: onnx.ModelProto, options: ExportOptions) -> None:
    if fixed := batch.nodes_with_fixed_size(model):
        raise ExportFailed(
            f"{options.model}: the card asks for another size than the graph has, and the graph "
            f"holds its own size in {', '.join(fixed)}. Give the graph's size in the card."
        )


def _refusal(
    options: ExportOptions, opened: Opened, suspects: Sequence[str], *, resized: bool
) -> str:
    parts = [
        f"{options.model}: its batch {'and size ' if resized else ''}cannot be made dynamic, "
        f"{options.output} was not written. {opened.proof.against(options.tolerance)}."
    ]
    if suspects:
        parts.append(f"Nodes that hold the batch as a number: {', '.join(suspects)}.")
    if mixing := check.first_mixing_node(opened.model, opened.items, options.tolerance):
        parts.append(f"The first node where the items of a batch change each other: {mixing}.")
    own_size = "Give the graph's own size in the card, or export" if resized else "Export"
    parts.append(f"{own_size} it from its training framework with a dynamic first axis.")
    return " ".join(parts)
