"""How fast are trtfuse's engines beside PyTorch, and how near does the pool come to the device?

On a machine with an NVIDIA GPU, PyTorch and TensorRT:

    python benchmarks/vs_pytorch.py graphs  WORK     ONNX files in FP32, FP16 and INT8, and answers
    python benchmarks/vs_pytorch.py torch   WORK     rates of PyTorch
    python benchmarks/vs_pytorch.py engines WORK     builds, one at a time
    python benchmarks/vs_pytorch.py rates   WORK     rates of TensorRT, and answers compared
    python benchmarks/vs_pytorch.py table   WORK     the table, the picture, the result file

The first two need PyTorch and ONNX Runtime, the others TensorRT, Polygraphy and PyCUDA; the two may
be different Pythons. Every step writes what it has as it goes, and keeps what is there already. An
engine that is not there is left out with a word; rates of PyTorch that were not measured now are
taken from the result file of the last time, and the table's file keeps the conditions of both.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_engines as engines
import numpy as np
from gpu_chart import bars
from gpu_engines import BATCHES, NETS, Net

from trtfuse.bench.report import conditions, spread, write_result
from trtfuse.core.errors import ChildDied
from trtfuse.core.record import to_json
from trtfuse.core.specs import Array, Precision
from trtfuse.gpu.runner import OpenTrt

ROOT = Path(__file__).parents[1]
QUESTION = "How fast are trtfuse's engines beside PyTorch, and how near is the pool to the device?"
LAST = ROOT / "benchmarks" / "results" / "vs_pytorch.json"
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8)
# In the order of the table and the picture.
PATHS = (
    "PyTorch eager TF32",
    "PyTorch eager FP16",
    "PyTorch compiled FP16",
    "TrtRunner.infer FP16",
    "trtfuse FP16",
    "device FP16",
    "trtfuse INT8",
    "device INT8",
)
JUDGED = 8  # pictures whose answers are compared
CALIBRATED = 8


@dataclass(frozen=True)
class Given:
    """What the command line says."""

    work: Path
    results: Path
    nets: tuple[Net, ...]
    precisions: tuple[Precision, ...]
    lanes: int | None


def main() -> None:
    """Run one step."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("step", choices=list(STEPS))
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--results", type=Path, default=LAST.parent)
    arguments.add_argument("--net", choices=list(NETS), help="this one alone")
    arguments.add_argument("--precision", choices=[one.value for one in PRECISIONS])
    arguments.add_argument("--lanes", type=int, help="rates: default: as trtfuse infer")
    said = arguments.parse_args()
    said.work.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(100, repeat=True)  # a hang would be silent
    given = Given(
        work=said.work,
        results=said.results,
        nets=(NETS[said.net],) if said.net else tuple(NETS.values()),
        precisions=(Precision(said.precision),) if said.precision else PRECISIONS,
        lanes=said.lanes,
    )
    STEPS[said.step](given)


def graphs(given: Given) -> None:
    """Export both nets in FP32, write FP16 and INT8 into the graph, keep ONNX Runtime's answers."""
    from gpu_export import answers, export, typed

    work = given.work
    for net in given.nets:
        plain = engines.graph_path(work, net, Precision.FP32)
        if not plain.exists():
            export(net, plain)
            np.save(work / f"{net.name}.npy", answers(plain, engines.pictures(net, JUDGED, 1)))
        seen = [engines.pictures(net, 1, seed) for seed in range(2, 2 + CALIBRATED)]
        for precision in PRECISIONS[1:]:
            path = engines.graph_path(work, net, precision)
            if not path.exists():
                print(f"{path.name}: {typed(plain, path, precision, seen)}", flush=True)


def torch(given: Given) -> None:
    """Rates of PyTorch, bytes on the device in and answers on the device out."""
    from gpu_torch import machine, rate

    work = given.work
    _write(work / "machine.json", _read(work / "machine.json") | machine())
    for net, batch, record in Cells(work / "torch.json", given.nets):
        for path in PATHS[:3]:
            record(path, rate, net, batch, path)


