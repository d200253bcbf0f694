"""What does calibration cost beside the passes it needs? ResNet-50 at 224, 128 images.

    python benchmarks/calibration_cost.py

Each measurement runs in a process of its own, so that its peak memory is its own: (a) FP32 runs of
the bare network; (b) runs that bring out every tensor INT8 needs, and do nothing with them: the
least that any calibrator does; (c) the calibration, from the graph in memory to the range file;
(d) the range file read, checked against the inputs' hashes, and taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from crops import tensors
from precision_nets import export

from trtfuse.bench.report import conditions, write_result
from trtfuse.build.calibration import Calibration
from trtfuse.build.inputs import gather
from trtfuse.calibrate.recipe import Example
from trtfuse.core.cores import usable_cores
from trtfuse.core.options import CalibrationOptions
from trtfuse.core.specs import Precision, ShapeRange
from trtfuse.graph import precision
from trtfuse.graph.model import describe, load
from trtfuse.graph.tap import Tap

ROOT = Path(__file__).parents[1]
COUNT, SIZE = 128, 224
SHAPE = (1, 3, SIZE, SIZE)


def main() -> None:
    """Measure, print, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        pictures = tensors(COUNT, SIZE)
        np.save(folder / "data.npy", pictures)
        export("resnet50", pictures, folder / "net.onnx")
        # Round by round, so that a busy machine slows all parts alike.
        rounds = [
            {part.__name__: alone(part, folder) for part in (bare, brought_out, calibrated, reused)}
            for _ in range(given.rounds)
        ]
    fastest = {name: best([one[name] for one in rounds]) for name in rounds[0]}
    seconds = {name: run["seconds"] for name, run in fastest.items()}
    rows: dict[str, Any] = {
        **fastest,
        "ratio_to_brought_out": seconds["calibrated"] / seconds["brought_out"],
        "ratio_to_bare": seconds["calibrated"] / seconds["bare"],
    }
    for key, value in rows.items():
        print(key, value)
    write_result(
        ROOT / "benchmarks" / "results" / "calibration_cost.json",
        question="What does calibration cost beside the passes it needs?",
        conditions=conditions(
            model="ResNet-50, 224 x 224, fp32, weights seeded",
            images=COUNT,
            batch=1,
            threads=usable_cores(),
            load_average=os.getloadavg()[0],
            rounds=f"{given.rounds}, the fastest of each",
            session="loading it is part of each time",
        ),
        rows=rows,
    )


def alone(part: Callable[[Path], None], folder: Path) -> dict[str, float]:
    """Seconds and peak MiB of `part` in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(timed, part, folder).result()


def timed(part: Callable[[Path], None], folder: Path) -> dict[str, float]:
    """In the child."""
    started = time.perf_counter()
    part(folder)
    seconds = time.perf_counter() - started
    return {
        "seconds": round(seconds, 2),
        "peak_mib": round(peak_kib() / 1024),
    }


def peak_kib() -> int:
    """Of this process since it began; getrusage would tell its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    """The fastest run."""
    return min(runs, key=lambda run: run["seconds"])


def examples(folder: Path) -> list[Example]:
    """Every image, mapped from the file."""
    data = np.load(folder / "data.npy", mmap_mode="r")
    return [
        Example(key=str(n), sha256="", load=lambda n=n: {"input": np.array(data[n : n + 1])})  # type: ignore[misc]
        for n in range(COUNT)
    ]


def bare(folder: Path) -> None:
    """FP32 runs of the network."""
    tap = Tap(load(folder / "net.onnx"), ["output"], threads=usable_cores())
    for one in examples(folder):
        tap(one.load())


def brought_out(folder: Path) -> None:
    """The same with every tensor brought out."""
    graph = load(folder / "net.onnx")
    needs = precision.needs(graph, Precision.INT8, rest=Precision.FP32)
    tap = Tap(graph, needs.amax, threads=usable_cores())
    for one in examples(folder):
        tap(one.load())


def calibrated(folder: Path) -> None:
    """Look at the inputs, measure, choose thresholds by entropy, write the file."""
    shutil.rmtree(folder / "ranges", ignore_errors=True)
    calibration(folder).ranges(Precision.INT8, Precision.FP32)


def reused(folder: Path) -> None:
    """Hash the inputs, find the file, take it."""
    before = len(list((folder / "ranges/net").glob("*.json")))
    calibration(folder).ranges(Precision.INT8, Precision.FP32)
    assert before == len(list((folder / "ranges/net").glob("*.json")))


def calibration(folder: Path) -> Calibration:
    """As `trtfuse build --calib-data data.npy` makes it, with all but one image calibrating."""
    options = CalibrationOptions(data=folder / "data.npy", held_out=0.001, ranges=folder / "ranges")
    model = describe(folder / "net.onnx")
    profile = (("input", ShapeRange(min=SHAPE, opt=SHAPE, max=SHAPE)),)
    inputs = gather(options.data, model, profile, folder)
    return Calibration(options, model, inputs, lambda _: None, lambda *_: None)


if __name__ == "__main__":
    main()
