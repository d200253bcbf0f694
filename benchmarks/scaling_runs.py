"""The runs of `scaling.py`: pools over several devices, undisturbed and disturbed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gpu_engines as engines
import numpy as np
import psutil
from scaling_models import Model

from trtfuse.build import fleet
from trtfuse.core.flow import Claim, OpenRunner, Pending, Runner, Timing
from trtfuse.core.options import InferOptions
from trtfuse.core.report import WorkerRecord
from trtfuse.core.specs import Array, Arrays, TensorSpec
from trtfuse.gpu import devices
from trtfuse.infer import infer
from trtfuse.pool.arrays import map_batches
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, Layout, Ring, created, for_engine, lay_out
from trtfuse.testing import SlowRunner

SLOWER = 3
"""How many times longer the slowed worker takes."""
DISTINCT = 8
"""Batches that differ, in turn."""
IMITATED_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The workers of a pool, its ring, and batches of input `x` for it, that come in turn."""

    seats: tuple[Seat, ...]
    layout: Layout
    batches: tuple[Array, ...]
    apart: bool
    """Whether each worker has a device of its own, and none is faster when another rests."""

    @contextmanager
    def at_work(self) -> Iterator[tuple[Pool, Ring]]:
        """The pool and the ring."""
        with created(self.layout) as ring, Pool(self.seats, ring) as pool:
            yield pool, ring

    def slowed(self, least_s: float) -> Crew:
        """With a last worker whose batches take so long at least."""
        last = self.seats[-1]
        slower = replace(last, open_runner=Slowed(last.open_runner, least_s))
        return replace(self, seats=(*self.seats[:-1], slower))


def crew(options: InferOptions, model: Model) -> Crew:
    """Of the devices and engines that `trtfuse infer` would take."""
    found = fleet.find(options)
    on_gpus = options.gpus is not None
    layout = for_engine(
        found.engines[0].manifest,
        batch=model.batch,
        # As many as the workers take, and one being filled for each.
        wanted=sum(place.batches + 1 for place in found.places),
        memory_bytes=options.memory_bytes,
    )
    return Crew(
        seats=tuple(Seat(device=one.device, open_runner=one.open_runner) for one in found.places),
        layout=layout,
        batches=tuple(model.pictures(model.batch, seed) for seed in range(DISTINCT)),
        apart=on_gpus and len({one.device for one in found.places}) == len(found.places),
    )


def imitated(workers: int) -> Crew:
    """Of devices that take `IMITATED_S` a batch, asleep: they cost no cores."""
    runner = SlowRunner(shape=(64,), max_batch=8, seconds=IMITATED_S)
    x, y = (Largest(spec=one, item=(64,)) for one in (*runner.inputs, *runner.outputs))
    return Crew(
        seats=tuple(Seat(device=f"cpu:{n}", open_runner=runner) for n in range(workers)),
        layout=lay_out([x], [y], batch=8, wanted=3 * workers, memory_bytes=1 << 20),
        batches=tuple(np.full((8, 64), seed, np.float32) for seed in range(DISTINCT)),
        apart=True,
    )


def decoded_rates(crew: Crew) -> list[float]:
    """Items/s with inputs that lie ready in the ring; one value a round."""
    x = crew.batches[0]
    with crew.at_work() as (pool, ring):
        return engines.rounds(lambda count: engines.flow(pool, ring, x, count)[0], len(x))


@dataclass(frozen=True, kw_only=True)
class Drive:
    """So many batches through a pool, in order."""

    seconds: float
    sha256: str
    """Of all outputs, in the order of the batches."""
    devices: tuple[dict[str, Any], ...]
    reload_s: float | None = None
    """From the kill until the killed worker's next answer; None: there was none any more."""


def drive(crew: Crew, count: int, *, kill_at: int | None = None) -> Drive:
    """Run `count` batches; the last worker is killed when so many answers are there."""
    digest, reloaded = hashlib.sha256(), _Reloaded()
    with crew.at_work() as (pool, ring):
        # Every lane has run, and is not timed.
        for _ in map_batches(pool, ring, _batches(crew, 8 * len(crew.seats))):
            pass
        before = [(record.items, record.busy_ns) for record in pool.records]
        started, started_ns = time.perf_counter(), time.monotonic_ns()
        for number, outputs in enumerate(map_batches(pool, ring, _batches(crew, count))):
            for name in sorted(outputs):
                digest.update(np.ascontiguousarray(outputs[name]).tobytes())
            if number == kill_at:
                reloaded.begin()
                os.kill(_workers()[-1], signal.SIGKILL)
            reloaded.look(pool.records[-1])
        seconds = time.perf_counter() - started
        shares = [
            _share(record, *was, started_ns, seconds)
            for record, was in zip(pool.records, before, strict=True)
        ]
    return Drive(
        seconds=round(seconds, 3),
        sha256=digest.hexdigest(),
        devices=tuple(shares),
        reload_s=round(reloaded.seconds, 3) if reloaded.seconds else None,
    )


