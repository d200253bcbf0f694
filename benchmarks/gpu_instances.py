"""One GPU: how many workers, and how many lanes in each?

    python benchmarks/gpu_instances.py WORK

Needs the engines of `vs_pytorch.py engines WORK`. Each worker is a process with its own copy of the
engine; lanes share one. Rates are of all workers together, through the pool.

A batch's time on the device is told by its events. What a lane's turn takes beyond that, `idle_ms`,
is the host's: waking up, answering, launching the next batch. Where the lanes' work together is
shorter than their turns, the device waits for the host, and more lanes help.
"""

from __future__ import annotations

import argparse
import faulthandler
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import gpu_engines as engines
from gpu_engines import DEVICE, NETS

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.core.flow import Timing
from trtfuse.core.record import to_json
from trtfuse.core.specs import Precision
from trtfuse.core.units import mib
from trtfuse.gpu import devices
from trtfuse.pool.pool import Pool
from trtfuse.pool.slots import Ring

ROOT = Path(__file__).parents[1]
QUESTION = "On one GPU, do more workers or more lanes give more, and what memory do they take?"
# (workers, lanes). INT8 is the harder: its batches are short, and the host shows.
TRIED = {
    Precision.INT8: ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (3, 2)),
    Precision.FP16: ((1, 2), (1, 4), (2, 2)),
}
BATCHES = (8, 64)
NET = NETS["resnet50"]


def main() -> None:
    """Measure, print, write the result file after every row."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    given = arguments.parse_args()
    faulthandler.dump_traceback_later(100, repeat=True)  # a hang would be silent
    rows: list[dict[str, Any]] = []
    for precision, tried in TRIED.items():
        for workers, lanes in tried:
            for row in measured(given.work, precision, workers, lanes):
                rows.append(row)
                show(row)
            write_result(
                given.results / "gpu_instances.json",
                question=QUESTION,
                conditions=conditions(
                    **engines.machine(),
                    net="ResNet-50 224 x 224, uint8 in, profile 1 to 64, best at 64",
                    rounds=f"{engines.ROUNDS} of at least {engines.ROUND_S} s, after a warm-up",
                    device_bytes="of the device, by NVML, all workers together",
                    milliseconds="medians of a batch, by the lane's events; idle_ms is the rest of "
                    "a lane's turn",
                ),
                rows=rows,
            )


def measured(
    work: Path, precision: Precision, workers: int, lanes: int
) -> Iterator[dict[str, Any]]:
    """Rates at each batch, and device memory meanwhile. One pool for all."""
    gpu, opened = devices.named(DEVICE), engines.opener(work, NET, precision, lanes=lanes)
    if not opened.engine.exists():
        print(f"{opened.engine.name}: not built, left out", flush=True)
        return
    before = devices.free_bytes(gpu)
    with engines.pooled(opened, max(BATCHES), workers=workers) as (pool, ring):
        for batch in BATCHES:
            rates, timings = _rates(pool, ring, batch)
            yield {
                "precision": precision.value,
                "batch": batch,
                "workers": workers,
                "lanes": lanes,
                "items_per_s": to_json(spread(rates)),
                **_milliseconds(timings, 1e3 * workers * lanes * batch / median(rates)),
                "device_bytes": before - devices.free_bytes(gpu),
            }


def _rates(pool: Pool, ring: Ring, batch: int) -> tuple[list[float], list[Timing]]:
    """Items/s of every round, and the last round's timings."""
    x = engines.pictures(NET, batch)
    timings: list[Timing] = []

    def seconds(count: int) -> float:
        taken, timings[:] = engines.flow(pool, ring, x, count)
        return taken

    return engines.rounds(seconds, batch), timings


def _milliseconds(timings: list[Timing], turn_ms: float) -> dict[str, float]:
    parts = {
        name: median(getattr(one, f"{name}_ns") for one in timings) / 1e6
        for name in ("copy_in", "compute", "copy_out")
    }
    found = {f"{name}_ms": round(value, 4) for name, value in parts.items()}
    return found | {"idle_ms": round(turn_ms - sum(parts.values()), 4)}


def show(row: dict[str, Any]) -> None:
    """One line."""
    print(
        f"{row['precision']}  batch {row['batch']:2}  workers {row['workers']}  "
        f"lanes {row['lanes']}  {row['items_per_s']['median']:9,.0f} items/s  "
        f"in {row['copy_in_ms']:.3f}  compute {row['compute_ms']:.3f}  "
        f"out {row['copy_out_ms']:.3f}  idle {row['idle_ms']:.3f} ms  {mib(row['device_bytes'])}",
        flush=True,
    )


if __name__ == "__main__":
    main()
