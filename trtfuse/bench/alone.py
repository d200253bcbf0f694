"""One process, one thread, one batch after another: the runner without the pool, and its rivals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtfuse.core.flow import OpenRunner
from trtfuse.core.specs import Array, Arrays, EngineManifest
from trtfuse.pool.slots import Layout, Ring

Loop = Callable[[Arrays], dict[str, Array]]
"""Inputs by name to outputs by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How long to run: at least so many batches of `batch` items, and at least `seconds`."""

    batch: int
    seconds: float
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Nanoseconds of each batch, one after another."""

    wall: tuple[int, ...]
    """From handing it over until its outputs can be read."""
    compute: tuple[int, ...] = ()
    """Of those, by the device's own clock, without copies; empty where it has none."""
    answers: Arrays | None = None
    """Outputs of the last batch, where one turn was a single batch."""


Turns = Callable[[Turn], Times]


@contextmanager
def ours(opener: OpenRunner, device: str, layout: Layout, inputs: Arrays) -> Iterator[Turns]:
    """The runner of an engine, its inputs where a pool's would be: in a ring, pinned if it can."""
    ring = Ring(layout, "", np.zeros(layout.total_bytes, np.uint8))
    for name, array in inputs.items():
        ring.set_input_shape(0, name, array.shape[1:])
        ring.inputs(0, 0, len(array))[name][:] = array
    with opener(device, ring.memory) as runner:

        def turns(turn: Turn) -> Times:
            given = ring.inputs(0, 0, turn.batch)
            claim = ring.claim(0, 0)
            compute: list[int] = []

            def one() -> None:
                compute.append(runner.launch(given, claim).result().compute_ns)

            wall = _timed(one, turn)
            outputs = ring.outputs(0, 0, turn.batch)
            copies = {name: array.copy() for name, array in outputs.items()}
            return Times(wall=wall, compute=tuple(compute), answers=_single(turn, copies))

        yield turns


@contextmanager
def theirs(opens: Callable[[], AbstractContextManager[Loop]], inputs: Arrays) -> Iterator[Turns]:
    """A loop over something else, on the same inputs."""
    with opens() as loop:

        def turns(turn: Turn) -> Times:
            given = {name: array[: turn.batch] for name, array in inputs.items()}
            answers: dict[str, Array] = {}

            def one() -> None:
                answers.update(loop(given))

            return Times(wall=_timed(one, turn), answers=_single(turn, answers))

        yield turns


@dataclass(frozen=True, slots=True)
class OpenOrt:
    """Opens a plain ONNX Runtime loop."""

    model: Path

    def __call__(self) -> AbstractContextManager[Loop]:
        """On the CPU."""
        from trtfuse.cpu.plain import plain

        return plain(self.model)


@dataclass(frozen=True, slots=True)
class OpenPytorch:
    """Opens a module in eager mode, on the device of the engine."""

    factory: str
    manifest: EngineManifest
    device: str

    def __call__(self) -> AbstractContextManager[Loop]:
        """On its device, which is this process's from then on."""
        if on_gpu := self.device.startswith("cuda"):
            from trtfuse.gpu import driver

            driver.claim(self.device)
        from trtfuse.graph.eager import eager

        names = ([one.name for one in of] for of in (self.manifest.inputs, self.manifest.outputs))
        return eager(self.factory, *names, on_gpu=on_gpu)


def _timed(one: Callable[[], None], turn: Turn) -> tuple[int, ...]:
    times: list[int] = []
    end = time.perf_counter_ns() + round(turn.seconds * 1e9)
    before = time.perf_counter_ns()
    while before < end or len(times) < turn.least:
        one()
        now = time.perf_counter_ns()
        times.append(now - before)
        before = now
    return tuple(times)


def _single(turn: Turn, answers: Arrays) -> Arrays | None:
    return answers if turn.seconds == 0 and turn.least == 1 else None
