"""onnxsim, kept honest: its result must have the same inputs and outputs to be considered."""

from __future__ import annotations

import onnx
import onnxsim

from trtfuse.core.specs import TensorSpec
from trtfuse.graph.model import NotApplied, signature


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """A simplified copy, not yet proven. Raises `NotApplied` where onnxsim cannot."""
    try:
        new: onnx.ModelProto = onnxsim.simplify(model)[0]
    # onnxsim raises its C++ errors and onnx.checker's; both are one of these.
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise NotApplied(f"onnxsim failed: {' '.join(str(error).split())}") from error
    require_same_signature(model, new)
    # onnxsim fills the metadata with a log of what it did.
    del new.metadata_props[:], new.graph.value_info[:]
    new.metadata_props.extend(model.metadata_props)
    return new


def require_same_signature(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Raise `NotApplied` unless names, dtypes, sizes and named axes are the same on both sides.

    One gain is allowed: a number for an output axis whose size nobody knew before.
    """
    old, new = signature(before), signature(after)
    if old.inputs != new.inputs:
        raise NotApplied(
            f"onnxsim changed the inputs from {_words(old.inputs)} to {_words(new.inputs)}"
        )
    known = {size for tensor in old.inputs for size in tensor.shape}
    if len(old.outputs) != len(new.outputs) or not all(
        _is_sharper(one, other, known) for one, other in zip(old.outputs, new.outputs, strict=True)
    ):
        raise NotApplied(
            f"onnxsim changed the outputs from {_words(old.outputs)} to {_words(new.outputs)}"
        )


def _is_sharper(old: TensorSpec, new: TensorSpec, known: set[int | str]) -> bool:
    """Whether `new` is `old`, or says a number where `old` has a name that no input has."""
    return (old.name, old.dtype, len(old.shape)) == (new.name, new.dtype, len(new.shape)) and all(
        n == o or (isinstance(n, int) and isinstance(o, str) and o not in known)
        for o, n in zip(old.shape, new.shape, strict=True)
    )


def _words(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in tensors)
