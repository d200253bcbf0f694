"""What was found on a machine; nothing here says whether it is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trtfuse.core.specs import DeviceSpec
from trtfuse.gpu.health import Driver, Health, Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Python package that is installed."""

    name: str
    """Of the distribution: "onnxruntime-gpu"."""
    version: str
    cuda: int | None = None
    """Major version of the CUDA it was made for; None: none, or it does not say."""
    broken: str = ""
    """Why it cannot be loaded; empty: it can, or that was not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A file system."""

    path: str
    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is here whether there are GPUs or not."""

    python: tuple[int, int]
    cpu: str
    cores: int
    memory_bytes: int
    shm: Space
    disk: Space
    """Of the present folder."""
    open_files: int | None
    """The soft limit; None: none."""
    locked_bytes: int | None
    """The soft limit of memory that a process may pin; None: none."""
    container: str = ""
    """What it seems to run in; empty: nothing."""
    kernel_module: bool = False
    """Whether the NVIDIA driver's kernel half is loaded, or its device files are here."""
    mps: bool = False
    """Whether NVIDIA's multi-process service is running."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that CUDA and NCCL read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a GPU is, and how it is now."""

    spec: DeviceSpec
    health: Health

    @property
    def capability(self) -> int:
        """Compute capability: 89 for 8.9."""
        return int(self.spec.features.partition(" ")[0].removeprefix("sm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it."""

    machine: Machine
    packages: Mapping[str, Package]
    """By the name of the distribution; what is not installed is not there."""
    driver: Driver | None = None
    no_gpu: str = ""
    """Why there is no GPU, where there is none."""
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[Pair, ...] = ()
