"""What an engine takes: the check that every runner makes before it computes."""

from __future__ import annotations

import shlex
from pathlib import Path

from trtfuse.core.errors import ShapeMismatch
from trtfuse.core.specs import Arrays, EngineManifest, ShapeRange


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
                f"{_way_out(array.shape, accepted, manifest.source)}"
            )
    counts = {name: len(inputs[name]) for name in manifest.profile}
    if len(set(counts.values())) > 1:
        raise ShapeMismatch(f"inputs need one batch size, got {counts}.")


def _fits(shape: tuple[int, ...], accepted: ShapeRange) -> bool:
    return (
        bool(shape)
        and shape[0] > 0
        and accepted.holds((max(shape[0], accepted.min[0]), *shape[1:]))
    )


def _text(low: tuple[int, ...], high: tuple[int, ...]) -> str:
    axes = (str(a) if a == b else f"{a} to {b}" for a, b in zip(low, high, strict=True))
    return f"({', '.join(axes)})"


def _way_out(shape: tuple[int, ...], accepted: ShapeRange, source: Path) -> str:
    """The command that makes an engine for `shape`, where a batch range alone is missing."""
    if not _fits((1, *shape[1:]), accepted) or shape[0] <= accepted.max[0]:
        return ""
    batch = f"{accepted.min[0]}:{accepted.opt[0]}:{shape[0]}"
    return f" Rebuild for it with: trtfuse build {shlex.quote(str(source))} --batch {batch}"
