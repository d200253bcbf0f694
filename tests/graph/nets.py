"""Tiny torch modules, each with one property that export has to deal with."""

from __future__ import annotations

import torch
from torch import nn


class ConvNet(nn.Module):
    """Convolution, BatchNorm and Dropout: different answers in training mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.norm.running_mean = torch.full((4,), 0.3)
        self.norm.running_var = torch.full((4,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.drop(self.norm(self.conv(x)))
        return y


class BakedNet(nn.Module):
    """Reads the batch as a number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(192, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x.reshape(int(x.shape[0]), 192))
        return y


class DictNet(nn.Module):
    """Returns a dict with None and a tuple inside."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"boxes": x * 2, "aux": None, "scores": (x + 1, x - 1)}


class PairNet(nn.Module):
    """Two inputs, a tuple of two outputs."""

    def forward(
        self, image: torch.Tensor, embedding: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return image * embedding[:, :, None, None], embedding.sum(1, keepdim=True)


class AnchorNet(nn.Module):
    """A picture, a table and a number: only the first has one an item."""

    def forward(
        self, image: torch.Tensor, anchors: torch.Tensor, threshold: torch.Tensor
    ) -> torch.Tensor:
        return anchors * image.mean((1, 2, 3))[:, None, None] + threshold


class MixingNet(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class WritingNet(nn.Module):
    """Writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + 1


class EchoNet(nn.Module):
    """Uses one name for an input and an output."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x + 1}


class TextNet(nn.Module):
    """Returns something that is no tensor."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"y": x, "label": "cat"}


def half_trained() -> nn.Module:
    """A module of which one part is in training mode and the other is not."""
    net = ConvNet()
    net.norm.eval()
    return net


shared = half_trained()


def same_again() -> nn.Module:
    """Always the one module."""
    return shared


def not_a_module() -> list[int]:
    return []


class ScaledNet(nn.Module):
    """A convolution of `width` channels times `gain`: a factory with arguments."""

    def __init__(self, width: int, gain: float = 1.0, name: str = "plain") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, width, 3)
        self.gain = gain
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x) * self.gain
        return y


class TokenNet(nn.Module):
    """Whole numbers and flags in: an embedding of 10 words, with some masked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 4)

    def forward(self, words: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.words(words).masked_fill(masked[..., None], 0.0).sum(1)
        return y


class DoubleNet(nn.Module):
    """float64 weights, and float64 in the middle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x.to(self.conv.weight.dtype))
        return (y.double() * 0.1).to(x.dtype)


class SizedNet(nn.Module):
    """Grows its picture to twice its size, whatever that is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, scale_factor=2.0, mode="nearest") * 2


class NothingNet(nn.Module):
    """Returns no tensor at all."""

    def forward(self, x: torch.Tensor) -> dict[str, None]:
        return {"x": None}


def raising() -> nn.Module:
    """A factory that fails."""
    raise ValueError("no such size")


class ManyNet(torch.nn.Module):
    """Any number of inputs."""

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        """The first, with the means of the others added."""
        total = parts[0]
        for part in parts[1:]:
            total = total + part.mean(dim=1, keepdim=True)
        return total


class KeywordNet(torch.nn.Module):
    """One that cannot be called with what a graph has."""

    def forward(self, x: torch.Tensor, *, gain: torch.Tensor) -> torch.Tensor:
        """`x`, louder."""
        return x * gain


class SpectrumNet(nn.Module):
    """Complex inside; PyTorch's exporter reduces with an attribute of a later operator set."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.fft.rfft(x).abs()
        return y


class RandomNet(nn.Module):
    """Adds noise, in eval mode too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


class CountingNet(nn.Module):
    """Answers otherwise each time that it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls: torch.Tensor = self.calls + 1
        return x + self.calls


class BranchNet(nn.Module):
    """An if on what it was given, which a trace goes through one way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x[0, 0] > 0.5 else x * 3


class HalfNet(nn.Module):
    """Computes in float16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x.half())
        return y.float()


class StubbornNet(nn.Module):
    """Asks for float64, whatever its weights were made."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.line(x.double())
        return y
