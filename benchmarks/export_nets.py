"""Are PyTorch nets of the usual kinds exported, proven, and taken by TensorRT's own builder?

    python benchmarks/export_nets.py

The five nets of tests/graph/architectures.py, at their full size, go through `trtfuse export`; what
comes out is parsed and built by TensorRT-RTX, which needs no GPU for that. Writes
benchmarks/results/export_nets.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from trtfuse.bench.report import conditions, write_result
from trtfuse.core.record import to_json
from trtfuse.core.specs import BuildRequest, ModelSpec, Precision, ShapeRange
from trtfuse.gpu import builder
from trtfuse.graph.model import describe

ROOT = Path(__file__).parents[1]
QUESTION = "Are PyTorch nets exported, proven, and built by TensorRT's own builder?"

SHAPES = {
    "ResNet": ("3,224,224",),
    "UNet": ("3,256,256",),
    "ViT": ("3,224,224",),
    "Fusion": ("3,256,256", "512"),
    "SuperResolution": ("3,height,width",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One net."""

    net: str
    shapes: tuple[str, ...]
    mb: float
    exporter: str
    relative_difference: float
    export_s: float
    engine_mb: float
    build_s: float


def main() -> None:
    """Export, build, print, write the result file."""
    with TemporaryDirectory() as folder:
        rows = [row(net, shapes, Path(folder)) for net, shapes in SHAPES.items()]
    for one in rows:
        print(
            f"{one.net:16} {one.mb:6.1f} MB  {one.relative_difference:.1e}  {one.export_s:5.1f} s  "
            f"engine {one.engine_mb:6.1f} MB in {one.build_s:5.1f} s  {one.exporter}"
        )
    write_result(
        ROOT / "benchmarks" / "results" / "export_nets.json",
        question=QUESTION,
        conditions=conditions(
            tensorrt_rtx=version("tensorrt_rtx"),
            profile="batch 1 to 4, open sizes 32 to 64, all GPUs that RTX builds for",
            items="5 random ones, batches 1, 2, 5",
        ),
        rows=to_json(tuple(rows)),
    )


def row(net: str, shapes: tuple[str, ...], folder: Path) -> Row:
    """Export one net by the command, and build it."""
    path = folder / f"{net}.onnx"
    flags = [word for shape in shapes for word in ("--shape", shape)]
    words = ["-m", "trtfuse", "export", f"tests.graph.architectures:{net}", "-o", str(path), *flags]
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
    exported = time.perf_counter()
    report = json.loads(path.with_suffix(".export.json").read_text())
    builder.build(path, request(describe(path)), path.with_suffix(".plan"), "")
    size = path.with_suffix(".plan").stat().st_size
    return Row(
        net=net,
        shapes=shapes,
        mb=round(path.stat().st_size / 1e6, 2),
        exporter=next(note for note in report["notes"] if note.startswith("exported with")),
        relative_difference=max(
            one["relative"]
            for step in report["steps"]
            if step["kept"]
            for one in step["proof"]["differences"]
        ),
        export_s=round(exported - started, 1),
        engine_mb=round(size / 1e6, 2),
        build_s=round(time.perf_counter() - exported, 1),
    )


def request(model: ModelSpec) -> BuildRequest:
    """One engine of TensorRT-RTX: batches of 1 to 4, sizes of 32 to 64 where they are open."""
    ranges = {}
    for tensor in model.inputs:
        low, high = (
            (batch, *(size if isinstance(n, str) else n for n in tensor.shape[1:]))
            for batch, size in ((1, 32), (4, 64))
        )
        ranges[tensor.name] = ShapeRange(min=low, opt=high, max=high)
    return BuildRequest(
        model_sha256=model.sha256,
        precision=Precision.FP32,
        profile=tuple(ranges.items()),
        device_name="any",
        device_features="any",
        runtime="tensorrt_rtx",
        runtime_version=version("tensorrt_rtx"),
    )


if __name__ == "__main__":
    main()
