"""What do time and memory of an export come to, for a model of 100 MB?

    python benchmarks/export_memory.py

ResNet-50 with random weights, as an ONNX of 102 MB, through `trtfuse export`: dynamic batch, proof
at batches 1, 2 and 5, simplifier, file. The peak of the command's own process is what the kernel
says of it (VmHWM); that of it and its children together is sampled every 10 ms, as the sum of what
is resident in each, shared pages counted twice. Writes benchmarks/results/export_memory.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import peak
import psutil

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.core.record import to_json

ROOT = Path(__file__).parents[1]
QUESTION = "How long does the export of a 100 MB model take, and how much memory?"


def main() -> None:
    """Make the model, export it several times, print, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=3)
    given = arguments.parse_args()
    with TemporaryDirectory() as folder:
        model = Path(folder) / "resnet50.onnx"
        measured("tests.graph.architectures:ResNet", model, "--shape", "3,224,224", "--no-simplify")
        size = model.stat().st_size
        runs = [measured(str(model), Path(folder) / "out.onnx") for _ in range(given.repeats)]
    seconds, own, tree = (spread(list(column)) for column in zip(*runs, strict=True))
    rows = {
        "model_mb": round(size / 1e6, 2),
        "seconds": to_json(seconds),
        "own_peak_mb": to_json(own),
        "own_peak_over_model": round(own.high * 1e6 / size, 2),
        "tree_peak_mb": to_json(tree),
        "tree_peak_over_model": round(tree.high * 1e6 / size, 2),
    }
    for name, row in rows.items():
        print(f"{name:22} {row}")
    write_result(
        ROOT / "benchmarks" / "results" / "export_memory.json",
        question=QUESTION,
        conditions=conditions(
            model="ResNet-50, 3 x 224 x 224, fp32, opset 17",
            repeats=given.repeats,
            threads="1 in ONNX Runtime, as the proof runs",
            sampling="every 10 ms",
        ),
        rows=rows,
    )


def measured(model: str, output: Path, *flags: str) -> tuple[float, float, float]:
    """Seconds, peak MB of the command's process, and of it and its children together."""
    began = time.perf_counter()
    running = peak.started("export", model, "-o", str(output), *flags)
    process, tree = psutil.Process(running.pid), 0
    while running.poll() is None:
        tree = max(tree, resident(process))
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    done = peak.ended(running)
    if done.code:
        raise SystemExit(f"trtfuse export {model}: {done.words}")
    return seconds, done.peak_bytes / 1e6, tree / 1e6


def resident(process: psutil.Process) -> int:
    """Bytes resident in the process and its children, now."""
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.NoSuchProcess:  # ended between the listing and the look
        pass
    return total


if __name__ == "__main__":
    main()
