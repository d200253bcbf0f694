"""Batches in flight on the GPU, a lane each.

    lane 0   copy in ─► compute ─► copy out      copy in ─► compute ─► copy out
    lane 1              copy in ─► compute ─► copy out      copy in ─► compute ─► copy out

A lane does one thing after the other on its own stream; lanes overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtfuse.core.errors import DeviceError
from trtfuse.core.flow import Claim, Pending, Timing
from trtfuse.core.inputs import check
from trtfuse.core.specs import Array, Arrays, EngineManifest, TensorSpec
from trtfuse.gpu import cuda
from trtfuse.gpu.words import Words

Shapes = Mapping[str, tuple[int, ...]]

# Batches of one shape in a row before the work of one is recorded as a graph. A graph holds for one
# shape, and TensorRT has to have run it: pictures of ever new sizes never pay for one.
_SETTLED = 2


class Lane:
    """An execution context with a stream, device buffers and events of its own.

    Takes one batch at a time: `launch`, then `finish`. Buffers have the sizes of the profile's
    largest shapes. A batch smaller than the profile's smallest is filled up with whatever the
    buffer holds; what comes of it is not copied out.
    """

    def __init__(
        self,
        context: Any,
        manifest: EngineManifest,
        ring: cuda.Pinned,
        words: Words,
        *,
        cuda_graph: bool,
    ) -> None:
        self._stack = ExitStack()
        self._context = context
        self._manifest = manifest
        self._ring = ring
        self._words = words
        self._cuda_graph = cuda_graph
        self._stream = cuda.Stream()
        self._begun, self._copied_in, self._computed, self._done = (cuda.Event() for _ in range(4))
        self._buffers: dict[str, cuda.Buffer] = {}
        self._staging: dict[str, cuda.Staging] = {}
        self._shapes: Shapes = {}
        self._runs = 0
        self._graph: cuda.Graph | None = None
        self._back: list[tuple[Array, Array]] = []

    def open(self) -> None:
        """Allocate, and run once at the largest shapes and once at the best ones.

        Raises DeviceError where TensorRT or CUDA refuses.
        """
        if not self._context.set_optimization_profile_async(0, self._stream.handle):
            raise DeviceError("TensorRT gives the profile to one lane alone: use --lanes 1.")
        profile = self._manifest.profile
        largest = {name: shapes.max for name, shapes in profile.items()}
        self._set_shapes(largest)
        for tensor in (*self._manifest.inputs, *self._manifest.outputs):
            nbytes = tensor.bytes_for(self._shape(tensor.name))
            buffer = self._buffers[tensor.name] = cuda.Buffer(nbytes)
            self._stack.callback(buffer.close)
            if not self._context.set_tensor_address(tensor.name, buffer.address):
                raise DeviceError(f"TensorRT does not take memory for {tensor.name!r}.")
        for shapes in (largest, {name: shapes.opt for name, shapes in profile.items()}):
            self._set_shapes(shapes)
            self._enqueue()
            self._stream.synchronize()

    def close(self) -> None:
        """Wait for what is under way and give all back, whoever still holds the lane."""
        try:
            with self._stack:
                self._stream.synchronize()
                self._drop_graph()
                for staging in self._staging.values():
                    self._stack.callback(staging.close)
        finally:
            # Contexts, streams and events have no other end than their last reference's.
            vars(self).clear()

    @property
    def buffer_bytes(self) -> int:
        """Device memory of its inputs and outputs."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @property
    def has_graph(self) -> bool:
        """Whether the work of the present shape is recorded."""
        return self._graph is not None

    def launch(self, inputs: Arrays, claim: Claim) -> None:
        """Start one batch of checked inputs. Arrays and claimed memory must stay until `finish`."""
        count = len(inputs[self._manifest.inputs[0].name])
        self._set_shapes(
            {
                name: (max(count, accepted.min[0]), *inputs[name].shape[1:])
                for name, accepted in self._manifest.profile.items()
            }
        )
        outputs = {
            tensor.name: claim(tensor.name, (count, *self._output_shape(tensor)[1:]))
            for tensor in self._manifest.outputs
        }
        self._stream.record(self._begun)
        for name in self._manifest.profile:
            self._copy_in(name, inputs[name])
        self._stream.record(self._copied_in)
        self._enqueue()
        self._stream.record(self._computed)
        for name, array in outputs.items():
            self._copy_out(name, array)
        self._stream.record(self._done)

    def finish(self) -> Timing:
        """Wait until the batch's outputs are in their memory."""
        # Forgotten even where waiting fails: the next batch's outputs are elsewhere.
        back, self._back = self._back, []
        self._done.synchronize()
        for array, staged in back:
            np.copyto(array, staged)
        return Timing(
            copy_in_ns=self._copied_in.ns_since(self._begun),
            compute_ns=self._computed.ns_since(self._copied_in),
            copy_out_ns=self._done.ns_since(self._computed),
        )

    def abandon(self) -> None:
        """After an error in `launch`: wait until nothing of the batch is under way any more."""
        self._back.clear()
        self._stream.synchronize()

    def _copy_in(self, name: str, array: Array) -> None:
        if not self._ring.holds(array):
            staged = self._staged(name, array)
            np.copyto(staged, array)
            array = staged
        self._stream.copy_in(self._buffers[name], array)

    def _copy_out(self, name: str, array: Array) -> None:
        if not self._ring.holds(array):
            staged = self._staged(name, array)
            self._back.append((array, staged))
            array = staged
        self._stream.copy_out(array, self._buffers[name])

    def _staged(self, name: str, array: Array) -> Array:
        """Pinned memory of the lane's own, shaped like `array`, which the device cannot reach.

        A copy from or to plain memory would make the host wait for the device.
        """
        if name not in self._staging:
            self._staging[name] = cuda.Staging(self._buffers[name].nbytes)
        return self._staging[name].view(array.dtype.name, array.shape)

    def _set_shapes(self, shapes: Shapes) -> None:
        if shapes == self._shapes:
            return
        self._drop_graph()
        self._runs = 0
        self._shapes = {}  # unknown, until all are set
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise DeviceError(f"TensorRT refuses the shape {shape} for input {name!r}.")
        self._shapes = shapes

    def _shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor at the present input shapes. Raises DeviceError where it is open."""
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise DeviceError(
                f"output {name!r}: its shape {shape} depends on values; trtfuse runs engines whose "
                f"shapes follow from their inputs' shapes."
            )
        return shape

    def _output_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        """Raises DeviceError where the output would not fit its buffer."""
        shape = self._shape(tensor.name)
        if tensor.bytes_for(shape) > self._buffers[tensor.name].nbytes:
            raise DeviceError(
                f"output {tensor.name!r}: {shape} is larger than at the profile's largest inputs."
            )
        return shape

    def _enqueue(self) -> None:
        """Start to compute: as a graph once the shape has settled."""
        if self._cuda_graph and self._graph is None and self._runs >= _SETTLED:
            self._graph = cuda.capture(self._stream, self._execute)
            self._cuda_graph = self._graph is not None
        if self._graph is not None:
            self._graph.launch(self._stream)
        elif not self._execute():
            raise self._words.failure("TensorRT could not start the batch")
        self._runs += 1

    def _execute(self) -> bool:
        return bool(self._context.execute_async_v3(self._stream.handle))

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None


class GpuRunner:
    """A loaded engine behind the `Runner` protocol. Each lane has one batch under way."""

    def __init__(
        self, manifest: EngineManifest, lanes: list[Lane], what: str, lane_bytes: int
    ) -> None:
        self._manifest = manifest
        self._free = deque(lanes)
        self._what = what
        self.lanes = len(lanes)
        self.lane_bytes = lane_bytes
        """Device memory that one lane takes, the engine's weights apart."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What `launch` takes."""
        return self._manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What `launch` claims memory for."""
        return self._manifest.outputs

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Start one batch on a free lane.

        Raises ShapeMismatch as the protocol says; DeviceError with the call and its status,
        OutOfMemory among them; DeviceLost where the process has to end.
        """
        check(inputs, self._manifest)
        if not self._free:
            raise DeviceError(f"{self._what}: all {self.lanes} lanes have a batch under way.")
        lane = self._free.popleft()
        try:
            with cuda.translating(self._what):
                lane.launch(inputs, claim)
        except BaseException:
            with cuda.translating(self._what):
                lane.abandon()
            self._free.append(lane)
            raise
        return Batch(lane, self._free, self._what)

    @property
    def graphs(self) -> int:
        """How many free lanes have the work of their last shape recorded."""
        return sum(lane.has_graph for lane in self._free)

    def forget(self) -> None:
        """Let go of the lanes: they are about to be closed."""
        self._free.clear()


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch under way; its lane is free again after `result`."""

    _lane: Lane
    _free: deque[Lane]
    _what: str

    def result(self) -> Timing:
        """Wait for it. Raises DeviceError, OutOfMemory, DeviceLost."""
        try:
            with cuda.translating(self._what):
                return self._lane.finish()
        finally:
            self._free.append(self._lane)
