"""The networks of the precision benchmarks: seeded weights, BatchNorm statistics of photographs.

ResNet-50, a U-Net with SiLU and skips, and a vision transformer of four blocks. None is trained:
what is asked is how much of the same function is left, not what the function is worth.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from gpu_nets import UNet, resnet50
from torch import nn

from trtfuse.core.specs import Array

SIZES = {"resnet50": 224, "unet": 256, "vit": 224}


class Block(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm, around which the input is carried."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, tokens, width) to the same."""
        count, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).reshape(count, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        shares = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(count, tokens, width))
        y: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.between(x))))
        return y


class Vit(nn.Module):
    """Patches of 16 pixels, four blocks of width 256, the mean of the tokens."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.place = nn.Parameter(0.02 * torch.randn(1, 14 * 14, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, 224, 224) to (n, 1000)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        y: torch.Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return y


def make(name: str, pictures: Array) -> nn.Module:
    """The network in eval mode, its BatchNorm statistics those of `pictures` (n, 3, size, size)."""
    torch.manual_seed(0)
    model: nn.Module = {"resnet50": resnet50, "unet": UNet, "vit": Vit}[name]()
    if isinstance(model, UNet):
        # As initialised its sigmoid stays within a thousandth of 0.5: a picture of nothing.
        nn.init.normal_(model.head.weight, std=0.2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches, not the latest
    model.train()
    with torch.no_grad():
        for start in range(0, len(pictures), 8):
            model(torch.from_numpy(pictures[start : start + 8]))
    return model.eval()


def export(name: str, pictures: Array, path: Path) -> Path:
    """ONNX with a dynamic batch: input `input`, output `output`, opset 17."""
    model = make(name, pictures)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecation
        torch.onnx.export(
            model,
            (torch.from_numpy(pictures[:2]),),
            str(path),
            opset_version=17,
            dynamo=False,
            input_names=["input"],
            output_names=["output"],
            dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
        )
    return path
