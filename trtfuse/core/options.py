"""One frozen object of options per command. Defaults stand here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtfuse.core.errors import UsageError
from trtfuse.core.specs import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """`trtfuse export`."""

    model: str
    """An .onnx path, or "package.module:factory" of a callable that returns a torch Module."""
    output: Path
    card: Path | None = None
    """A JSON card to put into the graph; None keeps the one it has."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """One per input, without the batch axis; needed for PyTorch only."""
    simplify: bool = True
    tolerance: float = 1e-4
    """Largest difference allowed after a rewrite, relative to the largest output value."""
    opset: int = 17
    """Older ONNX graphs are raised to it where that can be proven; newer ones stay.

    17, with IR 8, is the newest that TensorRT 8.6 reads, and every later release does too.
    """
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tolerance <= 0:
            raise UsageError(f"--tolerance {self.tolerance}: needs a value above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """`trtfuse build`."""

    model: Path
    devices: str | None = None
    """As `--devices` says it; None: all usable GPUs, else the CPU."""
    precision: Precision = Precision.FP32
    batch: tuple[int, int, int] = (1, 4, 8)
    """min, opt and max items of one batch."""
    sizes: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None = None
    """min, opt and max (height, width); needed where the graph leaves them open."""
    engines: Path = Path("engines")
    rebuild: bool = False

    def __post_init__(self) -> None:
        low, best, high = self.batch
        if not 0 < low <= best <= high:
            raise UsageError(f"--batch {low}:{best}:{high}: needs 0 < min <= opt <= max.")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferOptions:
    """`trtfuse infer`."""

    source: Path
    output: Path | None = None
    """Where results go; None: `source` with "-out" added."""
    model: str | None = None
    """Name of the model under `engines`; None: the only one there."""
    engine: str | None = None
    """Name of one engine's folder; None: the only one that fits the device."""
    engines: Path = Path("engines")
    devices: str | None = None
    """As `--devices` says it; None: all usable GPUs that have an engine, else the CPU."""
    workers: int | None = None
    """Workers per device; None: one."""
    batch: int | None = None
    """Items in one batch; None: the profile's opt."""
    memory_bytes: int = 512 << 20
    """Upper limit of the shared ring."""
    feeders: int | None = None
    """Threads that decode; None: one a usable core, at most 16."""
    writers: int | None = None
    """Threads that write; None: as many as feeders."""
    annotate: bool = False
    restarts: int = 16
    """Workers that may be started again in one run, all together."""

    def __post_init__(self) -> None:
        for name in ("workers", "batch", "feeders", "writers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name} {value}: needs a whole number above 0.")
        if self.restarts < 0 or self.memory_bytes < 1:
            raise UsageError("--restarts and --memory need values that are not negative.")
