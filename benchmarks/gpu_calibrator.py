"""TensorRT 8.6's own calibrator against the same ranges in Q/DQ pairs: ResNet-50, on a GPU.

    python benchmarks/gpu_calibrator.py graphs WORK     the network, our ranges, answers in FP32
    python benchmarks/gpu_calibrator.py engines WORK    three engines, in INT8 with FP16 around it
    python benchmarks/gpu_calibrator.py rates WORK      answers compared, rates, the result file

The first needs PyTorch and ONNX Runtime, the others TensorRT 8.6 or 10 and PyCUDA; the two may be
different Pythons. The engines:

    calibrator  TensorRT's IInt8EntropyCalibrator2 on 256 inputs; it writes its cache
    pairs       that cache, read by trtfuse and written as Q/DQ pairs: `--calibration-cache`
    cache       the ranges that trtfuse measured, as a cache that the calibrator only hands on

Every step writes what it has as it goes, and keeps what is there already.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import gpu_engines as engines
import numpy as np
from gpu_calibrator_trt import TIMINGS, implicit
from gpu_engines import DEVICE, NETS

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.calibrate import cache
from trtfuse.core.errors import BuildFailed, ChildDied
from trtfuse.core.record import to_json
from trtfuse.core.specs import Array, EngineManifest, Precision, ShapeRange, TensorSpec
from trtfuse.gpu import builder
from trtfuse.gpu.runner import OpenTrt
from trtfuse.pool.spawn import run_in_child

ROOT = Path(__file__).parents[1]
QUESTION = "Do Q/DQ pairs give what TensorRT's own INT8 calibrator gives, in answers and in speed?"
ITEM = (3, 224, 224)
# The largest batch, which is the one that TensorRT calibrates with.
BATCH = 64
CALIBRATED, JUDGED = 4 * BATCH, BATCH
ENGINES = ("calibrator", "pairs", "cache")
BUILD_S = 170.0


def main() -> None:
    """Run one step."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("step", choices=list(STEPS))
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    given = arguments.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(100, repeat=True)  # a hang would be silent
    STEPS[given.step](given.work, given.results)


def graphs(work: Path, _: Path) -> None:
    """Export the network, keep the answers in FP32, measure ranges and write them as a cache."""
    import gpu_calibrator_ranges as ranges

    if not graph(work).exists():
        ranges.export(graph(work), inputs(2, seed=0))
    if not (work / "fp32.npy").exists():
        np.save(work / "fp32.npy", ranges.answers(graph(work), inputs(JUDGED, seed=2)))
    if not (work / "ours.cache").exists():
        amax = ranges.measured(graph(work), inputs(CALIBRATED, seed=1))
        cache.write(work / "ours.cache", amax, ranges.METHOD)
        print(f"{len(amax)} ranges", flush=True)


def build(work: Path, _: Path) -> None:
    """Build what is not there, each in a child with a limit."""
    for name, make in (("calibrator", calibrated), ("pairs", paired), ("cache", handed_on)):
        plan = work / about(work, name).engine
        if plan.exists():
            continue
        started = time.perf_counter()
        found = make(work, plan.with_suffix(".part"))
        plan.with_suffix(".part").replace(plan)
        keep(work, name, {"build_s": round(time.perf_counter() - started, 1), **found})


def calibrated(work: Path, plan: Path) -> dict[str, Any]:
    """TensorRT calibrates, and its cache is kept."""
    feed = inputs(CALIBRATED, seed=1).reshape(-1, BATCH, *ITEM)
    args = (about(work, "calibrator"), plan, feed, None, work / "tensorrt.cache")
    return run_in_child(implicit, *args, name="calibrator", timeout_s=BUILD_S)


def handed_on(work: Path, plan: Path) -> dict[str, Any]:
    """TensorRT is given our cache, and no input; once more with its own first line if it must."""
    ours, none = work / "ours.cache", np.empty((0, BATCH, *ITEM), np.float32)
    try:
        args = (about(work, "cache"), plan, none, ours, None)
        return run_in_child(implicit, *args, name="cache", timeout_s=BUILD_S)
    except (BuildFailed, ChildDied) as error:
        refused = str(error)
        print(f"cache: {refused}", flush=True)
    header = cache.read(work / "tensorrt.cache").header
    again = work / "ours-again.cache"
    again.write_text("\n".join([header, *ours.read_text().splitlines()[1:]]) + "\n")
    args = (about(work, "cache"), plan, none, again, None)
    found = run_in_child(implicit, *args, name="cache", timeout_s=BUILD_S)
    return {**found, "refused": refused, "accepted_header": header}


