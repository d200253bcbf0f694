"""A PyTorch module as it is, in eager mode: what an engine's speed is measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from trtfuse.core.errors import UsageError
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import Array, Arrays
from trtfuse.graph import torchfiles


@contextmanager
def eager(
    factory: str, inputs: Sequence[str], outputs: Sequence[str], *, on_gpu: bool
) -> Iterator[Callable[[Arrays], dict[str, Array]]]:
    """The module of "package.module:factory" in eval mode, host arrays in and out.

    `inputs` and `outputs` are the graph's names, in forward's order. On a GPU, copies are part of a
    call, from memory that is not pinned; the process has chosen its GPU before. Raises UsageError
    where there is no such module, or it gives another number of outputs.
    """
    module, _ = torchfiles.module(ExportOptions(model=factory, output=Path()))
    device = torch.device("cuda" if on_gpu else "cpu")
    module = module.eval().to(device)

    def run(arrays: Arrays) -> dict[str, Array]:
        given = (torch.from_numpy(arrays[name]).to(device) for name in inputs)
        found = _tensors(module(*given))
        if len(found) != len(outputs):
            raise UsageError(
                f"--module {factory}: gives {len(found)} outputs, the graph has {len(outputs)}."
            )
        return {n: one.cpu().numpy() for n, one in zip(outputs, found, strict=True)}

    with torch.inference_mode():
        yield run


def _tensors(found: object) -> list[torch.Tensor]:
    """The tensors of whatever structure a module returns, in its order."""
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, tuple | list):
        return [tensor for one in found for tensor in _tensors(one)]
    return []
