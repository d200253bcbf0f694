"""What do time and memory of an export come to, for a model of 100 MB and one over 2 GB?

    python benchmarks/export_memory.py

ResNet-50 with random weights, as an ONNX of 102 MB, through `trtfuse export`: dynamic batch, proof
at batches 1, 2 and 5, simplifier, file. The large one is nine matrices of 8192 x 8192 with their
numbers in a file beside it, as one protobuf cannot hold them. The peak of the command's own
process is what the kernel says of it (VmHWM); that of it and its children together is sampled
every 10 ms, as the sum of what is resident in each, shared pages counted twice. Writes
benchmarks/results/export_memory.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import peak
import psutil
from onnx import TensorProto, helper

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.core.record import to_json

ROOT = Path(__file__).parents[1]
QUESTION = (
    "How long does the export of a 100 MB model, and of one over 2 GB, take, and how much memory?"
)
WIDTH, DEPTH = 8192, 9


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
    with TemporaryDirectory() as folder:
        model = Path(folder) / "stack.onnx"
        large = stack(model)
        run = measured(str(model), Path(folder) / "out.onnx")
    seconds, own, tree = (spread(list(column)) for column in zip(*runs, strict=True))
    rows = {
        "model_mb": round(size / 1e6, 2),
        "seconds": to_json(seconds),
        "own_peak_mb": to_json(own),
        "own_peak_over_model": round(own.high * 1e6 / size, 2),
        "tree_peak_mb": to_json(tree),
        "tree_peak_over_model": round(tree.high * 1e6 / size, 2),
        "large_model_mb": round(large / 1e6, 2),
        "large_seconds": round(run[0], 1),
        "large_own_peak_mb": round(run[1], 1),
        "large_own_peak_over_model": round(run[1] * 1e6 / large, 2),
        "large_tree_peak_mb": round(run[2], 1),
        "large_tree_peak_over_model": round(run[2] * 1e6 / large, 2),
    }
    for name, row in rows.items():
        print(f"{name:28} {row}")
    write_result(
        ROOT / "benchmarks" / "results" / "export_memory.json",
        question=QUESTION,
        conditions=conditions(
            model="ResNet-50, 3 x 224 x 224, fp32, opset 17",
            large_model=f"{DEPTH} MatMul of {WIDTH} x {WIDTH}, fp32, external data; one run",
            repeats=given.repeats,
            threads="1 in ONNX Runtime, as the proof runs",
            sampling="every 10 ms",
        ),
        rows=rows,
    )


def stack(path: Path) -> int:
    """Write the large model, one matrix in memory at a time. Bytes of its numbers."""
    data, generator = path.with_suffix(".bin"), np.random.default_rng(0)
    weights, size = [], 0
    with data.open("wb") as file:
        for layer in range(DEPTH):
            matrix = generator.standard_normal((WIDTH, WIDTH), np.float32)
            file.write((matrix / WIDTH**0.5).tobytes())
            weight = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            weight.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", data.name),
                ("offset", size),
                ("length", matrix.nbytes),
            ):
                weight.external_data.add(key=key, value=str(value))
            weights.append(weight)
            size += matrix.nbytes
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"])
            for layer in range(DEPTH)
        ],
        "stack",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info(f"x{DEPTH}", TensorProto.FLOAT, [1, WIDTH])],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return size


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
