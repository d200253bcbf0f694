"""What an engine takes: the check that every runner makes, and how a batch is filled up."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from trtfuse.core.errors import ShapeMismatch
from trtfuse.core.specs import Array, Arrays, EngineManifest, ShapeRange, TensorSpec


def check(inputs: Arrays, manifest: EngineManifest) -> None:
    """Raise ShapeMismatch unless the engine takes `inputs`.

    A batch may hold fewer items than the profile's minimum: the last one of a run often does, and
    a runner whose engine minds has to fill it up.
    """
    for tensor in manifest.inputs:
        if tensor.name not in inputs:
            raise ShapeMismatch(
                f"input {tensor.name!r}: is missing, got {', '.join(map(repr, inputs))}."
            )
        array, accepted = inputs[tensor.name], manifest.profile[tensor.name]
        if array.dtype != tensor.dtype or not _fits(array.shape, accepted):
            raise ShapeMismatch(
                f"input {tensor.name!r}: got {array.dtype} {_text(array.shape, array.shape)}, "
                f"needs {tensor.dtype} {_text((1, *accepted.min[1:]), accepted.max)}."
                f"{_way_out(array.shape, accepted, manifest)}"
            )
    counts = {name: len(inputs[name]) for name in manifest.profile}
    if len(set(counts.values())) > 1:
        raise ShapeMismatch(f"inputs need one batch size, got {counts}.")


def fixed_batch(inputs: Sequence[TensorSpec]) -> int | None:
    """The batch that a graph is fixed to; None: it is open, or there is none."""
    lead = inputs[0].shape[:1]
    return lead[0] if lead and isinstance(lead[0], int) else None


def filled(inputs: Arrays, batch: int | None) -> Arrays:
    """`inputs` with copies of the last item up to `batch`; themselves where that is None.

    Copies, as zeros may be what a model divides by.
    """
    if batch is None:
        return inputs
    return {name: _filled(array, batch) for name, array in inputs.items()}


def _filled(array: Array, batch: int) -> Array:
    missing = batch - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array


def _fits(shape: tuple[int, ...], accepted: ShapeRange) -> bool:
    return (
        bool(shape)
        and shape[0] > 0
        and accepted.holds((max(shape[0], accepted.min[0]), *shape[1:]))
    )


def _text(low: tuple[int, ...], high: tuple[int, ...]) -> str:
    axes = (str(a) if a == b else f"{a} to {b}" for a, b in zip(low, high, strict=True))
    return f"({', '.join(axes)})"


def _way_out(shape: tuple[int, ...], accepted: ShapeRange, manifest: EngineManifest) -> str:
    """The command that makes an engine for `shape`, where a batch range alone is missing."""
    if not _fits((1, *shape[1:]), accepted) or shape[0] <= accepted.max[0]:
        return ""
    if fixed_batch(manifest.inputs):
        return " The graph's batch is fixed: export it with a dynamic one for more."
    batch = f"{accepted.min[0]}:{accepted.opt[0]}:{shape[0]}"
    return (
        f" Rebuild for it with: trtfuse build {shlex.quote(str(manifest.source))} --batch {batch}"
    )