def build(given: Given) -> None:
    """Build what is not there."""
    seconds = _read(given.work / "engines.json")
    for net in given.nets:
        for precision in given.precisions:
            name = f"{net.name} {precision.value}"
            try:
                taken = engines.build(given.work, net, precision)
            except ChildDied as error:
                print(f"{name}: {error}", flush=True)
                continue
            if taken:
                seconds[name] = round(taken, 1)
                _write(given.work / "engines.json", seconds)
                print(f"{name}: built in {taken:.1f} s", flush=True)


def rates(given: Given) -> None:
    """Rates of TensorRT, and how far its answers are from ONNX Runtime's in FP32."""
    work = given.work
    _write(work / "machine.json", _read(work / "machine.json") | engines.machine())
    made = {
        (net.name, precision): engines.opener(work, net, precision, lanes=given.lanes)
        for net in given.nets
        for precision in given.precisions
    }
    for key, opened in list(made.items()):
        if not opened.engine.exists():
            print(f"{opened.engine.name}: not built, left out", flush=True)
            del made[key]
    _write(work / "lanes.json", {opened.engine.name: opened.lanes for opened in made.values()})
    _judge(given, made)
    for net, batch, record in Cells(work / "trt.json", given.nets):
        if half := made.get((net.name, Precision.FP16)):
            record("device FP16", engines.device_rate, half, batch)
            record("trtfuse FP16", engines.pool_rate, half, batch, net)
            record("TrtRunner.infer FP16", engines.naive_rate, half, batch, net)
        if whole := made.get((net.name, Precision.INT8)):
            record("device INT8", engines.device_rate, whole, batch)
            record("trtfuse INT8", engines.pool_rate, whole, batch, net)


def _judge(given: Given, made: dict[tuple[str, Precision], OpenTrt]) -> None:
    """How far the answers of each engine are from ONNX Runtime's."""
    quality = _read(given.work / "quality.json")
    for (name, precision), opened in made.items():
        x, expected = engines.pictures(NETS[name], JUDGED, 1), np.load(given.work / f"{name}.npy")
        got = engines.answers(opened, x, NETS[name])
        quality[f"{name} {precision.value}"] = difference(expected, got)
        _write(given.work / "quality.json", quality)


def difference(expected: Array, got: Array) -> dict[str, float]:
    """Of the largest value; and, for pictures, PSNR in dB, for scores the share of equal tops."""
    off = np.abs(expected.astype(np.float64) - got)
    row = {"largest": float(off.max() / np.abs(expected).max())}
    if expected.dtype == np.uint8:
        row["psnr_db"] = float(10 * np.log10(255**2 / max(np.mean(off**2), 1e-9)))
    else:
        row["same_top"] = float(np.mean(expected.argmax(1) == got.argmax(1)))
    return row


def table(given: Given) -> None:
    """Print the table and the ratios; write the result file and the picture."""
    work, last = given.work, _read(LAST)
    cells = _read(work / "torch.json") | _read(work / "trt.json")
    now = [
        {"net": net, "batch": batch, "path": path, "items_per_s": to_json(spread(cells[key]))}
        for net in NETS
        for batch in BATCHES
        for path in PATHS
        if (key := f"{net} {batch} {path}") in cells
    ]
    rows, earlier = now + kept(last, now), {}
    if len(rows) > len(now):
        earlier = {"conditions_of_earlier_rows": _first_conditions(last)}
    middle = {(r["net"], r["batch"], r["path"]): r["items_per_s"]["median"] for r in rows}
    ratios = reached(middle)
    judged = last["rows"]["against_onnxruntime_fp32"]
    quality = {name: row for name, row in judged.items() if name.endswith("fp32")}
    quality |= _read(work / "quality.json")
    show(middle, ratios, quality)
    write_result(
        given.results / LAST.name,
        question=QUESTION,
        conditions=conditions(**_read(work / "machine.json"), **_about(work), **earlier),
        rows={"rates": rows, "ratios": ratios, "against_onnxruntime_fp32": quality},
    )
    panels = [(net, batch) for net in NETS for batch in BATCHES]
    picture = bars(middle, panels, PATHS, columns=len(BATCHES))
    (given.results / "vs_pytorch.svg").write_text(picture, encoding="utf-8")


