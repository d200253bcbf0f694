"""A baked-in batch made dynamic: axis 0 of inputs and outputs gets the name `BATCH`.

Declaring it is half the work. Nodes whose constants hold the batch as a number must follow
(`trtfuse.graph.repair`), or the graph runs at that one size only (or, in YOLOX, at every size, with
wrong answers). What was changed here is proven in `trtfuse.graph.check`, never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from trtfuse.core.card import InputCard
from trtfuse.core.errors import ExportFailed, UnknownName
from trtfuse.core.options import Sizes
from trtfuse.core.specs import BATCH, TensorSpec
from trtfuse.graph.card import AXES
from trtfuse.graph.model import dims, inferred, set_dims, signature
from trtfuse.graph.repair import Dims, Rewrite, repair

Inputs = tuple[TensorSpec, ...]

# How an axis is called that a graph calls as we call the batch.
_OTHER_BATCH = f"other_{BATCH}"


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A rewritten graph, not yet proven, and what was rewritten."""

    model: onnx.ModelProto
    rewrites: tuple[Rewrite, ...]


def plans(
    tensors: Sequence[TensorSpec],
    card: InputCard | None,
    *,
    batched: Sequence[str] = (),
    shapes: Sequence[Sizes] = (),
) -> tuple[Inputs, ...]:
    """The inputs that the exported graph may have, the likeliest first; only a run can tell.

    Those that carry the batch get `BATCH` on axis 0: the ones in `batched`, the card's, or ours to
    find. The card's size replaces fixed sizes of the graph: "dynamic" opens them, as a name in
    `shapes` does. Sizes that the graph leaves open stay so. Raises `UnknownName`, and
    `ExportFailed` for a batch on another axis.
    """
    known = {one.name for one in tensors}
    if unknown := [name for name in batched if name not in known]:
        raise UnknownName.among("--batch-input", unknown[0], known)
    stated = {*batched} or ({card.name} if card else None)
    guesses = [stated] if stated else _guesses(tensors)
    found = tuple(_planned(tensors, card, names, shapes) for names in guesses)
    _require_first_axis(tensors, found[0])
    return found


def baked_batch(tensors: Sequence[TensorSpec], planned: Sequence[TensorSpec]) -> int | None:
    """The batch that the graph's inputs are fixed to; None if they declare it open."""
    for tensor, plan in zip(tensors, planned, strict=True):
        if plan.shape[:1] == (BATCH,) and isinstance(tensor.shape[0], int):
            return tensor.shape[0]
    return None


def make_dynamic(
    model: onnx.ModelProto, planned: Sequence[TensorSpec], *, held: int | None, deep: bool = False
) -> Dynamic:
    """A copy of `model` with the inputs `planned`.

    `held` is the batch that the graph was traced at: constants that lead with it follow the batch
    instead, the `deep` ones too. None leaves all nodes as they are.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    rewrites = repair(new, planned, held, deep=deep) if held else []
    before = {tensor.name: tensor.shape for tensor in signature(new).inputs}
    rewrites += [
        Rewrite(f"input {tensor.name!r}", before[tensor.name], tensor.shape)
        for tensor in planned
        if before[tensor.name] != tensor.shape
    ]
    return Dynamic(declare(new, planned), tuple(rewrites))


def declare(model: onnx.ModelProto, planned: Sequence[TensorSpec]) -> onnx.ModelProto:
    """A copy of `model` with the inputs `planned`; output axes follow from them.

    Output sizes are inferred anew: declared ones may be of another batch, or plainly wrong.
    What inference cannot tell gets a name.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    shapes = {tensor.name: tensor.shape for tensor in planned}
    for value in new.graph.input:
        set_dims(value, shapes[value.name])
    for value in new.graph.output:
        value.type.tensor_type.ClearField("shape")
    outputs = inferred(new).output
    known = {name for shape in shapes.values() for name in shape if isinstance(name, str)}
    for value, old, found in zip(new.graph.output, model.graph.output, outputs, strict=True):
        has_shape = found.type.tensor_type.HasField("shape")
        set_dims(value, _output_dims(found if has_shape else _rank_of(old), known))
    return new


def _guesses(tensors: Sequence[TensorSpec]) -> list[set[str]]:
    """Which inputs may carry the batch, without repeats: many, then fewer."""
    # A vector that is as long as the batch may be thresholds or sizes: one axis is too few to tell.
    candidates = [one for one in tensors if len(one.shape) >= 2] or [
        one for one in tensors if one.shape
    ]
    opened = [one for one in candidates if isinstance(one.shape[0], str)]
    first = (opened or candidates or tensors)[:1]
    alike = {one.name for one in candidates for lead in first if one.shape[0] == lead.shape[0]}
    guesses = [{one.name for one in opened} or alike, alike, {one.name for one in first}]
    return [names for n, names in enumerate(guesses) if names not in guesses[:n]]


def _planned(
    tensors: Sequence[TensorSpec],
    card: InputCard | None,
    batched: set[str],
    shapes: Sequence[Sizes],
) -> Inputs:
    planned = []
    for index, tensor in enumerate(tensors):
        # One name is one size: what else is called as the batch will be needs another.
        shape = [_OTHER_BATCH if size == BATCH else size for size in tensor.shape]
        if tensor.name in batched and shape:
            shape[0] = BATCH
        if card and tensor.name == card.name:
            _take_size(shape, card)
        if index < len(shapes):
            _take_names(shape, shapes[index])
        planned.append(replace(tensor, shape=tuple(shape)))
    return tuple(planned)


def _take_size(shape: list[int | str], card: InputCard) -> None:
    size: tuple[int | str, int | str] = ("height", "width") if card.size == "dynamic" else card.size
    for axis, wanted in zip(AXES[card.layout][1:], size, strict=True):
        if isinstance(shape[axis], int):
            shape[axis] = wanted


def _take_names(shape: list[int | str], sizes: Sizes) -> None:
    """Open the axes that `sizes`, which may leave out the batch, calls by a name."""
    first = len(shape) - len(sizes)
    for axis, size in enumerate(sizes, start=first):
        if isinstance(size, str) and axis >= 0 and isinstance(shape[axis], int):
            shape[axis] = size


def _require_first_axis(tensors: Sequence[TensorSpec], planned: Inputs) -> None:
    """Raise `ExportFailed` where an input has the batch's name on another axis than the first."""
    names = {
        one.shape[0]
        for one, plan in zip(tensors, planned, strict=True)
        if plan.shape[:1] == (BATCH,) and isinstance(one.shape[0], str)
    }
    for tensor in tensors:
        for axis, size in enumerate(tensor.shape[1:], start=1):
            if size in names:
                raise ExportFailed(
                    f"input {tensor.name!r} [{', '.join(map(str, tensor.shape))}] has the batch on "
                    f"axis {axis}, and items are split along axis 0 only. Have it moved there with "
                    f"--batch-axis {tensor.name}={axis}, or keep it with --static-batch."
                )


def _output_dims(value: onnx.ValueInfoProto, known: set[str]) -> Dims:
    """Numbers and the inputs' names as inferred; a name of its own for what is only called so."""
    shape = [
        size if isinstance(size, int) or size in known else f"{value.name}_{axis}"
        for axis, size in enumerate(dims(value))
    ]
    if shape and isinstance(shape[0], str) and BATCH in known:
        shape[0] = BATCH
    return tuple(shape)


def _rank_of(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The value with its rank alone, where inference found nothing."""
    new = onnx.ValueInfoProto()
    new.CopyFrom(value)
    for dim in new.type.tensor_type.shape.dim:
        dim.Clear()
    return new
