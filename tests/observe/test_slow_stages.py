"""Each stage made slow in a real run: the verdict names it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from trtfuse.core.flow import (
    Answer,
    Attached,
    Claim,
    Codec,
    Entry,
    Geometry,
    Item,
    Outcome,
    Pending,
    Picture,
    Source,
    Timing,
)
from trtfuse.core.report import Bound, Tally, Verdict
from trtfuse.core.specs import Array, Arrays, Precision
from trtfuse.observe.verdict import Load, judge
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, created, lay_out
from trtfuse.pool.stream import Stream, Threads
from trtfuse.testing import (
    FakePending,
    FakeRunner,
    ListSource,
    MemorySink,
    PixelCodec,
    SlowRunner,
)

SIZE = (4, 4, 3)
PAUSE = 0.02
PICTURES = [Picture(np.full(SIZE, n, np.uint8)) for n in range(24)]


@dataclass(frozen=True)
class CopyingRunner(FakeRunner):
    """Spends its time on copies, as it says."""

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        time.sleep(PAUSE)
        super().launch(inputs, claim)
        return FakePending(Timing(copy_in_ns=int(PAUSE * 1e9), compute_ns=1000))


class SlowFiles(ListSource):
    def __iter__(self) -> Iterator[Item]:
        for item in super().__iter__():
            yield replace(item, load=partial(self._late, item))

    def _late(self, item: Item) -> Picture:
        time.sleep(PAUSE)
        return item.load()


class SlowClip(ListSource):
    def __iter__(self) -> Iterator[Item]:
        for item in super().__iter__():
            time.sleep(PAUSE)
            yield item


class SlowCodec(PixelCodec):
    def encode(self, picture: Picture, geometry: Geometry, into: Array) -> None:
        time.sleep(PAUSE)
        super().encode(picture, geometry, into)


class SlowFolder(MemorySink):
    def store(self, item: Item, attached: Attached, answer: Answer) -> Entry:
        time.sleep(PAUSE)
        return super().store(item, attached, answer)


class SlowVideo(MemorySink):
    def commit(self, outcome: Outcome) -> Outcome:
        time.sleep(PAUSE)
        return super().commit(outcome)


def verdict(
    source: Source = ListSource(PICTURES),  # noqa: B008 - iterated anew each time
    codec: Codec = PixelCodec(),  # noqa: B008 - frozen
    sink: MemorySink | None = None,
    runner: FakeRunner = FakeRunner(shape=SIZE),  # noqa: B008 - frozen
    batch: int = 2,
) -> Verdict:
    """Of a run with one worker and two threads at each end."""
    sink = sink or MemorySink()
    threads = Threads(feeders=2, writers=2)
    plan = lay_out(
        [Largest(spec=runner.inputs[0], item=SIZE)],
        [Largest(spec=runner.outputs[0], item=SIZE)],
        batch=batch,
        wanted=6,
        memory_bytes=1 << 20,
    )
    with created(plan) as ring, Pool([Seat(device="cpu:0", open_runner=runner)], ring) as pool:
        tally = Tally(total=lambda: None, records=pool.records)
        with Stream(source, codec, sink, pool, ring) as stream:
            for outcome in stream.run(threads):
                began = time.monotonic_ns()
                committed = sink.commit(outcome)
                committed.times.commit = time.monotonic_ns() - began
                tally.count(committed)
            tally.end()
    return judge(
        Load(
            seconds=tally.seconds,
            stages={name: one.total / 1e9 for name, one in tally.stages.by_stage.items()},
            busy_s=tuple(record.busy_ns / 1e9 for record in tally.records),
            feeders=threads.feeders,
            writers=threads.writers,
            cores=2,
            batch=batch,
            on_gpu=False,
            precision=Precision.FP32,
        )
    )


@pytest.mark.parametrize(
    ("found", "bound", "advice"),
    [
        (partial(verdict, source=SlowFiles(PICTURES)), "decode", "smaller pictures"),
        (partial(verdict, source=SlowClip(PICTURES)), "decode", "clips decoded, in order"),
        (partial(verdict, codec=SlowCodec()), "decode", "--fuse pre,resize"),
        (
            partial(verdict, runner=SlowRunner(shape=SIZE, seconds=PAUSE)),
            "compute",
            "a GPU, or more cores, would help",
        ),
        (partial(verdict, runner=CopyingRunner(shape=SIZE)), "copy", "--fuse pre,post"),
        (partial(verdict, sink=SlowFolder()), "encode", "cheaper --format"),
        (partial(verdict, sink=SlowVideo()), "encode", "try --codec"),
    ],
    ids=["files", "clip", "prepare", "compute", "copy", "store", "commit"],
)
def test_the_slow_stage_is_the_one_that_is_named(
    found: partial[Verdict], bound: Bound, advice: str
) -> None:
    verdict = found()
    assert (verdict.bound, advice in verdict.text) == (bound, True), verdict


def test_batches_that_are_not_worth_their_way_are_named() -> None:
    found = verdict(source=ListSource(PICTURES * 40), batch=1)
    assert found.bound == "dispatch", found
    assert "larger --batch, it is 1" in found.text
