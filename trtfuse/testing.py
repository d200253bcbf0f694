"""Public doubles for every seam of trtfuse: use them to test your own code around the pool.

They stand at our own protocols only, and `FakeRunner` passes the contract suite that the real
runners pass.

>>> import numpy as np
>>> runner = FakeRunner(shape=(2,))
>>> out = np.empty((1, 2), np.float32)
>>> timing = runner.launch({"x": np.ones((1, 2), np.float32)}, lambda name, shape: out).result()
>>> out.tolist()
[[3.0, 3.0]]
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trtfuse.core.errors import ItemError, OutOfMemory, ShapeMismatch
from trtfuse.core.flow import (
    Answer,
    ArrayFile,
    Attached,
    Claim,
    Entry,
    Geometry,
    Item,
    Json,
    Outcome,
    Pending,
    Picture,
    Runner,
    Timing,
)
from trtfuse.core.specs import BATCH, Array, Arrays, TensorSpec


@dataclass(frozen=True)
class FakePending:
    """A batch that is done already."""

    timing: Timing

    def result(self) -> Timing:
        """The timing given at launch."""
        return self.timing


@dataclass(frozen=True)
class FakeRunner:
    """y = 2 x + 1, on one float32 input `x` of (batch, *shape), batches up to `max_batch`.

    A size of 0 in `shape` means any size.
    """

    shape: tuple[int, ...] = (4,)
    max_batch: int = 8
    lanes: int = 1

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The input `x`."""
        return (self._spec("x"),)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The output `y`, shaped like `x`."""
        return (self._spec("y"),)

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Compute at once. Raises ShapeMismatch as the protocol says."""
        x = inputs["x"]
        if x.dtype != np.float32 or not self._takes(x.shape):
            raise ShapeMismatch(
                f"input 'x': got {x.dtype} {x.shape}, "
                f"needs float32 (1 to {self.max_batch}, {', '.join(map(str, self.shape))})."
            )
        started = time.perf_counter_ns()
        np.add(np.multiply(x, 2), 1, out=claim("y", x.shape))
        return FakePending(Timing(compute_ns=time.perf_counter_ns() - started))

    def _spec(self, name: str) -> TensorSpec:
        sizes = (size or f"size{axis}" for axis, size in enumerate(self.shape))
        return TensorSpec(name=name, dtype="float32", shape=(BATCH, *sizes))

    def _takes(self, shape: tuple[int, ...]) -> bool:
        return (
            len(shape) == len(self.shape) + 1
            and 0 < shape[0] <= self.max_batch
            and all(need in (0, got) for got, need in zip(shape[1:], self.shape, strict=True))
        )

    @contextmanager
    def __call__(self, device: str, ring: Array) -> Iterator[FakeRunner]:
        """Open itself: a FakeRunner is its own OpenRunner."""
        del device, ring
        yield self


@dataclass(frozen=True)
class SlowRunner(FakeRunner):
    """A FakeRunner whose every batch takes `seconds`, asleep: a device of fixed service time."""

    seconds: float = 0.01

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Sleep, then compute."""
        time.sleep(self.seconds)
        return super().launch(inputs, claim)


@dataclass(frozen=True)
class CrashingRunner(FakeRunner):
    """A FakeRunner whose process dies, by SIGKILL or by `exitcode`, when it meets `poison` in `x`.

    With `marks`, a folder, it dies at most `times` times over all workers: each death leaves a
    file there, so the next worker knows.
    """

    poison: float = -1.0
    marks: Path | None = None
    times: int = 1
    exitcode: int | None = None

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Die if the poison is there and the deaths are not used up; else compute."""
        if (inputs["x"] == self.poison).any() and self._may_die():
            self._die()
        return super().launch(inputs, claim)

    def _die(self) -> None:
        if self.exitcode is None:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(self.exitcode or 0)

    def _may_die(self) -> bool:
        if self.marks is None:
            return True
        if len(list(self.marks.iterdir())) >= self.times:
            return False
        (self.marks / str(os.getpid())).touch()
        return True


@dataclass(frozen=True)
class HangingRunner(CrashingRunner):
    """A CrashingRunner that, where that one dies, never comes back."""

    def _die(self) -> None:
        threading.Event().wait()


@dataclass(frozen=True)
class FailingRunner(FakeRunner):
    """A FakeRunner that raises ValueError when it meets `poison` in `x`."""

    poison: float = -1.0

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Raise if the poison is there; else compute."""
        if (inputs["x"] == self.poison).any():
            raise ValueError(f"met {self.poison}")
        return super().launch(inputs, claim)


@dataclass(frozen=True)
class CrampedRunner(FakeRunner):
    """A FakeRunner whose device has memory for `room` items, and no more."""

    room: int = 2

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Raise OutOfMemory for more; else compute."""
        if len(inputs["x"]) > self.room:
            raise OutOfMemory(f"cuMemAlloc: out of memory with {len(inputs['x'])} items")
        return super().launch(inputs, claim)


@dataclass(frozen=True)
class UnopenableRunner:
    """An OpenRunner that raises: a device that is not there."""

    message: str = "no such device"

    def __call__(self, device: str, ring: Array) -> AbstractContextManager[Runner]:
        """Raise RuntimeError."""
        del ring
        raise RuntimeError(f"{device}: {self.message}")


@dataclass(frozen=True)
class PixelCodec:
    """The pixels as they are: input and output are float32 (height, width, 3).

    The answer is the output's mean, and the output itself as an array.
    """

    def fit(self, height: int, width: int) -> Geometry:
        """The picture's own size."""
        size = (height, width)
        return Geometry(picture=size, input=size, scale_x=1, scale_y=1, left=0, top=0)

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """(height, width, 3)."""
        return (*geometry.input, 3)

    def encode(self, picture: Picture, geometry: Geometry, into: Array) -> None:
        """Copy."""
        into[:] = picture.pixels

    def decode(self, outputs: Arrays, geometry: Geometry) -> Answer:
        """Mean and copy of the only output. Raises ItemError where it is not finite."""
        (output,) = outputs.values()
        if not np.isfinite(output).all():
            raise ItemError("not finite")
        return Answer(fields={"mean": float(output.mean())}, file=ArrayFile(array=output.copy()))


@dataclass(frozen=True)
class ListSource:
    """Pictures from a list; an exception in the list is raised when its item is loaded."""

    pictures: Sequence[Picture | Exception]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.pictures)

    def __iter__(self) -> Iterator[Item]:
        for seq, picture in enumerate(self.pictures):
            yield Item(seq=seq, key=f"{seq:04d}", load=_loader(picture))


def _loader(picture: Picture | Exception) -> Callable[[], Picture]:
    def load() -> Picture:
        if isinstance(picture, Exception):
            raise picture
        return picture

    return load


@dataclass
class MemorySink:
    """Keeps answers by key and lines in order."""

    answers: dict[str, Answer] = field(default_factory=dict)
    lines: list[Json] = field(default_factory=list)

    def store(self, item: Item, attached: Attached, answer: Answer) -> Entry:
        """Keep the answer; the line is its key and fields."""
        self.answers[item.key] = answer
        return Entry(line={"key": item.key, **answer.fields})

    def commit(self, outcome: Outcome) -> Outcome:
        """Keep the line of what did not fail."""
        if isinstance(outcome.entry, Entry):
            self.lines.append(outcome.entry.line)
        return outcome
