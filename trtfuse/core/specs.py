"""What models, devices and engines are: frozen, picklable, and JSON as they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtfuse.core.card import Card

Array = NDArray[Any]
Arrays = Mapping[str, Array]

# The name of the batch axis in every graph that trtfuse writes. It is axis 0, and an output that
# has none cannot be split back into items.
BATCH = "batch"


class Precision(Enum):
    """In what numbers the engine computes."""

    FP32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output. `shape` mixes sizes and names: ("batch", 3, 256, 256)."""

    name: str
    dtype: str
    """NumPy name, "float32": hashable, and JSON as it is."""
    shape: tuple[int | str, ...]

    def bytes_for(self, shape: tuple[int, ...]) -> int:
        """Bytes that an array of `shape` takes in this tensor's dtype."""
        return prod(shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """What one optimization profile accepts for one input; sizes only, batch axis included."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError(f"ranks differ: {self.min}, {self.opt}, {self.max}")
        for low, best, high in zip(self.min, self.opt, self.max, strict=True):
            if not 0 < low <= best <= high:
                raise ValueError(f"needs 0 < min <= opt <= max, got {low}:{best}:{high}")

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether `shape` lies inside, axis by axis."""
        return len(shape) == len(self.min) and all(
            low <= n <= high for low, n, high in zip(self.min, shape, self.max, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """An ONNX file on disk. `sha256` covers its external data too."""

    path: Path
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    card: Card | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One place that can run an engine."""

    name: str
    """As its maker calls it: "NVIDIA H200", "Intel(R) Xeon(R) Processor"."""
    kind: str
    """"cpu" or "cuda"."""
    features: str
    """What an engine may rely on: a GPU's "sm90", a CPU's instruction sets."""
    index: int = 0
    uuid: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """Everything that changes the engine's bytes; its fingerprint names the engine's folder."""

    model_sha256: str
    precision: Precision
    profile: tuple[tuple[str, ShapeRange], ...]
    device_name: str
    device_features: str
    runtime: str
    """"onnxruntime" or "tensorrt"."""
    runtime_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One check that the engine passed before it was published, with its number."""

    name: str
    value: float
    limit: float
    conditions: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineManifest:
    """The JSON beside an engine: enough to refuse it here without loading it."""

    schema: int
    model: str
    """The model's name: the folder under engines/."""
    source: Path
    """The ONNX file it was built from; checked when it is still there."""
    engine: str
    """File name, beside the manifest."""
    engine_sha256: str
    request: BuildRequest
    fingerprint: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output_max: tuple[tuple[int, ...], ...]
    """Shapes of `outputs` when every input has its profile's max shape; measured by a run."""
    card: Card | None
    gates: tuple[GateResult, ...]
    build_s: float
    trtfuse: str

    @property
    def profile(self) -> dict[str, ShapeRange]:
        """Shape ranges by input name."""
        return dict(self.request.profile)
