"""The ends of a graph made what the rest works on: inputs that never change put in, batch first.

Items are split along axis 0, and every input is one value an item or the same for all. A recurrent
state has its batch on another axis; a sample rate or a threshold is the same in every run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import Array, Arrays, TensorSpec
from trtfuse.graph.check import Run
from trtfuse.graph.model import dims, inferred, set_dims, signature
from trtfuse.graph.source import Source
from trtfuse.graph.wiring import rename, set_nodes


def arranged(source: Source, options: ExportOptions) -> Source:
    """`source` without the inputs that the options make constants, and with their batches first.

    Its witness is arranged in the same way. Raises `UsageError` for what its graph does not have.
    """
    model = _with_true_outputs(source.model, {name for name, _ in options.batch_axes})
    ends = signature(model)
    inputs = {one.name: one for one in ends.inputs}
    constants = {
        name: _constant(_known("--constant", name, inputs), text)
        for name, text in options.constants
    }
    moved = {one.name: one for one in (*ends.inputs, *ends.outputs)}
    axes = {
        name: _axis(_known("--batch-axis", name, moved), axis) for name, axis in options.batch_axes
    }
    _put_in(model, constants)
    for name, axis in axes.items():
        _move(model, name, axis)
    kept = [n for n, one in enumerate(source.takes) if one.name not in constants]
    return replace(
        source,
        model=model,
        witness=lambda: _arranged(source.witness(), constants, axes),
        takes=tuple(_first(source.takes[n], axes) for n in kept),
        shapes=tuple(source.shapes[n] for n in kept) if source.shapes else (),
        notes=(
            *source.notes,
            *(
                f"input {name!r} is now the constant {_text(one)}"
                for name, one in constants.items()
            ),
            *(f"the batch of {name!r} is now its axis 0, not {n}" for name, n in axes.items()),
        ),
    )


def _with_true_outputs(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy whose outputs `names` have the shapes that follow from its nodes, where any do.

    What a graph declares of its outputs is not always so, not even the number of axes.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    for value in new.graph.output:
        if value.name in names:
            value.type.tensor_type.ClearField("shape")
    found = inferred(new)
    for value, old, sharp in zip(new.graph.output, model.graph.output, found.output, strict=True):
        if value.name not in names:
            continue
        if sharp.type.tensor_type.HasField("shape"):
            value.CopyFrom(sharp)
        elif axes := _axes_of_reshape(found, value.name):
            set_dims(value, [f"{value.name}_{axis}" for axis in range(axes)])
        else:
            value.CopyFrom(old)
    return new


def _axes_of_reshape(graph: onnx.GraphProto, name: str) -> int:
    """How many axes a Reshape to a measured shape makes, which ONNX does not infer; or 0."""
    lengths = {
        one.name: dims(one)[0]
        for one in graph.value_info
        if len(one.type.tensor_type.shape.dim) == 1
    }
    made = (n.input[1] for n in graph.node if n.op_type == "Reshape" and name in n.output)
    target = next(made, "")
    length = lengths.get(target, 0)
    return length if isinstance(length, int) else 0


def _known(flag: str, name: str, tensors: Mapping[str, TensorSpec]) -> TensorSpec:
    if name not in tensors:
        raise UnknownName.among(flag, name, tensors)
    return tensors[name]


def _constant(tensor: TensorSpec, text: str) -> Array:
    """The values that a number or a file stands for, in the tensor's shape and dtype."""
    what = f"--constant {tensor.name}={text}"
    shape = tuple(n for n in tensor.shape if isinstance(n, int))
    in_file = text.endswith(".npy")
    try:
        values = np.load(text, allow_pickle=False) if in_file else np.array(float(text))
    except (OSError, ValueError) as error:
        raise UsageError(f"{what}: needs a number or a .npy file ({error}).") from error
    if not values.ndim and len(shape) == len(tensor.shape):
        values = np.full(shape, values)
    fits = values.ndim == len(tensor.shape) and all(
        isinstance(n, str) or n == size for n, size in zip(tensor.shape, values.shape, strict=True)
    )
    made = values.astype(tensor.dtype)
    if not fits or (made.dtype.kind != "f" and (made != values).any()):
        raise UsageError(
            f"{what}: is {values.dtype} {list(values.shape)}, input {tensor.name!r} needs "
            f"{tensor.dtype} {list(tensor.shape)}."
        )
    return made


def _axis(tensor: TensorSpec, axis: int) -> int:
    if not 0 < axis < len(tensor.shape):
        raise UsageError(
            f"--batch-axis {tensor.name}={axis}: {tensor.name!r} is {list(tensor.shape)}, needs an "
            f"axis behind the first."
        )
    return axis


def _put_in(model: onnx.ModelProto, constants: Arrays) -> None:
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )


def _move(model: onnx.ModelProto, name: str, axis: int) -> None:
    """Have a graph input or output lead with its `axis`, in place."""
    graph, inner = model.graph, f"{name}_trtfuse"
    (value,) = (one for one in (*graph.input, *graph.output) if one.name == name)
    shape = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    order = [axis, *(n for n in range(len(shape)) if n != axis)]
    set_dims(value, [shape[n] for n in order])
    rename(graph.node, name, inner)
    nodes = list(graph.node)
    if any(one.name == name for one in graph.input):
        back = [order.index(n) for n in range(len(shape))]
        turn = helper.make_node("Transpose", [name], [inner], name=f"{inner}_last", perm=back)
        set_nodes(model, [turn, *nodes])
    else:
        for node in nodes:
            node.output[:] = [inner if one == name else one for one in node.output]
        turn = helper.make_node("Transpose", [inner], [name], name=f"{inner}_first", perm=order)
        set_nodes(model, [*nodes, turn])


def _first(tensor: TensorSpec, axes: Mapping[str, int]) -> TensorSpec:
    axis = axes.get(tensor.name, 0)
    shape = tensor.shape
    return replace(tensor, shape=(*shape[axis : axis + 1], *shape[:axis], *shape[axis + 1 :]))


def _arranged(run: Run, constants: Arrays, axes: Mapping[str, int]) -> Run:
    """`run`, the source as it is, with the ends that its graph has now."""

    def answer(feeds: Arrays) -> dict[str, Array]:
        # An input without axes has none to move.
        given = {n: np.moveaxis(one, 0, axes[n]) if n in axes else one for n, one in feeds.items()}
        answers = run({**given, **constants})
        return {n: np.moveaxis(one, axes[n], 0) if n in axes else one for n, one in answers.items()}

    return answer


def _text(values: Array) -> str:
    return str(values.item()) if values.size == 1 else f"{values.dtype} {list(values.shape)}"
