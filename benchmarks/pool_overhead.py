"""What does the pool cost? One worker against a plain ONNX Runtime loop, same batches and threads.

    python benchmarks/pool_overhead.py

Two numbers. (1) Throughput of the pool with one worker over that of a loop in this process, on
CenterFace at 512 x 512, batches decoded beforehand; rounds alternate, and each round is a pair, so
that a busy machine slows both. (2) The hand-over of one batch, with a runner that does nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import faces
import numpy as np
import onnxruntime as ort

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.build import backends
from trtfuse.build.store import Engine
from trtfuse.core.cores import usable_cores
from trtfuse.core.flow import Task
from trtfuse.core.record import to_json
from trtfuse.core.specs import Array
from trtfuse.pool.arrays import map_batches
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, created, for_engine, lay_out
from trtfuse.testing import FakeRunner

QUESTION = (
    "What share of a plain ONNX Runtime loop's throughput does the pool reach with one worker?"
)


def main() -> None:
    """Measure, print, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--batches", type=int, default=24)
    arguments.add_argument("--batch", type=int, default=4)
    given = arguments.parse_args()
    with TemporaryDirectory() as folder:
        engine = faces.engine(Path(folder))
        pairs = throughput(engine, given.rounds, given.batches, given.batch)
    handover_us = [handover() for _ in range(given.rounds)]
    items = given.batches * given.batch
    rows = {
        "loop_items_per_s": to_json(spread([items / loop for loop, _ in pairs])),
        "pool_items_per_s": to_json(spread([items / pool for _, pool in pairs])),
        "ratio": to_json(spread([loop / pool for loop, pool in pairs])),
        "handover_us": to_json(spread(handover_us)),
    }
    for name, row in rows.items():
        print(f"{name:18} median {row['median']:8.3f}   {row['low']:.3f} to {row['high']:.3f}")
    write_result(
        faces.ROOT / "benchmarks" / "results" / "pool_overhead.json",
        question=QUESTION,
        conditions=conditions(
            model="CenterFace 512 x 512, fp32",
            batch=given.batch,
            batches_a_round=given.batches,
            threads=usable_cores(),
            warm_up="one round of each",
            pairs=given.rounds,
            handover="2,000 tasks of a runner that computes 8 floats, 3 slots under way",
        ),
        rows=rows,
    )


def throughput(engine: Engine, rounds: int, count: int, batch: int) -> list[tuple[float, float]]:
    """Seconds of loop and of pool, one pair a round. Both read every output."""
    name = engine.manifest.inputs[0].name
    random = np.random.default_rng(0)
    # Four distinct batches in turn: more than the caches hold, as decoded pictures are.
    shape = (batch, *engine.manifest.profile[name].max[1:])
    distinct = [random.uniform(0, 255, shape).astype(np.float32) for _ in range(4)]
    batches = [distinct[n % 4] for n in range(count)]
    layout = for_engine(engine.manifest, batch=batch, wanted=4, memory_bytes=1 << 30)
    opener = backends.BACKENDS["onnxruntime"].opener(engine.path, engine.manifest, 1)
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    session = ort.InferenceSession(str(engine.path), options, providers=["CPUExecutionProvider"])

    def loop() -> float:
        started = time.perf_counter()
        for one in batches:
            consume(session.run(None, {name: one}))
        return time.perf_counter() - started

    with (
        created(layout) as ring,
        Pool([Seat(device="cpu:0", open_runner=opener)], ring) as pool,
    ):

        def pooled() -> float:
            started = time.perf_counter()
            for outputs in map_batches(pool, ring, ({name: one} for one in batches)):
                consume(list(outputs.values()))
            return time.perf_counter() - started

        loop(), pooled()
        return [(loop(), pooled()) for _ in range(rounds)]


def consume(outputs: Sequence[Array]) -> float:
    """Touch every output, as a decoder would."""
    return sum(float(output.max()) for output in outputs)


def handover(tasks: int = 2000) -> float:
    """Microseconds from one task to the next, through submit, worker and result."""
    runner = FakeRunner(shape=(8,))
    layout = lay_out(
        [Largest(spec=runner.inputs[0], item=(8,))],
        [Largest(spec=runner.outputs[0], item=(8,))],
        batch=1,
        wanted=3,
        memory_bytes=1 << 20,
    )
    with created(layout) as ring, Pool([Seat(device="cpu:0", open_runner=runner)], ring) as pool:
        for slot in range(3):
            ring.set_input_shape(slot, "x", (8,))
            pool.submit(Task(seq=slot, slot=slot, count=1))
        started = time.perf_counter()
        for seq in range(3, tasks):
            pool.results.get()
            pool.submit(Task(seq=seq, slot=seq % 3, count=1))
        for _ in range(3):
            pool.results.get()
        return (time.perf_counter() - started) / tasks * 1e6


if __name__ == "__main__":
    main()
