"""The pool with real processes: answers, deaths, errors, and what is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from trtfuse.core.errors import PoolError, StartFailed, WorkersLost
from trtfuse.core.flow import Claim, Failure, OpenRunner, Pending, Result, Task, Timing
from trtfuse.core.specs import Array, Arrays
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, Ring, created, lay_out
from trtfuse.testing import (
    CrampedRunner,
    CrashingRunner,
    FailingRunner,
    FakeRunner,
    HangingRunner,
    SlowRunner,
    UnopenableRunner,
)

BATCH = 4


@pytest.fixture
def ring() -> Iterator[Ring]:
    runner = FakeRunner(shape=(2,))
    plan = lay_out(
        [Largest(spec=runner.inputs[0], item=(2,))],
        [Largest(spec=runner.outputs[0], item=(2,))],
        batch=BATCH,
        wanted=16,
        memory_bytes=1 << 20,
    )
    with created(plan) as ring:
        for slot in range(plan.slots):
            ring.set_input_shape(slot, "x", (2,))
            # Item n of slot s holds 10 s + n, so that a mixed-up row shows.
            for n in range(BATCH):
                ring.inputs(slot, n, 1)["x"][:] = 10 * slot + n
        yield ring


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with _no_child_left():
        yield


@contextmanager
def _no_child_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children()}
    yield
    left = [c for c in psutil.Process().children() if c.pid not in before]
    assert [c for c in left if "resource_tracker" not in " ".join(c.cmdline())] == []


def seats(open_runner: OpenRunner, workers: int) -> list[Seat]:
    return [Seat(device=f"cpu:{n}", open_runner=open_runner) for n in range(workers)]


def answers(pool: Pool, ring: Ring, batches: int) -> dict[tuple[int, int], float | Failure]:
    """Every item of `batches` submitted batches: its output, or the failure."""
    for seq in range(batches):
        pool.submit(Task(seq=seq, slot=seq, count=BATCH))
    found: dict[tuple[int, int], float | Failure] = {}
    while len(found) < batches * BATCH:
        result = pool.results.get()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, Result)
        task = result.task
        outputs = ring.outputs(task.slot, task.start, task.count)["y"]
        for n in range(task.count):
            key = (task.seq, task.start + n)
            assert key not in found
            done = isinstance(result.outcome, Timing)
            found[key] = float(outputs[n, 0]) if done else result.outcome  # type: ignore[assignment]
    return found


def right(batches: int) -> dict[tuple[int, int], float]:
    return {(s, n): 2.0 * (10 * s + n) + 1 for s in range(batches) for n in range(BATCH)}


def test_every_batch_is_answered_with_its_own_outputs(ring: Ring) -> None:
    with Pool(seats(FakeRunner(shape=(2,)), 2), ring) as pool:
        assert answers(pool, ring, 16) == right(16)
    assert sum(record.batches.count for record in pool.records) == 16
    assert sum(record.items for record in pool.records) == 16 * BATCH
    assert all(record.peak_bytes > 1 << 20 for record in pool.records)


def test_a_worker_killed_in_mid_batch_costs_nothing(ring: Ring, tmp_path: Path) -> None:
    runner = CrashingRunner(shape=(2,), poison=51.0, marks=tmp_path)
    with Pool(seats(runner, 2), ring) as pool:
        assert answers(pool, ring, 16) == right(16)
    deaths = [death for record in pool.records for death in record.deaths]
    assert len(deaths) == 1
    assert "was killed by SIGKILL" in deaths[0]


def test_the_only_worker_killed_three_times_on_one_batch_costs_nothing(
    ring: Ring, tmp_path: Path
) -> None:
    runner = CrashingRunner(shape=(2,), poison=51.0, marks=tmp_path, times=3, exitcode=3)
    with Pool(seats(runner, 1), ring) as pool:
        assert answers(pool, ring, 8) == right(8)
    assert ["exited with code 3" in death for death in pool.records[0].deaths] == [True] * 3


def test_an_idle_worker_killed_from_outside_is_replaced(ring: Ring) -> None:
    with Pool(seats(FakeRunner(shape=(2,)), 1), ring) as pool:
        answers(pool, ring, 2)
        (worker,) = [
            child
            for child in psutil.Process().children()
            if "spawn_main" in " ".join(child.cmdline())
        ]
        os.kill(worker.pid, signal.SIGKILL)
        assert answers(pool, ring, 4) == right(4)


def test_an_item_that_kills_every_worker_is_the_only_failure(ring: Ring) -> None:
    with Pool(seats(CrashingRunner(shape=(2,), poison=32.0), 2), ring) as pool:
        found = answers(pool, ring, 8)
    failed = found.pop((3, 2))
    assert isinstance(failed, Failure)
    assert failed.kind == "WorkerDied"
    assert found == {key: value for key, value in right(8).items() if key != (3, 2)}


def test_a_worker_that_hangs_is_ended_and_its_batch_is_done_again(
    ring: Ring, tmp_path: Path
) -> None:
    runner = HangingRunner(shape=(2,), poison=51.0, marks=tmp_path)
    with Pool(seats(runner, 2), ring, batch_s=0.5) as pool:
        assert answers(pool, ring, 16) == right(16)
    deaths = [death for record in pool.records for death in record.deaths]
    assert len(deaths) == 1
    assert "gave no answer for 0.5 s and was ended" in deaths[0]


def test_an_item_that_hangs_every_worker_is_the_only_failure(ring: Ring) -> None:
    with Pool(seats(HangingRunner(shape=(2,), poison=32.0), 2), ring, batch_s=0.5) as pool:
        found = answers(pool, ring, 8)
    failed = found.pop((3, 2))
    assert isinstance(failed, Failure)
    assert "gave no answer for 0.5 s" in failed.message
    assert found == {key: value for key, value in right(8).items() if key != (3, 2)}


def test_a_worker_that_is_stopped_from_outside_is_ended_and_replaced(ring: Ring) -> None:
    with Pool(seats(FakeRunner(shape=(2,)), 1), ring, batch_s=0.5) as pool:
        answers(pool, ring, 2)
        (worker,) = [
            child
            for child in psutil.Process().children()
            if "spawn_main" in " ".join(child.cmdline())
        ]
        os.kill(worker.pid, signal.SIGSTOP)
        assert answers(pool, ring, 4) == right(4)
    assert "gave no answer" in pool.records[0].deaths[0]


@dataclass(frozen=True)
class StuckAtSecondStart(FakeRunner):
    """Opens once, is killed with its first batch, and never gets ready the second time."""

    marks: Path = Path()

    @contextmanager
    def __call__(self, device: str, ring: Array) -> Iterator[FakeRunner]:
        starts = len(list(self.marks.iterdir()))
        (self.marks / str(os.getpid())).touch()
        if starts == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        yield self

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        if len(list(self.marks.iterdir())) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().launch(inputs, claim)


def test_a_worker_that_hangs_while_it_is_started_again_is_ended_and_replaced(
    ring: Ring, tmp_path: Path
) -> None:
    with Pool(seats(StuckAtSecondStart(shape=(2,), marks=tmp_path), 1), ring, start_s=8.0) as pool:
        assert answers(pool, ring, 4) == right(4)
    first, second = pool.records[0].deaths
    assert "was killed by SIGKILL" in first
    assert second == "worker 0 (cpu:0) was not ready after 8 s and was ended"


@dataclass(frozen=True)
class Starving(FakeRunner):
    """Asks for more memory than there is, when it meets 32."""

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        if (inputs["x"] == 32.0).any():
            np.ones(1 << 60, np.uint8)
        return super().launch(inputs, claim)


def test_an_item_too_large_for_its_workers_memory_is_the_only_failure(ring: Ring) -> None:
    with Pool(seats(Starving(shape=(2,)), 1), ring) as pool:
        found = answers(pool, ring, 8)
    failed = found.pop((3, 2))
    assert isinstance(failed, Failure)
    assert "MemoryError" in failed.kind
    assert found == {key: value for key, value in right(8).items() if key != (3, 2)}


def test_an_item_that_raises_is_the_only_failure_and_kills_nobody(ring: Ring) -> None:
    with Pool(seats(FailingRunner(shape=(2,), poison=32.0), 1), ring) as pool:
        found = answers(pool, ring, 8)
    failed = found.pop((3, 2))
    assert isinstance(failed, Failure)
    assert (failed.kind, failed.message) == ("ValueError", "met 32.0")
    assert "in launch" in failed.traceback
    assert found == {key: value for key, value in right(8).items() if key != (3, 2)}
    assert pool.records[0].deaths == []


def test_a_device_with_too_little_memory_gets_smaller_batches(
    ring: Ring, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(seats(CrampedRunner(shape=(2,), room=1), 1), ring) as pool:
        assert answers(pool, ring, 8) == right(8)
    assert pool.records[0].most_items == 1
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"worker 0 (cpu:0) ran out of memory: it gets {items} items at most" for items in (2, 1)
    ]


def test_when_every_restart_is_used_up_the_run_ends_with_the_deaths_named(ring: Ring) -> None:
    runner = CrashingRunner(shape=(2,), poison=0.0)
    with (
        Pool(seats(runner, 1), ring, restarts=1) as pool,
        pytest.raises(WorkersLost, match=r"all 1 restarts are used up.*SIGKILL"),
    ):
        answers(pool, ring, 4)


def test_a_runner_that_cannot_open_is_an_error_at_start_with_its_own_words(ring: Ring) -> None:
    with (
        pytest.raises(StartFailed, match=r"worker (\d) \(cpu:\1\): RuntimeError: cpu:\1: no such"),
        Pool(seats(UnopenableRunner(), 2), ring),
    ):
        pass


def test_workers_that_are_not_ready_in_time_are_an_error_and_are_ended(ring: Ring) -> None:
    with (
        pytest.raises(PoolError, match=r"not ready after 0 s: worker 0 \(cpu:0\)"),
        Pool(seats(FakeRunner(), 1), ring, start_s=0.0),
    ):
        pass


def test_leaving_with_an_error_does_not_wait_for_batches_under_way(ring: Ring) -> None:
    def interrupted() -> None:
        with Pool(seats(SlowRunner(shape=(2,), seconds=600), 1), ring) as pool:
            pool.submit(Task(seq=0, slot=0, count=1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
