"""Feeders and writers around a real pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import (
    Answer,
    Attached,
    Entry,
    Failure,
    Item,
    Json,
    OpenRunner,
    Outcome,
    Picture,
)
from trtfuse.core.times import StageTimes
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, Layout, created, lay_out
from trtfuse.pool.stream import Stream, Threads
from trtfuse.testing import (
    CrashingRunner,
    FailingRunner,
    FakeRunner,
    ListSource,
    MemorySink,
    PixelCodec,
    SlowRunner,
)

LARGEST = (8, 8, 3)
ANY = (0, 0, 3)


def picture(value: int, height: int = 4, width: int = 4) -> Picture:
    return Picture(np.full((height, width, 3), value, np.uint8))


def line(outcome: Outcome) -> Json | Failure:
    return outcome.entry.line if isinstance(outcome.entry, Entry) else outcome.entry


def layout() -> Layout:
    """Five slots of three pictures of up to 8 x 8."""
    specs = FakeRunner(shape=ANY)
    return lay_out(
        [Largest(spec=specs.inputs[0], item=LARGEST)],
        [Largest(spec=specs.outputs[0], item=LARGEST)],
        batch=3,
        wanted=5,
        memory_bytes=1 << 20,
    )


def run(
    pictures: list[Picture | Exception],
    sink: MemorySink,
    *,
    runner: OpenRunner = FakeRunner(shape=ANY),  # noqa: B008 - frozen
    workers: int = 2,
) -> Iterator[Outcome]:
    plan = layout()
    seats = [Seat(device=f"cpu:{n}", open_runner=runner) for n in range(workers)]
    with (
        created(plan) as ring,
        Pool(seats, ring) as pool,
        Stream(ListSource(pictures), PixelCodec(), sink, pool, ring) as stream,
    ):
        yield from stream.run(Threads(feeders=2, writers=2))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_every_item_comes_out_once_in_order_with_its_own_answer(count: int) -> None:
    sink = MemorySink()
    outcomes = list(run([picture(n) for n in range(count)], sink))
    assert [line(outcome) for outcome in outcomes] == [
        {"key": f"{n:04d}", "mean": 2.0 * n + 1} for n in range(count)
    ]
    assert len(sink.answers) == count


def test_pictures_of_many_sizes_keep_their_order_and_their_pixels() -> None:
    sizes = [(1 + n % 3, 1 + n % 5) for n in range(40)]
    sink = MemorySink()
    outcomes = list(run([picture(n, *size) for n, size in enumerate(sizes)], sink))
    assert [outcome.item.seq for outcome in outcomes] == list(range(40))
    for n, size in enumerate(sizes):
        file = sink.answers[f"{n:04d}"].file
        assert file is not None
        assert file.array.tolist() == np.full((*size, 3), 2.0 * n + 1).tolist()  # type: ignore[union-attr]


def test_what_cannot_be_read_is_a_failure_in_its_place_and_the_rest_goes_on() -> None:
    pictures: list[Picture | Exception] = [picture(n) for n in range(10)]
    pictures[0] = ItemError("cut short")
    pictures[4] = ItemError("not a picture")
    lines = [line(outcome) for outcome in run(pictures, MemorySink())]
    assert [n for n, one in enumerate(lines) if isinstance(one, Failure)] == [0, 4]
    failed = lines[4]
    assert isinstance(failed, Failure)
    assert (failed.kind, failed.message) == ("ItemError", "not a picture")


def test_a_picture_larger_than_the_profile_is_a_failure_that_names_the_flag() -> None:
    lines = [line(o) for o in run([picture(1), picture(2, 9, 8)], MemorySink())]
    assert isinstance(lines[1], Failure)
    assert "larger --size" in lines[1].message


def test_an_output_that_makes_no_sense_is_a_failure() -> None:
    class Infinite(PixelCodec):
        def encode(self, picture: Picture, geometry: object, into: object) -> None:
            into[:] = np.where(picture.pixels == 3, np.inf, picture.pixels)  # type: ignore[index]

    sink = MemorySink()
    specs = FakeRunner(shape=ANY)
    plan = layout()
    with (
        created(plan) as ring,
        Pool([Seat(device="cpu:0", open_runner=specs)], ring) as pool,
        Stream(ListSource([picture(n) for n in range(5)]), Infinite(), sink, pool, ring) as stream,
    ):
        lines = [line(o) for o in stream.run(Threads(feeders=1, writers=1))]
    assert [n for n, one in enumerate(lines) if isinstance(one, Failure)] == [3]


def test_an_item_that_fails_in_the_runner_fails_alone() -> None:
    runner = FailingRunner(shape=ANY, poison=7.0)
    lines = [line(o) for o in run([picture(n) for n in range(12)], MemorySink(), runner=runner)]
    assert [n for n, one in enumerate(lines) if isinstance(one, Failure)] == [7]


def test_deaths_on_the_way_change_nothing(tmp_path: Path) -> None:
    quiet = MemorySink()
    list(run([picture(n) for n in range(60)], quiet))
    runner = CrashingRunner(shape=ANY, poison=20.0, marks=tmp_path, times=3)
    shaken = MemorySink()
    outcomes = list(run([picture(n) for n in range(60)], shaken, runner=runner))
    assert len(list(tmp_path.iterdir())) == 3
    assert [line(o) for o in outcomes] == [
        {"key": key, **quiet.answers[key].fields} for key in sorted(quiet.answers)
    ]


def test_a_fault_of_the_sink_ends_the_run_with_that_error() -> None:
    class Broken(MemorySink):
        def store(self, item: Item, attached: Attached, answer: Answer) -> Entry:
            raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        list(run([picture(n) for n in range(20)], Broken()))


def test_whoever_stops_listening_stops_the_threads_and_the_pool() -> None:
    outcomes = run([picture(n % 250) for n in range(500)], MemorySink())
    assert next(outcomes).item.seq == 0
    outcomes.close()  # type: ignore[attr-defined]


def test_a_slow_sink_stops_the_feeders_before_the_frames_fill_the_memory() -> None:
    held = 0
    most = 0
    lock = threading.Lock()

    class Frames(ListSource):
        """Items that say what they hold, as frames of a clip do."""

        def __iter__(self) -> Iterator[Item]:
            nonlocal held, most
            for item in super().__iter__():
                with lock:
                    held += 1
                    most = max(most, held)
                yield replace(item, held_bytes=4000)

    specs = FakeRunner(shape=ANY)
    plan = layout()
    source = Frames([picture(n % 250) for n in range(300)])
    with (
        created(plan) as ring,
        Pool([Seat(device="cpu:0", open_runner=specs)], ring) as pool,
        Stream(source, PixelCodec(), MemorySink(), pool, ring) as stream,
    ):
        for n, outcome in enumerate(stream.run(Threads(feeders=2, writers=2))):
            assert outcome.item.seq == n
            with lock:
                held -= 1
    # What passes the ring's bytes is one item at most.
    assert most <= plan.total_bytes // 4000 + 2


def test_every_item_says_where_its_time_went() -> None:
    pause = 0.01

    class Slow(MemorySink):
        def store(self, item: Item, attached: Attached, answer: Answer) -> Entry:
            time.sleep(2 * pause)
            return super().store(item, attached, answer)

    runner = SlowRunner(shape=ANY, seconds=pause)
    began = time.monotonic_ns()
    outcomes = list(run([picture(n) for n in range(12)], Slow(), runner=runner, workers=1))
    seconds = (time.monotonic_ns() - began) / 1e9
    for outcome in outcomes:
        assert outcome.times.store >= 2 * pause * 1e9
        assert outcome.times.batch is not None
    stages = StageTimes()
    for outcome in outcomes:
        stages.add(outcome.times)
    # The batches of 3 were computed one after the other, and two threads stored them.
    counted = stages.by_stage["compute"]
    assert counted.count == sum(outcome.times.leads for outcome in outcomes) == 4
    assert stages.by_stage["store"].total / 1e9 <= 2 * seconds
    # What waits for a busy worker is not on its way to an idle one.
    assert stages.by_stage["queue"].longest >= pause * 1e9
    assert stages.by_stage["handover"].total < stages.by_stage["queue"].total
