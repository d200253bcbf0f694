"""TensorRT's calibrator, for `gpu_calibrator.py`: given inputs, or a cache alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_engines import DEVICE

from trtfuse.core.specs import Array, EngineManifest, Precision
from trtfuse.gpu import builder, driver
from trtfuse.gpu.tensorrt import Door, door

# Of all the engines' builds, beside the plans: what one timed, the next need not, and all choose
# among kernels by the same times.
TIMINGS = "timings"


def implicit(
    manifest: EngineManifest, plan: Path, feed: Array, given: Path | None, kept: Path | None
) -> dict[str, Any]:
    """In a child: build the FP32 graph in INT8 and FP16, with the ranges of a calibrator.

    It calibrates on `feed`, batches of (n, 3, 224, 224), or hands on the cache `given`; what
    TensorRT found goes to `kept`. What it asked for and said is returned.
    """
    gpu = driver.claim(DEVICE)
    trt, heard = door("tensorrt"), Heard()
    timings = plan.parent / TIMINGS / builder.timing_file(trt.version, gpu)
    from trtfuse.gpu import cuda

    with cuda.context():
        # A frame of its own: what it holds is gone before the context is.
        hand = _built(trt, manifest, plan, timings, (feed, given, kept))
    return {**hand, "missing_scales": heard.missing, "said": heard.lines[:12]}


class Heard(logging.Handler):
    """What TensorRT says in this process, but for the lines that name a tensor without a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.missing = 0
        log = logging.getLogger("trtfuse.gpu.words")
        log.setLevel(logging.INFO)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count it, or keep it."""
        if "Missing scale" in record.getMessage():
            self.missing += 1
        else:
            self.lines.append(record.getMessage())


def _built(
    trt: Door,
    manifest: EngineManifest,
    plan: Path,
    timings: Path,
    data: tuple[Array, Path | None, Path | None],
) -> dict[str, Any]:
    from trtfuse.gpu.network import Network

    feed, given, kept = data
    hand = _calibrator(trt.trt, iter(feed), given, kept)

    class Calibrated(Network):
        """As the product configures it, with what takes ranges from a calibrator."""

        def _configure(self, *args: Any) -> Any:
            config = super()._configure(*args)
            for flag in (trt.trt.BuilderFlag.INT8, trt.trt.BuilderFlag.FP16):
                config.set_flag(flag)
            config.int8_calibrator = hand
            return config

    settings = manifest.request.settings
    assert settings is not None
    network = Calibrated(trt, manifest.source)
    profile = manifest.request.profile
    try:
        plan.write_bytes(network.build(profile, Precision.INT8, settings, timings=timings))
    finally:
        hand.close()
    return {"batches_asked_for": hand.asked, "cache_asked_for": hand.read}


def _calibrator(trt: Any, feed: Iterator[Array], given: Path | None, kept: Path | None) -> Any:
    from trtfuse.gpu import cuda

    class Calibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc] # no types: see Door
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)
            self.asked = self.read = 0
            self.stream = cuda.Stream()
            self.buffer: cuda.Buffer | None = None

        def get_batch_size(self) -> int:
            return 1  # of networks without an explicit batch alone

        def get_batch(self, names: list[str]) -> list[int] | None:
            self.asked += 1
            batch = next(feed, None)
            if batch is None or names != ["x"]:
                return None
            self.buffer = self.buffer or cuda.Buffer(batch.nbytes)
            self.stream.copy_in(self.buffer, batch)
            self.stream.synchronize()
            return [self.buffer.address]

        def read_calibration_cache(self) -> bytes | None:
            self.read += 1
            return given.read_bytes() if given else None

        def write_calibration_cache(self, cache: Any) -> None:
            if kept:
                kept.write_bytes(bytes(cache))

        def close(self) -> None:
            if self.buffer:
                self.buffer.close()

    return Calibrator()
