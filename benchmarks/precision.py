"""What do INT8, FP16 and BF16 cost in quality, and what does nvidia-modelopt's INT8 cost?

    python benchmarks/precision.py [--modelopt PYTHON]

Three networks and real photographs: 64 crops calibrate, 16 others judge, against FP32 in ONNX
Runtime without optimizations. Every graph is built by TensorRT-RTX, too. PYTHON is an interpreter
that has nvidia-modelopt 0.47; without it its rows are left out.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxsim
from crops import tensors
from precision_nets import SIZES, export

from trtfuse.bench.report import conditions, write_result
from trtfuse.calibrate.ranges import Limits, Origin, Ranges, measure
from trtfuse.calibrate.recipe import Example, choose
from trtfuse.calibrate.thresholds import parse_method
from trtfuse.core.cores import usable_cores
from trtfuse.core.specs import Array, BuildRequest, Precision, ShapeRange, TrtSettings
from trtfuse.gpu import builder
from trtfuse.graph import precision
from trtfuse.graph.precision import Measured
from trtfuse.graph.tap import Tap

ROOT = Path(__file__).parents[1]
METHODS = ("entropy", "percentile:99.99", "mse", "minmax")
CALIBRATE, JUDGE = 64, 16
FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8


def main() -> None:
    """Measure, print, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modelopt", type=Path)
    given = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder:
        for name in SIZES:
            for row in of_network(name, Path(folder), given.modelopt):
                rows.append({"network": name, **row})
                print(
                    " ".join(
                        f"{value:.4g}" if isinstance(value, float) else str(value)
                        for value in rows[-1].values()
                    ),
                    flush=True,
                )
    write_result(
        ROOT / "benchmarks" / "results" / "precision.json",
        question="How far do INT8, FP16 and BF16 lie from FP32, by network and method?",
        conditions=conditions(
            calibrated_on=f"{CALIBRATE} crops of photographs (benchmarks/crops.py, seed 0)",
            judged_on=f"{JUDGE} others (seed 1)",
            reference="FP32, ONNX Runtime, optimizations off",
            weights="seeded, untrained; BatchNorm statistics of the crops",
            modelopt="0.47.0, batches of 4" if given.modelopt else "not run",
            built_by="TensorRT-RTX 1.7, SM86, batch 1 to 4",
        ),
        rows=rows,
    )


def of_network(name: str, folder: Path, modelopt: Path | None) -> Iterator[dict[str, Any]]:
    """One row for each precision and method."""
    size = SIZES[name]
    inputs, judges = tensors(CALIBRATE, size), tensors(JUDGE, size, seed=1)
    path = export(name, inputs, folder / f"{name}.onnx")
    model: onnx.ModelProto = onnxsim.simplify(onnx.load(str(path)))[0]
    onnx.save(model, str(path))
    expected = answer(model, judges)
    for method in METHODS:
        known = ranges(model, inputs, method)
        written = precision.write(model, INT8, known)
        yield row(f"int8 {method}", written.model, judges, expected, size)
        if method == "entropy":
            mixed = precision.write(model, INT8, known, rest=FP16)
            yield row("int8+fp16 entropy", mixed.model, judges, expected, size)
            halves = precision.write(model, FP16, known)
            yield row("fp16", halves.model, judges, expected, size)
            # ONNX Runtime has no bfloat16 convolutions on CPUs: built, and not judged.
            plan_bytes = built(precision.write(model, BF16, known).model, size)
            yield {"precision": "bf16", "plan_mb": plan_bytes / 1e6}
    if modelopt:
        np.save(folder / "data.npy", inputs)
        for method in ("entropy", "max"):
            output = folder / f"{name}.{method}.onnx"
            script = ROOT / "benchmarks" / "precision_modelopt.py"
            command = [*map(str, (modelopt, script, path, folder / "data.npy", method, output))]
            subprocess.run(command, check=True, capture_output=True)
            theirs = onnx.load(str(output))
            yield row(f"modelopt int8 {method}", theirs, judges, expected, size)


def ranges(model: onnx.ModelProto, inputs: Array, method: str) -> Measured:
    """What the calibration inputs reach."""
    examples = [
        Example(key=str(n), sha256="", load=lambda n=n: {"input": inputs[n : n + 1]})  # type: ignore[misc]
        for n in range(len(inputs))
    ]
    origin = Origin(model_sha256="", card=None, recipe=choose(examples), method=method)
    needs = precision.needs(model, INT8, rest=FP16)
    tensors_ = measure(
        model,
        examples,
        needs,
        parse_method(method),
        Limits(threads=usable_cores()),
        lambda *_: None,
    )
    return Ranges(schema=1, origin=origin, left_out={}, tensors=tensors_).measured


def answer(model: onnx.ModelProto, inputs: Array) -> Array:
    """Outputs of all inputs, one at a time, without optimizations."""
    tap = Tap(model, ["output"], threads=usable_cores(), optimize=False)
    return np.concatenate([tap({"input": inputs[n : n + 1]})["output"] for n in range(len(inputs))])


def row(
    kind: str, model: onnx.ModelProto, judges: Array, expected: Array, size: int
) -> dict[str, Any]:
    """SQNR and largest error; raises where TensorRT-RTX builds no engine of it."""
    got = answer(model, judges).astype(np.float64)
    noise, signal = (
        float(np.square(x).sum()) for x in (got - expected, expected.astype(np.float64))
    )
    pairs = sum(node.op_type == "QuantizeLinear" for node in model.graph.node)
    return {
        "precision": kind,
        "sqnr_db": round(10 * np.log10(signal / noise), 2),
        "largest_error": float(np.abs(got - expected).max() / np.abs(expected).max()),
        "q_nodes": pairs,
        "plan_mb": built(model, size) / 1e6,
    }


def built(model: onnx.ModelProto, size: int) -> int:
    """Bytes of the engine that TensorRT-RTX builds. Raises BuildFailed where it builds none."""
    shapes = (1, 3, size, size), (2, 3, size, size), (4, 3, size, size)
    request = BuildRequest(
        model_sha256="",
        precision=FP32,  # the graph says it
        profile=(("input", ShapeRange(min=shapes[0], opt=shapes[1], max=shapes[2])),),
        device_name="",
        device_features="",
        runtime="tensorrt_rtx",
        runtime_version="",
        settings=TrtSettings(compute_capabilities=("8.6",)),
    )
    with TemporaryDirectory() as folder:
        source, engine = Path(folder) / "net.onnx", Path(folder) / "engine.plan"
        onnx.save(model, str(source))
        builder.build(source, request, engine, "")
        return engine.stat().st_size


if __name__ == "__main__":
    main()
