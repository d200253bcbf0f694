"""A GPU worker is killed in mid-run: are the outputs the same, and how long does it take?

    python benchmarks/gpu_recovery.py WORK

Needs the engines of `vs_pytorch.py engines WORK`.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import gpu_engines as engines
import numpy as np
import psutil
from gpu_engines import DEVICE, NETS

from trtfuse.bench.report import conditions, write_result
from trtfuse.core.specs import Array, Precision
from trtfuse.gpu.runner import OpenTrt
from trtfuse.pool.arrays import map_batches
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import created, for_engine

ROOT = Path(__file__).parents[1]
QUESTION = "What does the death of a GPU worker cost a run?"
NET, BATCH, COUNT = NETS["resnet50"], 8, 600
KILLED_AT = (150, 400)


@dataclass(frozen=True)
class Run:
    """What came out."""

    batches: int
    sha256: str
    deaths: tuple[str, ...]
    waited_s: tuple[float, ...]
    """From each kill to the next answer that was not there yet."""


def main() -> None:
    """Run undisturbed and disturbed, print, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    given = arguments.parse_args()
    faulthandler.dump_traceback_later(100, repeat=True)  # a hang would be silent
    opened = engines.opener(given.work, NET, Precision.FP16)
    calm, killed = run(opened, ()), run(opened, KILLED_AT)
    same = (calm.batches, calm.sha256) == (killed.batches, killed.sha256)
    print(f"{COUNT} batches, killed at {KILLED_AT}: outputs {'identical' if same else 'DIFFER'}")
    print(f"{'; '.join(killed.deaths)}; waited {', '.join(f'{s:.2f} s' for s in killed.waited_s)}")
    write_result(
        given.results / "gpu_recovery.json",
        question=QUESTION,
        conditions=conditions(
            **engines.machine(),
            net=f"ResNet-50 224 x 224, FP16, batch 8, one worker, {opened.lanes} lanes",
            batches=COUNT,
            killed="SIGKILL, while a batch is computed",
        ),
        rows={"identical": same, "deaths": killed.deaths, "waited_s": killed.waited_s},
    )
    assert same


def run(opened: OpenTrt, killed_at: Collection[int]) -> Run:
    """All batches through the pool; its worker dies when so many answers are there."""
    layout = for_engine(opened.manifest, batch=BATCH, wanted=6, memory_bytes=1 << 30)
    distinct = [engines.pictures(NET, BATCH, seed) for seed in range(16)]
    digest, waited, count = hashlib.sha256(), [], 0
    with (
        created(layout) as ring,
        Pool([Seat(device=DEVICE, open_runner=opened)], ring) as pool,
    ):
        batches = ({"x": distinct[n % 16]} for n in range(COUNT))
        last, gap = time.perf_counter(), 0.0
        for outputs in map_batches(pool, ring, batches):
            now = time.perf_counter()
            gap, last = max(gap, now - last), now
            digest.update(_bytes(outputs["y"]))
            count += 1
            if count in killed_at:
                os.kill(_worker(), signal.SIGKILL)
                gap = 0.0
            elif count in {at + 50 for at in killed_at}:
                waited.append(round(gap, 3))
        deaths = tuple(pool.records[0].deaths)
    return Run(count, digest.hexdigest(), deaths, tuple(waited))


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _worker() -> int:
    children = psutil.Process().children()
    (found,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return int(found.pid)


if __name__ == "__main__":
    main()
