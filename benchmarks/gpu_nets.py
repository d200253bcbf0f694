"""The two networks of the GPU benchmarks, as PyTorch modules with bytes at their edges.

ResNet-50 (He et al. 2015; 224 x 224, 25.6 M parameters) and an image-to-image U-Net (256 x 256,
14 M parameters), random weights, seed 0: speed does not ask for training. BatchNorm statistics come
from three batches of noise, so that activations keep sane.
"""

from __future__ import annotations

import torch
from torch import nn


class Bottleneck(nn.Module):
    """Three convolutions around which the input is carried."""

    def __init__(self, channels_in: int, width: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.skip = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, channels_in, h, w) to (n, channels_out, h / stride, w / stride)."""
        y: torch.Tensor = torch.relu(self.body(x) + self.skip(x))
        return y


def resnet50() -> nn.Module:
    """(n, 3, 224, 224) to (n, 1000)."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Bottleneck(channels, width, 4 * width, 1 if index else stride))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def conv(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    """A 3 x 3 convolution with what follows it."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.SiLU(),
    )


class Residual(nn.Module):
    """Two convolutions around which the input is carried."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = conv(channels, channels), conv(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The shape stays."""
        y: torch.Tensor = x + self.second(self.first(x))
        return y


class UNet(nn.Module):
    """Three levels down, three up. Values out are 0 to 1."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        w = width
        self.stem = conv(3, w)
        self.down = nn.ModuleList(
            [
                nn.Sequential(conv(w, 2 * w, 2), Residual(2 * w)),
                nn.Sequential(conv(2 * w, 4 * w, 2), Residual(4 * w)),
                nn.Sequential(conv(4 * w, 8 * w, 2), *(Residual(8 * w) for _ in range(4))),
            ]
        )
        self.up = nn.ModuleList(
            [
                nn.Sequential(conv(12 * w, 4 * w), Residual(4 * w)),
                nn.Sequential(conv(6 * w, 2 * w), Residual(2 * w)),
                conv(3 * w, w),
            ]
        )
        self.grow = nn.Upsample(scale_factor=2, mode="nearest")
        self.head = nn.Conv2d(w, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, h, w) to the same."""
        levels = [self.stem(x)]
        for stage in self.down:
            levels.append(stage(levels[-1]))
        x = levels.pop()
        for stage in self.up:
            x = stage(torch.cat([self.grow(x), levels.pop()], 1))
        y: torch.Tensor = torch.sigmoid(self.head(x))
        return y


class Bytes(nn.Module):
    """`model` between bytes: uint8 (n, h, w, 3) in, and out too where the answer is a picture.

    The Cast stands at the edge: TensorRT takes bytes there and nowhere else.
    """

    def __init__(self, model: nn.Module, *, picture: bool) -> None:
        super().__init__()
        self.model, self.picture = model, picture

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised with mean 0.5 and std 0.25; computed in the type of the weights."""
        dtype = next(self.model.parameters()).dtype
        y: torch.Tensor = self.model((x.to(dtype).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)
        if self.picture:
            y = (y.permute(0, 2, 3, 1) * 255).clamp(0, 255).round().to(torch.uint8)
        return y


def make(name: str, size: int, width: int = 48) -> nn.Module:
    """ "resnet50" or "unet" (of that width), ready to infer on (n, size, size, 3) bytes."""
    torch.manual_seed(0)
    model = resnet50() if name == "resnet50" else UNet(width)
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(4, 3, size, size))
    return Bytes(model, picture=name == "unet").eval()