def _share(
    record: WorkerRecord, items: int, busy_ns: int, started_ns: int, seconds: float
) -> dict[str, Any]:
    """Of one worker, since it had `items` and `busy_ns`.

    What it did not work until its last answer it waited for others; then there was no work left.
    """
    busy_s, at_work_s = (record.busy_ns - busy_ns) / 1e9, (record.heard_ns - started_ns) / 1e9
    return {
        "device": record.device,
        "items": record.items - items,
        "busy_share": round(busy_s / seconds, 3),
        "busy_share_until_its_last_answer": round(busy_s / at_work_s, 3),
        "done_before_the_end_s": round(seconds - at_work_s, 3),
        "deaths": list(record.deaths),
    }


class _Reloaded:
    """How long the last worker gives no answer after its death."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._killed_at = 0.0
        self._items: int | None = None

    def begin(self) -> None:
        self._killed_at = time.perf_counter()

    def look(self, record: WorkerRecord) -> None:
        if not record.deaths or self.seconds:
            return
        if self._items is None:
            # What lay in its pipe when it died is counted before its death is.
            self._items = record.items
        elif record.items > self._items:
            self.seconds = time.perf_counter() - self._killed_at


def _batches(crew: Crew, count: int) -> Iterator[Arrays]:
    return ({"x": crew.batches[n % len(crew.batches)]} for n in range(count))


def _workers() -> list[int]:
    """Process ids of the pool's workers, oldest first."""
    children = sorted(psutil.Process().children(), key=lambda one: (one.create_time(), one.pid))
    return [int(one.pid) for one in children if "spawn_main" in " ".join(one.cmdline())]


@dataclass(frozen=True)
class Slowed:
    """An OpenRunner whose every batch takes `least_s`: a device slower than the others."""

    opener: OpenRunner
    least_s: float

    @contextmanager
    def __call__(self, device: str, ring: Array) -> Iterator[Runner]:
        """Open it behind the delay."""
        with self.opener(device, ring) as runner:
            yield SlowedRunner(runner, self.least_s)


@dataclass(frozen=True)
class SlowedRunner:
    """One batch at a time, each answered no sooner than `least_s` after its launch."""

    runner: Runner
    least_s: float
    lanes: int = 1

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the runner's."""
        return self.runner.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As the runner's."""
        return self.runner.outputs

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Start it."""
        due = time.perf_counter() + self.least_s
        return _Late(self.runner.launch(inputs, claim), due)


@dataclass(frozen=True)
class _Late:
    pending: Pending
    due: float

    def result(self) -> Timing:
        timing = self.pending.result()
        time.sleep(max(0.0, self.due - time.perf_counter()))
        return timing


def disturbed(crew: Crew, seconds: float) -> dict[str, Any]:
    """A worker killed, and a worker slowed, each against a run that was left alone."""
    workers = len(crew.seats)
    count = max(64, int(64 * seconds / drive(crew, 64).seconds))
    calm, killed = drive(crew, count), drive(crew, count, kill_at=count // 3)
    # How long it was gone: from a third of the run on, or until it was back.
    gone_s = killed.seconds * 2 / 3 if killed.reload_s is None else killed.reload_s
    slow_batch_s = SLOWER * calm.seconds * workers / count
    slowed = drive(crew.slowed(slow_batch_s), count)
    alike = {
        # What the others and a third of one can do, if nobody waits for anybody.
        "expected_s": round(calm.seconds * workers / (workers - 1 + 1 / SLOWER), 3),
    }
    return {
        "workers": workers,
        "batches": count,
        "calm": vars(calm),
        "killed": {
            **vars(killed),
            "same_bytes": killed.sha256 == calm.sha256,
            "longer_s": round(killed.seconds - calm.seconds, 3),
            "share_of_the_reload_s": round(gone_s / workers, 3),
        },
        "slowed": {
            **vars(slowed),
            "same_bytes": slowed.sha256 == calm.sha256,
            "times_slower": SLOWER,
            "slow_batch_s": round(slow_batch_s, 4),
            # Workers that share a device are faster while one of them rests.
            **(alike if crew.apart else {}),
        },
    }


def folder_run(options: InferOptions, output: Path) -> dict[str, Any]:
    """`trtfuse infer` from files to files: rate, shares, and a digest of all that was written."""
    report = infer(replace(options, output=output), watch=lambda _: None)
    told = json.loads((output / "run.json").read_text())
    return {
        "items": report.items,
        "failed": len(report.failures),
        "items_per_s": round(report.items_per_s, 1),
        "busy_shares": {one.device: one.busy_share for one in report.devices},
        "sha256": _files_digest(output),
        # Where the time went, as the report says it.
        **{name: told[name] for name in ("stages", "verdict") if name in told},
    }


def _files_digest(output: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(output.rglob("*")):
        # These hold times, and the place of the run.
        if path.is_file() and path.name not in ("run.json", "journal.jsonl"):
            whole.update(f"{path.relative_to(output)}\0".encode() + path.read_bytes())
    return whole.hexdigest()


def memory_taken(options: InferOptions, model: Model, number: int) -> dict[str, int]:
    """Bytes that a run on GPU `number` alone takes on every GPU, by NVML."""
    gpus = devices.scan().gpus
    before = [devices.free_bytes(gpu) for gpu in gpus]
    with crew(replace(options, gpus=str(number)), model).at_work():
        taken = [free - devices.free_bytes(gpu) for free, gpu in zip(before, gpus, strict=True)]
    return {f"cuda:{gpu.index}": nbytes for gpu, nbytes in zip(gpus, taken, strict=True)}