def kept(last: dict[str, Any], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rates of PyTorch in the last result file that were not measured again."""
    again = {(row["net"], row["batch"], row["path"]) for row in now}
    return [
        row | {"earlier": True}
        for row in last["rows"]["rates"]
        if row["path"].startswith("PyTorch")
        and (row["net"], row["batch"], row["path"]) not in again
    ]


def _first_conditions(last: dict[str, Any]) -> Any:
    """Those under which PyTorch was measured."""
    return last["conditions"].get("conditions_of_earlier_rows", last["conditions"])


def show(
    middle: dict[tuple[str, int, str], float],
    ratios: dict[str, float],
    quality: dict[str, dict[str, float]],
) -> None:
    """The tables, as text."""
    print(f"{'items/s':24}" + "".join(f"{net:>9} b{b:<2}" for net in NETS for b in BATCHES))
    for path in PATHS:
        values = (middle.get((net, batch, path)) for net in NETS for batch in BATCHES)
        print(f"{path:24}" + "".join(f"{v:13,.0f}" if v else f"{'-':>13}" for v in values))
    for name, value in ratios.items():
        print(f"{name:56} {value:6.2f}")
    for name, row in quality.items():
        print(f"{name:18} {', '.join(f'{k} {v:.4g}' for k, v in row.items())}")


def reached(middle: dict[tuple[str, int, str], float]) -> dict[str, float]:
    """The ratios that the benchmark is for, where both sides were measured."""
    found = {}
    for net in NETS:
        for name, batch, over, under in (
            ("FP16 over PyTorch eager FP16", 64, "trtfuse FP16", "PyTorch eager FP16"),
            ("FP16 over PyTorch compiled FP16", 64, "trtfuse FP16", "PyTorch compiled FP16"),
            ("INT8 over FP16, device", 64, "device INT8", "device FP16"),
            ("pool over device, FP16", 64, "trtfuse FP16", "device FP16"),
            ("pool over device, INT8", 64, "trtfuse INT8", "device INT8"),
            ("pool over TrtRunner.infer, FP16", 8, "trtfuse FP16", "TrtRunner.infer FP16"),
        ):
            a, b = middle.get((net, batch, over)), middle.get((net, batch, under))
            if a and b:
                found[f"{net} b{batch}: {name}"] = round(a / b, 3)
    return found


def _about(work: Path) -> dict[str, Any]:
    return {
        "nets": "ResNet-50 224 x 224 and U-Net 256 x 256, random weights, uint8 at the edges",
        "profile": {
            net.name: f"batch 1 to 64, best at {net.best}, optimization level {net.level}"
            for net in NETS.values()
        },
        "rounds": f"median of {engines.ROUNDS} of at least {engines.ROUND_S} s, after a warm-up",
        "device": "one context, CUDA graph, no copies, events",
        "trtfuse": "pool with one worker, pictures in the pinned ring, wall clock",
        "lanes": _read(work / "lanes.json"),
        "pytorch": "channels_last, cudnn.benchmark, bytes on the device, events; "
        "compiled with mode='reduce-overhead'",
        "against_onnxruntime_fp32": "FP32 engines that were not built now: as the earlier rows",
        "build_seconds": _read(work / "engines.json"),
    }


@dataclass(frozen=True)
class Cells:
    """Rates by net, batch and path, in a file; what is there is not measured again."""

    path: Path
    nets: tuple[Net, ...]

    def __iter__(self) -> Iterator[tuple[Net, int, Callable[..., None]]]:
        """Every net and batch, and how to measure a path of it: (path, function, *arguments)."""
        for net in self.nets:
            for batch in BATCHES:
                yield net, batch, functools.partial(self._record, f"{net.name} {batch}")

    def _record(self, key: str, name: str, measure: Callable[..., list[float]], *args: Any) -> None:
        cells = _read(self.path)
        if f"{key} {name}" in cells:
            return
        started = time.perf_counter()
        values = cells[f"{key} {name}"] = measure(*args)
        _write(self.path, cells)
        taken = time.perf_counter() - started
        print(f"{key} {name}: {np.median(values):,.0f} items/s ({taken:.0f} s)", flush=True)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1))


STEPS: dict[str, Callable[[Given], None]] = {
    "graphs": graphs,
    "torch": torch,
    "engines": build,
    "rates": rates,
    "table": table,
}

if __name__ == "__main__":
    main()
