"""Five nets in the shape of what people export, with random weights, in any width and depth.

They stand for their kinds: a classifier (ResNet-50), a restorer with skip connections and SiLU
(U-Net), attention (a ViT), a fusion of picture and embedding, super-resolution by PixelShuffle.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

Tensor = torch.Tensor


def _seeded(net: nn.Module) -> nn.Module:
    """The same weights each time, which keep activations at their size."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter, generator=generator)
        elif name.endswith("bias"):
            nn.init.normal_(parameter, std=0.05, generator=generator)
    return net


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            _conv(inputs, width, 1),
            nn.ReLU(),
            _conv(width, width, 3, stride),
            nn.ReLU(),
            _conv(width, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """As its class says."""
        return torch.relu(self.body(x) * 0.5 + self.shortcut(x))


class ResNet(nn.Module):
    """[batch, 3, height, width] -> logits [batch, classes]; the defaults are ResNet-50's."""

    def __init__(
        self, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), classes: int = 1000
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage and not block else 1
                layers.append(_Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)
        _seeded(self)

    def forward(self, x: Tensor) -> Tensor:
        """As its class says."""
        y: Tensor = self.head(self.body(x).mean((2, 3)))
        return y


class UNet(nn.Module):
    """[batch, 3, height, width] -> the same: two levels down and up, skips, SiLU, GroupNorm."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = self._block(3, width)
        self.down1 = self._block(width, 2 * width, 2)
        self.down2 = self._block(2 * width, 4 * width, 2)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join1 = self._block(4 * width, 2 * width)
        self.join2 = self._block(3 * width, width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)
        _seeded(self)

    @staticmethod
    def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(4, outputs), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        """As its class says."""
        one = self.first(x)
        two = self.down1(one)
        up = self.join1(torch.cat([self.up1(self.down2(two)), two], 1))
        grown = nn.functional.interpolate(up, scale_factor=2.0, mode="bilinear")
        y: Tensor = torch.sigmoid(self.last(self.join2(torch.cat([grown, one], 1))))
        return y


class ViT(nn.Module):
    """[batch, 3, size, size] -> [batch, classes]: patches, a class token, attention, LayerNorm."""

    def __init__(
        self, size: int = 224, patch: int = 16, width: int = 384, heads: int = 6, depth: int = 12
    ) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(_Attention(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)
        _seeded(self)

    def forward(self, x: Tensor) -> Tensor:
        """As its class says."""
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.token.expand(x.shape[0], -1, -1), rows], 1) + self.places
        for block in self.blocks:
            rows = block(rows)
        y: Tensor = self.head(self.norm(rows)[:, 0])
        return y


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """As its class says."""
        batch, rows, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, rows, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, rows, width))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Fusion(nn.Module):
    """A picture and an embedding -> a picture: AdaIN, as nets do that put one face into another."""

    def __init__(self, width: int = 64, embedding: int = 512) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 7, padding=3, padding_mode="reflect")
        self.style = nn.Linear(embedding, 2 * width)
        self.body = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 3, 3, padding=1)
        _seeded(self)

    def forward(self, picture: Tensor, embedding: Tensor) -> Tensor:
        """As its class says."""
        x = nn.functional.instance_norm(self.first(picture))
        scale, shift = self.style(embedding)[:, :, None, None].chunk(2, 1)
        x = nn.functional.leaky_relu(x * scale + shift, 0.2)
        y: Tensor = torch.tanh(self.last(nn.functional.leaky_relu(self.body(x), 0.2) + x))
        return y


class SuperResolution(nn.Module):
    """[batch, 3, height, width] -> `scale` times the size, by PixelShuffle."""

    def __init__(self, width: int = 64, depth: int = 8, scale: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.PReLU(width)]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width)]
        layers.append(nn.Conv2d(width, 3 * scale * scale, 3, padding=1))
        self.body = nn.Sequential(*layers)
        self.shuffle = nn.PixelShuffle(scale)
        self.scale = scale
        _seeded(self)

    def forward(self, x: Tensor) -> Tensor:
        """As its class says."""
        base = nn.functional.interpolate(x, scale_factor=float(self.scale), mode="nearest")
        y: Tensor = self.shuffle(self.body(x)) * 0.1 + base
        return y
