from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from trtfuse.core.errors import PoolError, ShapeMismatch
from trtfuse.core.flow import OpenRunner
from trtfuse.core.specs import Array
from trtfuse.pool.arrays import map_batches
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, Ring, created, lay_out
from trtfuse.testing import CrashingRunner, FailingRunner, FakeRunner


@contextmanager
def opened(runner: OpenRunner) -> Iterator[tuple[Pool, Ring]]:
    specs = FakeRunner(shape=(2,))
    plan = lay_out(
        [Largest(spec=specs.inputs[0], item=(2,))],
        [Largest(spec=specs.outputs[0], item=(2,))],
        batch=4,
        wanted=3,
        memory_bytes=1 << 20,
    )
    seats = [Seat(device=f"cpu:{n}", open_runner=runner) for n in range(2)]
    with created(plan) as ring, Pool(seats, ring) as pool:
        yield pool, ring


def run(batches: list[Array], runner: OpenRunner) -> Iterator[Array]:
    with opened(runner) as (pool, ring):
        for outputs in map_batches(pool, ring, ({"x": batch} for batch in batches)):
            yield outputs["y"]


def batches(count: int) -> list[Array]:
    """Batches of 1 to 4 items; no two values alike."""
    sizes = [1 + n % 4 for n in range(count)]
    ends = np.cumsum(sizes)
    values = np.arange(2 * ends[-1], dtype=np.float32).reshape(-1, 2)
    return list(np.split(values, ends[:-1]))


def test_outputs_come_in_the_order_of_the_batches_and_are_kept() -> None:
    given = batches(30)
    got = list(run(given, FakeRunner(shape=(2,))))
    assert [one.tolist() for one in got] == [(2 * one + 1).tolist() for one in given]


def test_a_batch_that_is_split_on_the_way_comes_back_whole(tmp_path: Path) -> None:
    given = batches(10)
    runner = CrashingRunner(shape=(2,), poison=float(given[7][2, 0]), marks=tmp_path, times=2)
    got = list(run(given, runner))
    assert [one.tolist() for one in got] == [(2 * one + 1).tolist() for one in given]


def test_a_batch_that_fails_is_an_error_that_names_it() -> None:
    given = batches(10)
    with pytest.raises(PoolError, match="batch 7: ValueError: met"):
        list(run(given, FailingRunner(shape=(2,), poison=float(given[7][0, 0]))))


def test_a_batch_larger_than_the_ring_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match=r"input 'x': got \(5, 2\)"):
        list(run([np.zeros((5, 2), np.float32)], FakeRunner(shape=(2,))))


def test_who_stops_early_leaves_no_answer_to_the_next() -> None:
    first, second = batches(8), [one + 1000 for one in batches(8)]
    with opened(FakeRunner(shape=(2,))) as (pool, ring):
        for _ in map_batches(pool, ring, ({"x": batch} for batch in first)):
            break
        got = [y["y"].tolist() for y in map_batches(pool, ring, ({"x": x} for x in second))]
    assert got == [(2 * one + 1).tolist() for one in second]
