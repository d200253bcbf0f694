"""What models, devices and engines are: frozen, picklable, and JSON as they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trtfuse.core.card import Card

Array = NDArray[Any]
Arrays = Mapping[str, Array]

# The name of the batch axis in every graph that trtfuse writes. It is axis 0, and an output that
# has none cannot be split back into items.
BATCH = "batch"


class Precision(Enum):
    """In what numbers the engine computes.

    >>> Precision("int8").name
    'INT8'
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    """Where a layer has INT8 kernels; elsewhere FP16 on GPUs, FP32 on CPUs."""


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
    """"cpu", "cuda", or "rtx": whatever RTX GPUs have the features."""
    features: str
    """What an engine may rely on: a GPU's "sm90", a CPU's instruction sets."""
    index: int = 0
    uuid: str = ""
    memory_bytes: int = 0


Hardware = Literal["exact", "same-capability", "ampere+"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtSettings:
    """How TensorRT is asked to build; beside the graph, its profile and its device."""

    workspace_bytes: int | None = None
    """Most device memory that a layer may take while it computes; None: all there is."""
    optimization_level: int = 3
    """0 to 5: how long the builder searches. 3 is TensorRT's own default."""
    hardware: Hardware = "exact"
    """On which other GPUs the engine may run: none, any of one compute capability, Ampere and
    later."""
    version_compatible: bool = False
    """Whether later releases of TensorRT may load it."""
    compute_capabilities: tuple[str, ...] = ()
    """For TensorRT-RTX, as "8.9": the GPUs the engine is for; empty: all that RTX runs on."""

    def __post_init__(self) -> None:
        if self.workspace_bytes is not None and self.workspace_bytes < 1:
            raise ValueError(f"workspace needs bytes above 0, got {self.workspace_bytes}")
        if not 0 <= self.optimization_level <= 5:
            raise ValueError(f"optimization level needs 0 to 5, got {self.optimization_level}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """Everything that changes the engine's bytes; its fingerprint names the engine's folder."""

    model_sha256: str
    precision: Precision
    profile: tuple[tuple[str, ShapeRange], ...]
    device_name: str
    device_features: str
    runtime: str
    """"onnxruntime", "tensorrt" or "tensorrt_rtx"."""
    runtime_version: str
    settings: TrtSettings | None = None
    """None for runtimes that take none."""
    rest: Precision = Precision.FP32
    """With INT8: what the layers without it compute in, as the graph says it."""
    keep: tuple[str, ...] = ()
    """Layers that do not take part in `precision`."""
    ranges: str = ""
    """Fingerprint of the activation ranges; empty where none are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One check that the engine passed before it was published, with its number."""

    name: str
    value: float
    limit: float
    conditions: str
    least: bool = False
    """Whether `limit` is the least that passes, and not the most."""

    @property
    def passed(self) -> bool:
        """Whether the number is on the right side; NaN is on none."""
        return self.value >= self.limit if self.least else self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLayer:
    """A layer that was found to be sensitive to INT8, and what keeping it out gained."""

    layer: str
    alone: float
    """The noise that this layer makes by itself, over what the SQNR limit allows for all."""
    left: float | None
    """The same with it and all before it kept out; None: not tried."""
    kept: bool


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
    batch_ms: float = 0.0
    """Median time of the profile's opt batch on the device it was gated on, copies included."""
    notes: tuple[str, ...] = ()
    """What did not take part in the precision, and why."""
    sensitivity: tuple[KeptLayer, ...] = ()
    """The layers that a search for `keep` ranked, worst first."""
    choice: tuple[str, ...] = ()
    """What `--precision best` tried, and what came of each; empty where it was not asked."""
    lane_bytes: int = 0
    """Device memory that each batch in flight takes, weights apart; 0 where it was not measured."""
    engine_bytes: int = 0
    """Size of the engine's file; 0 in manifests from before it was kept."""

    @property
    def profile(self) -> dict[str, ShapeRange]:
        """Shape ranges by input name."""
        return dict(self.request.profile)
