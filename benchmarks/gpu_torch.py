"""Rates of PyTorch on the GPU, for `vs_pytorch.py`."""

from __future__ import annotations

from typing import Any

import torch
from gpu_engines import Net, pictures, rounds
from gpu_nets import make


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    cudnn: Any = torch.backends.cudnn
    return {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": str(cudnn.version()),
    }


def rate(net: Net, batch: int, path: str) -> list[float]:
    """Items/s of one way to run `net`: "PyTorch eager TF32", "… eager FP16", "… compiled FP16"."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    model: Any = make(net.name, net.size).cuda()
    model = model.to(memory_format=torch.channels_last)
    if "FP16" in path:
        model = model.half()
    if "compiled" in path:
        torch._dynamo.reset()
        # With CUDA graphs, as trtfuse has them.
        model = torch.compile(model, mode="reduce-overhead", dynamic=False)
    x = torch.from_numpy(pictures(net, batch)).cuda()
    cuda: Any = torch.cuda
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    with torch.inference_mode():
        for _ in range(20):
            model(x)
        cuda.synchronize()

        def seconds(count: int) -> float:
            begin.record()
            for _ in range(count):
                model(x)
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3

        return rounds(seconds, batch)