def paired(work: Path, plan: Path) -> dict[str, Any]:
    """TensorRT's cache as Q/DQ pairs, by what `trtfuse build --calibration-cache` calls."""
    from trtfuse.graph import model, precision, wiring

    source = model.load(graph(work))
    needs = precision.needs(source, Precision.INT8, rest=Precision.FP32)
    known = wiring.float_activations(wiring.copy(source))
    given = cache.read(work / "tensorrt.cache")
    fit = cache.fit(given, needed=needs.amax, known=known)
    written = precision.write(source, Precision.INT8, precision.Measured(amax=fit.amax))
    request = about(work, "pairs").request
    path = work / "pairs.onnx"
    model.save(written.model, path)
    build = functools.partial(builder.build, timings=work / TIMINGS)
    run_in_child(build, path, request, plan, DEVICE, name="pairs", timeout_s=BUILD_S)
    return {
        "cache_header": given.header,
        "cache_tensors": len(given.amax),
        "missing": list(fit.missing),
        "unknown": list(fit.unknown),
        "quantized_layers": len(written.quantized),
    }


def rates(work: Path, results: Path) -> None:
    """Compare the answers, time the engines in turns, write the result file."""
    expected, x = np.load(work / "fp32.npy"), inputs(JUDGED, seed=2)
    answers: dict[str, Array] = {}
    for name in ENGINES:
        if (work / about(work, name).engine).exists():
            answers[name] = engines.answers(opener(work, name), x, NETS["resnet50"])
    for name, got in answers.items():
        keep(work, name, {"against_fp32": difference(expected, got)})
        if name != "calibrator" and "calibrator" in answers:
            keep(work, name, {"against_calibrator": difference(answers["calibrator"], got)})
    seen: dict[str, list[float]] = {name: [] for name in answers}
    # In turns, so that a clock that drifts drifts for all.
    for _ in range(3):
        for name in answers:
            seen[name] += engines.device_rate(opener(work, name), BATCH)
    for name, values in seen.items():
        row: dict[str, Any] = {"items_per_s": to_json(spread(values))}
        if "calibrator" in seen:
            row["ratio"] = round(median(values) / median(seen["calibrator"]), 4)
        keep(work, name, row)
    rows = [{"engine": name, **row} for name, row in read(work).items()]
    write_result(
        results / "gpu_calibrator.json",
        question=QUESTION,
        conditions=conditions(
            **engines.machine(),
            net="ResNet-50, 224 x 224, float32 in and out, weights seeded",
            calibrated_on=f"{CALIBRATED} seeded inputs, batches of {BATCH}",
            judged_on=f"{JUDGED} others, FP32 by ONNX Runtime without optimizations",
            batch=BATCH,
            rounds=f"3 times {engines.ROUNDS} of {engines.ROUND_S} s, engines in turns",
            ratio="items/s over the calibrator's engine",
        ),
        rows=rows,
    )
    print(json.dumps(rows, indent=1))


def graph(work: Path) -> Path:
    """The network in FP32."""
    return work / "calibrator.onnx"


def about(work: Path, name: str) -> EngineManifest:
    """For batches of 1 to 64 of float32 pictures."""
    base = engines.manifest(work, NETS["resnet50"], Precision.INT8)
    shapes = ShapeRange(min=(1, *ITEM), opt=(BATCH, *ITEM), max=(BATCH, *ITEM))
    return replace(
        base,
        source=graph(work),
        engine=f"calibrator-{name}.plan",
        request=replace(base.request, profile=(("x", shapes),)),
        inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", *ITEM)),),
    )


def opener(work: Path, name: str) -> OpenTrt:
    """For an engine that `build` has made."""
    manifest = about(work, name)
    return OpenTrt(work / manifest.engine, manifest)


def inputs(count: int, *, seed: int) -> Array:
    """float32 (count, 3, 224, 224): the blocks of `gpu_engines.pictures`, normalised."""
    bytes_ = engines.pictures(NETS["resnet50"], count, seed)
    pixels = bytes_.transpose(0, 3, 1, 2).astype(np.float32)
    return np.ascontiguousarray((pixels / 255 - 0.5) / 0.25, np.float32)


def difference(expected: Array, got: Array) -> dict[str, float]:
    """SQNR in dB, cosine over all, the largest error of the largest value, equal first classes."""
    a, b = expected.astype(np.float64), got.astype(np.float64)
    noise = max(float(np.square(a - b).sum()), 1e-30)
    return {
        "sqnr_db": round(10 * float(np.log10(np.square(a).sum() / noise)), 2),
        "cosine": round(float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)), 6),
        "largest": round(float(np.abs(a - b).max() / np.abs(a).max()), 5),
        "same_top": float(np.mean(a.argmax(1) == b.argmax(1))),
    }


def keep(work: Path, name: str, more: Mapping[str, Any]) -> None:
    """Add to what is known of an engine, and print it."""
    found = read(work)
    found[name] = {**found.get(name, {}), **more}
    (work / "calibrator.json").write_text(json.dumps(found, indent=1))
    print(name, dict(more), flush=True)


def read(work: Path) -> dict[str, dict[str, Any]]:
    """What is known so far."""
    path = work / "calibrator.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


STEPS = {"graphs": graphs, "engines": build, "rates": rates}


if __name__ == "__main__":
    main()
