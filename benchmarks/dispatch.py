"""How many devices can one dispatcher keep busy, and where does it bend?

    python benchmarks/dispatch.py

Everything is the real thing, processes, pipes, shared memory and our Pool, but for the devices:
each takes exactly `--service-ms` for a batch, one batch after the other, as a GPU's stream does.
Its clock runs from the end of the batch before, so a device whose next batch is always launched in
time loses nothing, and every gap is the dispatcher's. Efficiency is the rate of N devices over N
times what one such device can do at most.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.core.cores import usable_cores
from trtfuse.core.flow import Claim, Pending, Result, Task, Timing
from trtfuse.core.record import to_json
from trtfuse.core.specs import Array, Arrays, TensorSpec
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, Ring, created, lay_out

ROOT = Path(__file__).parents[1]
QUESTION = "What share of N devices' throughput does one dispatcher reach, for N from 1 to 16?"
DEVICES = (1, 2, 4, 8, 12, 16)
SERVICES_MS = (1.0, 2.0, 5.0)
ITEM = (256, 256, 3)


@dataclass(frozen=True)
class Finishing:
    """A batch that is done at `end_ns` of the monotonic clock."""

    end_ns: int
    service_ns: int

    def result(self) -> Timing:
        """Sleep until then."""
        if (left := self.end_ns - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        return Timing(compute_ns=self.service_ns)


class Device:
    """A `Runner` whose batches take `service_ns` each, one after the other."""

    def __init__(self, service_ns: int, lanes: int) -> None:
        self.lanes = lanes
        self.inputs = (TensorSpec(name="x", dtype="uint8", shape=("batch", *ITEM)),)
        self.outputs = (TensorSpec(name="y", dtype="float32", shape=("batch", 4)),)
        self._service_ns = service_ns
        self._free_ns = 0

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Start a batch as soon as the one before is done."""
        claim("y", (len(inputs["x"]), 4))
        self._free_ns = max(self._free_ns, time.monotonic_ns()) + self._service_ns
        return Finishing(self._free_ns, self._service_ns)


@dataclass(frozen=True)
class OpenDevice:
    """Opens a `Device` in a worker: an `OpenRunner`."""

    service_ns: int
    lanes: int

    @contextmanager
    def __call__(self, device: str, ring: Array) -> Iterator[Device]:
        """Nothing is held."""
        del device, ring
        yield Device(self.service_ns, self.lanes)


def main() -> None:
    """Measure, print, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--service-ms", type=float, nargs="*", default=SERVICES_MS)
    arguments.add_argument("--devices", type=int, nargs="*", default=DEVICES)
    arguments.add_argument("--lanes", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--seconds", type=float, default=0.6)
    arguments.add_argument("--rounds", type=int, default=7)
    given = arguments.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for service in given.service_ms:
        for count in given.devices:
            rows.append(row(service, count, given))
            one = rows[-1]["efficiency"]
            print(
                f"{service:4g} ms, {count:2} devices: efficiency {one['median']:.3f} "
                f"({one['low']:.3f} to {one['high']:.3f}), "
                f"{rows[-1]['dispatcher_us_per_batch']['median']:.0f} us of the dispatcher a batch",
                flush=True,
            )
    write_result(
        ROOT / "benchmarks" / "results" / "dispatch.json",
        question=QUESTION,
        conditions=conditions(
            cores=usable_cores(),
            load_before=round(load, 2),
            device="simulated: a process that sleeps to the end of its batch, none skipped",
            lanes=given.lanes,
            batch=f"{given.batch} x {ITEM} uint8 in shared memory, filled once",
            rounds=f"{given.rounds} of {given.seconds} s after one to warm up",
        ),
        rows={"by_devices": rows, "most_devices_at_0.95": carried(rows)},
    )


def row(service_ms: float, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Efficiency of `count` devices, and what a batch costs this process and each worker."""
    opener = OpenDevice(round(service_ms * 1e6), given.lanes)
    layout = lay_out(
        [Largest(spec=Device(1, 1).inputs[0], item=ITEM)],
        [Largest(spec=Device(1, 1).outputs[0], item=(4,))],
        batch=given.batch,
        wanted=count * (given.lanes + 2),
        memory_bytes=2 << 30,
    )
    seats = [Seat(device=f"cpu:{n}", open_runner=opener) for n in range(count)]
    batches = max(1, round(given.seconds / service_ms * 1e3)) * count
    rates, costs = [], []
    with created(layout) as ring, Pool(seats, ring) as pool:
        fill(ring, given.batch)
        flow(pool, ring, given.batch, batches // 2)
        for _ in range(given.rounds):
            cpu = resource.getrusage(resource.RUSAGE_SELF)
            seconds = flow(pool, ring, given.batch, batches)
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
            rates.append(batches * service_ms / 1e3 / seconds / count)
            costs.append(used / batches * 1e6)
    return {
        "service_ms": service_ms,
        "devices": count,
        "batches_per_s": round(float(np.median(rates)) * count / service_ms * 1e3, 1),
        "efficiency": to_json(spread(rates)),
        "dispatcher_us_per_batch": to_json(spread(costs)),
    }


def carried(rows: list[dict[str, Any]]) -> dict[str, int]:
    """By service time: the most devices, of those measured, that are used to 0.95 and more."""
    found: dict[str, int] = {}
    for one in rows:
        key = f"{one['service_ms']:g} ms"
        reached = one["efficiency"]["median"] >= 0.95
        found[key] = max(found.get(key, 0), one["devices"] if reached else 0)
    return found


def fill(ring: Ring, batch: int) -> None:
    """Noise in every slot."""
    noise = np.random.default_rng(0).integers(0, 256, (batch, *ITEM), np.uint8)
    for slot in range(ring.layout.slots):
        ring.set_input_shape(slot, "x", ITEM)
        ring.inputs(slot, 0, batch)["x"][:] = noise


def flow(pool: Pool, ring: Ring, batch: int, count: int) -> float:
    """Seconds for `count` batches, every slot under way."""
    slots = min(ring.layout.slots, count)
    started = time.perf_counter()
    for seq in range(slots):
        pool.submit(Task(seq=seq, slot=seq, count=batch))
    for seq in range(slots, count):
        pool.submit(Task(seq=seq, slot=answered(pool), count=batch))
    for _ in range(slots):
        answered(pool)
    return time.perf_counter() - started


def answered(pool: Pool) -> int:
    """The slot of the next answer."""
    result = pool.results.get()
    if not isinstance(result, Result) or not isinstance(result.outcome, Timing):
        raise TypeError(f"no answer: {result}")
    return result.task.slot


if __name__ == "__main__":
    main()
