"""ONNX in, engine out: the graph as ONNX Runtime optimizes it for this CPU, kept as a file."""

from __future__ import annotations

from pathlib import Path

from trtfuse.core.errors import BuildFailed
from trtfuse.cpu import session


def build(model: Path, engine: Path) -> None:
    """Write `model`, optimized for the CPU of this machine, to `engine`.

    The file belongs to this CPU and this ONNX Runtime: convolutions are laid out in blocks as wide
    as its vectors (NCHWc) and nodes become kernels of ONNX Runtime's own. `BuildRequest` holds
    both. `model` must hold its weights itself: those that no optimization touches would stay in
    the side file, and the engine would not be whole.

    Raises BuildFailed with ONNX Runtime's message.
    """
    with session.translating(BuildFailed, f"{model.name}: ONNX Runtime cannot build it"):
        session.load(model, session.optimizing(engine))
