"""One GPU: how many workers, and how many lanes in each?

    python benchmarks/gpu_instances.py WORK

Needs the engines of `vs_pytorch.py engines WORK`. Each worker is a process with its own copy of the
engine; lanes share one. Rates are of all workers together, through the pool.
"""

from __future__ import annotations

import argparse
import faulthandler
from pathlib import Path
from typing import Any

import gpu_engines as engines
from gpu_engines import DEVICE, NETS

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.core.record import to_json
from trtfuse.core.specs import Precision
from trtfuse.core.units import mib
from trtfuse.gpu import devices
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import created, for_engine

ROOT = Path(__file__).parents[1]
QUESTION = "On one GPU, do more workers or more lanes give more, and what memory do they take?"
# (workers, lanes)
TRIED = ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2))
BATCHES = (8, 64)
NET = NETS["resnet50"]


def main() -> None:
    """Measure, print, write the result file after every row."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    given = arguments.parse_args()
    faulthandler.dump_traceback_later(100, repeat=True)  # a hang would be silent
    rows = []
    for batch in BATCHES:
        for workers, lanes in TRIED:
            row = measured(given.work, batch, workers, lanes)
            rows.append(row)
            print(
                f"batch {batch:2}  workers {workers}  lanes {lanes}  "
                f"{row['items_per_s']['median']:9,.0f} items/s  {mib(row['device_bytes'])}",
                flush=True,
            )
            write_result(
                given.results / "gpu_instances.json",
                question=QUESTION,
                conditions=conditions(
                    **engines.machine(),
                    net="ResNet-50 224 x 224, FP16, uint8 in, profile 1 to 64, best at 64",
                    rounds=f"{engines.ROUNDS} of at least {engines.ROUND_S} s, after a warm-up",
                    device_bytes="of the device, by NVML, all workers together",
                ),
                rows=rows,
            )


def measured(work: Path, batch: int, workers: int, lanes: int) -> dict[str, Any]:
    """Rate, and device memory while it runs."""
    gpu, opened = devices.named(DEVICE), engines.opener(work, NET, Precision.FP16, lanes=lanes)
    wanted = workers * (lanes + 2)
    layout = for_engine(opened.manifest, batch=batch, wanted=wanted, memory_bytes=4 << 30)
    x = engines.pictures(NET, batch)
    before = devices.free_bytes(gpu)
    seats = [Seat(device=DEVICE, open_runner=opened) for _ in range(workers)]
    with created(layout) as ring, Pool(seats, ring) as pool:
        rates = engines.rounds(lambda count: engines.flow(pool, ring, x, count), batch)
        used = before - devices.free_bytes(gpu)
    return {
        "batch": batch,
        "workers": workers,
        "lanes": lanes,
        "items_per_s": to_json(spread(rates)),
        "device_bytes": used,
    }


if __name__ == "__main__":
    main()
