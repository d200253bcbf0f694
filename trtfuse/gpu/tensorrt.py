"""The one door to TensorRT: 8.6, 10, 11, and TensorRT-RTX from 1.5 on.

What differs between them is found once, by asking for the attribute, and callers see `Door`. Its
building half is in `network.py`. Polygraphy's `TrtRunner` owns an engine and its first context;
plans are loaded here, since Polygraphy's loaders let every plan run host code.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtfuse.core.errors import DeviceError, EngineMismatch, OutOfMemory
from trtfuse.core.extras import require
from trtfuse.core.specs import Precision
from trtfuse.gpu.words import Words, out_of_memory

log = logging.getLogger(__name__)

_DISTRIBUTIONS = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu11"),
    "tensorrt_rtx": ("tensorrt-rtx",),
}
# Polygraphy reads it once, when it is first imported: one process, one runtime.
_SWITCH = "POLYGRAPHY_USE_TENSORRT_RTX"
# With these it runs pip, or checks itself at every call.
_TRAPS = ("POLYGRAPHY_AUTOINSTALL_DEPS", "POLYGRAPHY_INTERNAL_CORRECTNESS_CHECKS")
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What this TensorRT can and needs to be told."""

    weakly_typed: bool
    """Precision needs flags."""
    portable: bool
    """RTX: builds for a list of compute capabilities, without a GPU."""
    progress: bool
    profile_sharing: bool
    """Contexts that share a profile have to be asked for."""
    same_capability: bool
    """Engines for all GPUs of one compute capability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IoTensor:
    """One input or output of an engine. `on_device`: whether its memory is to be there."""

    name: str
    dtype: str
    on_device: bool


class Door:
    """TensorRT as this process has it. Get it with `door`."""

    def __init__(self, trt: Any, words: Words, logger: Any) -> None:
        self.words = words
        self.version: str = trt.__version__
        self.abilities = abilities(trt)
        self.trt = trt
        self.logger = logger

    def load(self, plan: Path, *, anywhere: bool) -> Any:
        """The engine of a plan. The caller has checked where the plan comes from: it is code.

        Raises EngineMismatch where TensorRT refuses it, or warns that it is of another model of GPU
        and it was not built to run `anywhere`; OutOfMemory where the device's memory does not do.
        """
        self.words.clear()
        runtime = self.trt.Runtime(self.logger)
        # The default, said aloud: no host code out of a plan.
        runtime.engine_host_code_allowed = False
        engine = runtime.deserialize_cuda_engine(plan.read_bytes())
        error = refusal(self.words, loaded=engine is not None, anywhere=anywhere)
        if error:
            raise type(error)(f"{plan}: TensorRT {self.version} {error}")
        return engine

    def context(self, engine: Any) -> Any:
        """Another execution context of `engine`. Raises DeviceError, mostly OutOfMemory."""
        self.words.clear()
        context = engine.create_execution_context()
        if context is None:
            raise self.words.failure("TensorRT makes no execution context")
        return context

    @contextmanager
    def owning(self, context: Any) -> Iterator[Any]:
        """Polygraphy's TrtRunner: owns the engine and `context` as long as the block lasts.

        Whoever drives the context must not call its `infer`.
        """
        from polygraphy.backend.trt import TrtRunner
        from polygraphy.exception import PolygraphyException

        try:
            owner = TrtRunner(context)
            owner.activate()
        except PolygraphyException as error:
            raise DeviceError(f"TrtRunner: {error}") from error
        try:
            yield owner
        finally:
            owner.deactivate()

    def tensors(self, engine: Any) -> tuple[IoTensor, ...]:
        """Inputs and outputs of an engine, in its order."""
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        return tuple(
            IoTensor(
                name=name,
                dtype=dtype_name(engine.get_tensor_dtype(name)),
                on_device=engine.get_tensor_location(name) == self.trt.TensorLocation.DEVICE,
            )
            for name in names
        )

    def capabilities(self) -> tuple[str, ...]:
        """What RTX builds for, as "8.9". Empty for TensorRT itself."""
        if not self.abilities.portable:
            return ()
        found = (
            re.fullmatch(r"SM(\d+)(\d)", name) for name in self.trt.ComputeCapability.__members__
        )
        return tuple(f"{match[1]}.{match[2]}" for match in found if match)

    def activation_bytes(self, engine: Any) -> int:
        """Device memory that one context takes for what lies between inputs and outputs."""
        if hasattr(engine, "device_memory_size_v2"):
            return int(engine.device_memory_size_v2)
        return int(engine.device_memory_size)


def refusal(words: Words, *, loaded: bool, anywhere: bool) -> EngineMismatch | OutOfMemory | None:
    """Why a plan that TensorRT has `loaded` or not is refused, by what it said; None: it is not.

    A plan of another model of GPU loads, with a warning that it may err or deadlock.
    """
    if not loaded:
        kind = OutOfMemory if out_of_memory(words.errors) else EngineMismatch
        return kind(f"does not load it: {words.errors}.")
    if words.foreign and not anywhere:
        return EngineMismatch(f"says that it is of another GPU: {words.foreign}")
    return None


@functools.cache
def door(runtime: str) -> Door:
    """The door to "tensorrt" or "tensorrt_rtx". One process has one of them: the first it opens.

    For "tensorrt", call `driver.claim` before: without a driver it kills the process. Raises
    MissingExtra where it is not installed, DeviceError where the other one was opened before.
    """
    rtx = runtime == "tensorrt_rtx"
    for package in (runtime, "polygraphy"):
        require(package, extra="rtx" if rtx else "gpu", purpose="building and running engines")
    os.environ[_SWITCH] = "1" if rtx else "0"
    for trap in _TRAPS:
        os.environ.pop(trap, None)
    import polygraphy.config

    if polygraphy.config.USE_TENSORRT_RTX is not rtx:
        raise DeviceError(f"{runtime}: this process has opened the other TensorRT before.")
    _quiet_polygraphy()
    from polygraphy.backend.trt import util

    trt, words = importlib.import_module(runtime), Words()
    # One logger per process: TensorRT keeps the first that it is given, whatever comes later.
    # Polygraphy's own would say each warning once.
    util.TRT_LOGGER = _logger(trt, words)
    return Door(trt, words, util.TRT_LOGGER)


def installed(runtime: str) -> str | None:
    """Version of "tensorrt" or "tensorrt_rtx" here, without loading it; None where it is not.

    Its wheels go by several names, and NVIDIA's own packages have none.
    """
    for name in _DISTRIBUTIONS[runtime]:
        with suppress(PackageNotFoundError):
            return version(name)
    spec = find_spec(runtime)
    if spec is None or spec.origin is None:
        return None
    match = re.search(r'__version__ = "([\d.]+)"', Path(spec.origin).read_text(encoding="utf-8"))
    return match[1] if match else None


def typed(runtime: str, version: str) -> bool:
    """Whether this release takes precisions from the graph alone: `not Abilities.weakly_typed`.

    Told without loading it, so that a parent may ask: RTX from the start, TensorRT from 11 on.
    """
    return runtime == "tensorrt_rtx" or int(version.partition(".")[0]) >= 11


def has_bfloat16(runtime: str, version: str) -> bool:
    """Whether this release computes in bfloat16, told without loading it."""
    return runtime == "tensorrt_rtx" or int(version.partition(".")[0]) >= 9


def permissions(precision: Precision, *, types: set[str], quantized: bool) -> dict[str, bool]:
    """Flags of a weakly typed builder, from the engine's precision and what the graph says.

    To TensorRT 8.6 and 10 the graph's types are a wish, and these flags the permission. The types
    of the parsed network alone were not enough: with them, 8.6 ran a half ResNet-50 at about the
    speed of TF32 (H200, batch 64: 18,074 items/s; permitted, 33,086).
    """
    wanted = {
        "int8": quantized,
        # What Q/DQ pairs leave out is computed in FP16: see Precision.INT8.
        "fp16": quantized or precision is Precision.FP16 or "float16" in types,
        "bf16": precision is Precision.BF16 or "bf16" in types,
    }
    return {name: True for name, is_wanted in wanted.items() if is_wanted}


def abilities(trt: Any) -> Abilities:
    """What the module `trt` has, by asking it."""
    return Abilities(
        weakly_typed=hasattr(trt.BuilderFlag, "FP16"),
        portable=hasattr(trt, "ComputeCapability"),
        progress=hasattr(trt, "IProgressMonitor"),
        # 8.6 has it off; later releases share in any case, and 11 refuses to be told.
        profile_sharing=hasattr(trt.PreviewFeature, "FASTER_DYNAMIC_SHAPES_0805"),
        same_capability=hasattr(trt.HardwareCompatibilityLevel, "SAME_COMPUTE_CAPABILITY"),
    )


def dtype_name(dtype: Any) -> str:
    """NumPy's name of TensorRT's data type; TensorRT's own where NumPy has none (bfloat16, …)."""
    name: str = dtype.name
    return _DTYPES.get(name, name.lower())


def _logger(trt: Any, words: Words) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc] # no types: see Door
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            words.hear(severity.name, text.strip())

    return Logger()


def _quiet_polygraphy() -> None:
    """Have Polygraphy log to `logging`, under our name; its own default is stdout."""
    from polygraphy.logger import G_LOGGER

    G_LOGGER.use_python_logging_system = True
    G_LOGGER.colors = False  # or it prints that it would like to have a package for them
    theirs = logging.getLogger("Polygraphy")
    theirs.propagate = False
    theirs.addHandler(_PassOn())


class _PassOn(logging.Handler):
    """Gives Polygraphy's records to our logger, below the level of warnings, as `Words` does."""

    def emit(self, record: logging.LogRecord) -> None:
        level = logging.INFO if record.levelno >= logging.WARNING else logging.DEBUG
        log.log(level, "Polygraphy: %s", record.getMessage())
