"""Runs an engine of ONNX Runtime on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtfuse.core.errors import DeviceError
from trtfuse.core.flow import Claim, Pending, Timing
from trtfuse.core.inputs import check, filled, fixed_batch
from trtfuse.core.specs import Array, Arrays, EngineManifest, TensorSpec
from trtfuse.cpu import session


@dataclass(frozen=True, slots=True)
class Done:
    """A batch whose outputs are written already."""

    timing: Timing

    def result(self) -> Timing:
        """The timing of the batch."""
        return self.timing


class OrtRunner:
    """An ONNX Runtime session behind the `Runner` protocol: `launch` computes before it returns.

    Outputs are copied out of the session's arena. Binding claimed memory instead saved nothing that
    could be measured on CenterFace and on six 3x3 convolutions, 4 % on three of them, and needs a
    second path where an output's shape depends on values: not worth it.
    """

    lanes = 1

    def __init__(self, loaded: Any, manifest: EngineManifest) -> None:
        self._session = loaded
        self._manifest = manifest
        self._names = [tensor.name for tensor in manifest.outputs]
        self._batch = fixed_batch(manifest.inputs)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What `launch` takes."""
        return self._manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What `launch` claims memory for."""
        return self._manifest.outputs

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Compute one batch into claimed memory. One that a fixed batch has room in is filled up.

        Raises ShapeMismatch as the protocol says, DeviceError with ONNX Runtime's message.
        """
        check(inputs, self._manifest)
        count = len(inputs[self._manifest.inputs[0].name])
        whole = filled(inputs, self._batch)
        started = time.perf_counter_ns()
        with session.translating(DeviceError, f"{self._manifest.model}: ONNX Runtime failed"):
            arrays = self._session.run(self._names, whole)
        computed = time.perf_counter_ns()
        for name, array in zip(self._names, arrays, strict=True):
            np.copyto(claim(name, (count, *array.shape[1:])), array[:count])
        copied = time.perf_counter_ns()
        return Done(Timing(compute_ns=computed - started, copy_out_ns=copied - computed))


@dataclass(frozen=True, slots=True)
class OpenOrt:
    """Opens an `OrtRunner` in a worker: an `OpenRunner`."""

    engine: Path
    manifest: EngineManifest
    threads: int

    @contextmanager
    def __call__(self, device: str, ring: Array) -> Iterator[OrtRunner]:
        """Load the engine and run it once. Raises DeviceError with ONNX Runtime's message."""
        del ring  # host memory is the device's memory: nothing to pin
        with session.translating(DeviceError, f"{device}: cannot run {self.engine}"):
            loaded = session.load(self.engine, session.serving(self.threads))
            loaded.run(None, _smallest(self.manifest))
        yield OrtRunner(loaded, self.manifest)


def _smallest(manifest: EngineManifest) -> dict[str, Array]:
    """Zeros in the smallest shapes that the profile takes."""
    return {
        tensor.name: np.zeros(manifest.profile[tensor.name].min, tensor.dtype)
        for tensor in manifest.inputs
    }
