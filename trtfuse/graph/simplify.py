"""onnxsim, kept honest: away from this process, with the same inputs and outputs or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import onnx
from onnx import helper

from trtfuse.core.errors import ChildDied, UsageError
from trtfuse.core.specs import TensorSpec
from trtfuse.graph.fold import drop_unused
from trtfuse.graph.model import NotApplied, signature
from trtfuse.graph.weights import gather, is_external, stored_bytes, write
from trtfuse.graph.wire import outline
from trtfuse.graph.wiring import captured

T = TypeVar("T")

# onnxsim holds a graph in protobuf messages of at most 2 GiB, and several of them at a time.
_MOST_BYTES = 1 << 30

# Where a layer reads its weight as it is, there is nothing in it to simplify.
_LAYERS = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "LSTM": 1, "GRU": 1, "Gather": 0}


class Isolate(Protocol):
    """Runs `function(*args)` where its crash, hang or hunger for memory hurts nobody.

    Function, arguments and value are picklable. Raises `ChildDied` where there is no value.
    """

    def __call__(self, function: Callable[..., T], *args: object) -> T:
        """The value of `function(*args)`."""
        ...


def directly(function: Callable[..., T], *args: object) -> T:
    """No isolation: the function is called here. An `Isolate` for graphs that one trusts."""
    return function(*args)


def simplify(model: onnx.ModelProto, scratch: Path, isolate: Isolate) -> onnx.ModelProto:
    """A simplified copy, not yet proven. Raises `NotApplied` where onnxsim cannot.

    `scratch` holds the large tensors of `model`, and gets those of the copy.
    """
    before, after = scratch / "before.onnx", scratch / "after.onnx"
    bare, weights = _without_weights(model)
    if (size := stored_bytes(bare)) > _MOST_BYTES:
        raise NotApplied(f"onnxsim would have to hold {size / 2**30:.1f} GB, and takes up to 1")
    try:
        write(bare, scratch, before)
        if fault := isolate(simplify_file, before, after):
            raise NotApplied(fault)
        new = outline(after)
        gather(new, scratch, scratch, source="onnxsim")
        _put_back(new, weights)
        require_same_signature(model, new)
    except (ChildDied, UsageError) as error:
        raise NotApplied(str(error).rstrip(".")) from error
    finally:
        before.unlink(missing_ok=True)
        after.unlink(missing_ok=True)
    # onnxsim fills the metadata with a log of what it did.
    del new.metadata_props[:], new.graph.value_info[:]
    new.metadata_props.extend(model.metadata_props)
    return new


def simplify_file(before: Path, after: Path) -> str:
    """Simplify one file into another; what went wrong, or nothing. Runs in a child."""
    with _without_torch():
        import onnxsim
    try:
        new: onnx.ModelProto = onnxsim.simplify(str(before))[0]
        onnx.save(new, str(after))
    # onnxsim raises its C++ errors and onnx.checker's; both are one of these.
    except (RuntimeError, ValueError, MemoryError, onnx.checker.ValidationError) as error:
        return f"onnxsim failed: {' '.join(str(error).split())[:400] or type(error).__name__}"
    return ""


@contextmanager
def _without_torch() -> Iterator[None]:
    """onnxsim imports torch where it is installed, for what is not done here: 180 MB and 1.5 s."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


def _without_weights(
    model: onnx.ModelProto,
) -> tuple[onnx.ModelProto, dict[str, onnx.TensorProto]]:
    """A copy whose layers take their large weights as inputs; and those weights by name."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    graph = new.graph
    elsewhere = {name for node in graph.node for name in captured(node)}
    for node in graph.node:
        place = _LAYERS.get(node.op_type)
        elsewhere.update(name for n, name in enumerate(node.input) if n != place)
    weights = {t.name: t for t in model.graph.initializer if is_external(t)}
    for name in elsewhere:
        weights.pop(name, None)
    kept = [tensor for tensor in graph.initializer if tensor.name not in weights]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in weights.values()
    )
    return new, weights


def _put_back(model: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto]) -> None:
    """Make the inputs that are weights initializers again, in place."""
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(weights.values())
    drop_unused(model.graph)


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
