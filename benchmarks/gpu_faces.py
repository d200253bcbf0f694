"""The commands of trtfuse, typed one after the other by somebody with a GPU, on real photographs.

    python benchmarks/gpu_faces.py prepare WORK     the model, photographs, the CPU's boxes; no GPU
    python benchmarks/gpu_faces.py run WORK         every command on cuda:0, and what must be true

The first needs the packages of the demo (`make demo`); WORK/faces, some megabytes, may then be
carried elsewhere. Each command has a limit and a log of its own in the folder of --logs; one that
fails does not stop the others. The boxes of FP16 are held against those of the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtfuse.bench.report import conditions, write_result

ROOT = Path(__file__).parents[1]
QUESTION = "Does a face detector's FP16 engine on a GPU give the CPU's boxes on real photographs?"
# Seconds a command may take.
LIMIT_S = {"build": 160.0, "bench": 90.0}
OTHERS_S = 60.0
# Of the differences of a box, in pixels of the photograph.
MOST_PX = 1.0


@dataclass(frozen=True)
class Step:
    """One command, the code it has to end with, words that have to be in what it prints."""

    name: str
    words: tuple[str, ...]
    code: int = 0
    said: str = ""


def main() -> None:
    """Run one step."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("step", choices=["prepare", "run"])
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    arguments.add_argument("--logs", type=Path)
    arguments.add_argument("--gpus", default="0", help="empty: the CPU, to try the rest")
    given = arguments.parse_args()
    folder = given.work / "faces"
    if given.step == "prepare":
        prepare(folder)
        return
    logs = given.logs or folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    sys.exit(run(folder, logs, given.results, given.gpus))


def prepare(folder: Path) -> None:
    """The exported model with its card, eight photographs, and the CPU's results."""
    folder.mkdir(parents=True, exist_ok=True)
    faces = ROOT / "examples" / "faces"
    source, model, photos = folder / "centerface.onnx", folder / "face.onnx", folder / "photos"
    engines, output = folder / "engines-cpu", folder / "out-cpu"
    subprocess.run([sys.executable, faces / "photos.py", photos, "--model", source], check=True)
    for words in (
        ("export", source, "--card", faces / "card.json", "-o", model),
        ("build", model, "--devices", "cpu", "--engines", engines),
        ("infer", photos, "-o", output, "--engines", engines, "--devices", "cpu", "--restart"),
    ):
        subprocess.run([sys.executable, "-m", "trtfuse", *map(str, words)], check=True)
    shutil.copyfile(output / "results.jsonl", folder / "cpu.jsonl")
    for left in (engines, output):
        shutil.rmtree(left)
    source.unlink()


def steps(gpus: str) -> tuple[Step, ...]:
    """What is typed, in the folder of the photographs."""
    on = ("--gpus", gpus) if gpus else ("--devices", "cpu")
    level = ("--optimization-level", "2") if gpus else ()
    precision = ("--precision", "fp16" if gpus else "fp32")
    build = ("build", "face.onnx", *precision, *on, *level)
    infer = ("infer", "photos", *on, "--restart")
    short = ("--repeats", "3", "--seconds", "0.3")
    alone = (Step("graphless", (*infer, "-o", "out-graphless", "--no-cuda-graph"), said="OK"),)
    auto = (Step("auto", (*infer, "-o", "out-auto", "--instances", "auto"), said="OK"),)
    return (
        Step("doctor", ("doctor",)),
        Step("build", build, said="built in"),
        Step("again", build, said="up to date"),
        Step("inspect", ("inspect", "engines"), said="1 of 1 engines run here"),
        Step("infer", (*infer, "-o", "out", "--report", "html"), said="OK 8 items, 0 failed"),
        Step("verify", ("verify", "out")),
        Step("two", (*infer, "-o", "out-two", "--instances", "2"), said="OK 8 items, 0 failed"),
        *(alone if gpus else ()),
        *(auto if gpus else ()),
        Step("bench", ("bench", "face", *on, "--batch", "1,8", *short), said="items/s"),
        Step("cut", (*infer, "-o", "out-cut", "--engines", "engines-cut"), 3, "is cut short"),
        Step("nowhere", ("infer", "photos", "--gpus", "99"), 2 if gpus else 4, "99"),
    )


def run(folder: Path, logs: Path, results: Path, gpus: str) -> int:
    """Type everything; how many commands did otherwise than they should."""
    for left in folder.glob("out*"):
        shutil.rmtree(left)
    shutil.rmtree(folder / "engines", ignore_errors=True)
    wrong, taken = 0, {}
    for step in steps(gpus):
        if step.name == "cut":
            cut_short(folder)
        began = time.perf_counter()
        code, said = typed(folder, step, logs / f"user-{step.name}.log")
        taken[step.name] = round(time.perf_counter() - began, 1)
        right = code == step.code and step.said in said
        wrong += not right
        last = (said.strip().splitlines() or [""])[-1]
        mark = "as it should" if right else f"NOT AS IT SHOULD (wanted {step.code}: {step.said!r})"
        print(f"{taken[step.name]:6.1f} s  {step.name:9} exit {code}, {mark}: {last}", flush=True)
    return wrong + compared(folder, results, taken, gpus)


def typed(folder: Path, step: Step, log: Path) -> tuple[int, str]:
    """Exit code and output of one command."""
    words = [sys.executable, "-m", "trtfuse", *step.words]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with log.open("w") as file:
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                check=False,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "COLUMNS": "160"},
                timeout=LIMIT_S.get(step.words[0], OTHERS_S),
            )
        except subprocess.TimeoutExpired as error:
            file.write(f"\n{error}\n")
            return 124, str(error)
    return done.returncode, log.read_text()


def cut_short(folder: Path) -> None:
    """A copy of the engines, with half of the file that a runtime loads."""
    copies = folder / "engines-cut"
    shutil.rmtree(copies, ignore_errors=True)
    if not (folder / "engines").exists():
        return
    shutil.copytree(folder / "engines", copies)
    for path in copies.glob("*/*/engine.*"):
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)


def compared(folder: Path, results: Path, taken: dict[str, float], gpus: str) -> int:
    """Boxes against the CPU's, bytes between the runs; 1 where they are not as they should be."""
    expected = lines(folder / "cpu.jsonl")
    if not (folder / "out" / "results.jsonl").exists():
        print("no results to compare")
        return 1
    got = lines(folder / "out" / "results.jsonl")
    same = {
        name: (folder / f"out-{name}" / "results.jsonl").read_bytes()
        == (folder / "out" / "results.jsonl").read_bytes()
        for name in ("two", "graphless", "auto")
        if (folder / f"out-{name}" / "results.jsonl").exists()
    }
    off = {
        what: largest(expected, got, read)
        for what, read in (("box", lambda one: [one["box"]]), ("landmark", landmarks))
    }
    print(f"largest difference from the CPU, px: {off}; the same bytes as one worker: {same}")
    if gpus:
        from gpu_engines import machine

        write_result(
            results / "gpu_faces.json",
            question=QUESTION,
            conditions=conditions(
                **machine(),
                model="CenterFace 512 x 512",
                commands=[" ".join(("trtfuse", *step.words)) for step in steps(gpus)],
                command_seconds=taken,
                expected="ONNX Runtime, FP32, on a CPU, the same photographs",
            ),
            rows={
                "largest_box_difference_px": off["box"],
                "largest_landmark_difference_px": off["landmark"],
                "same_bytes_as_one_worker": same,
                "faces": {one["key"]: len(one["detections"]) for one in got},
                "gpu": got,
                "cpu": expected,
            },
        )
    return int(max(off.values()) > MOST_PX or not all(same.values()))


def lines(path: Path) -> list[dict[str, Any]]:
    """The items of results.jsonl."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def landmarks(one: dict[str, Any]) -> list[list[float]]:
    """Of one detection."""
    found: list[list[float]] = one["landmarks"]
    return found


def largest(
    expected: list[dict[str, Any]],
    got: list[dict[str, Any]],
    read: Callable[[dict[str, Any]], list[list[float]]],
) -> float:
    """The largest difference of a coordinate; infinite where another number of faces was found."""
    if [(a["key"], len(a["detections"])) for a in expected] != [
        (b["key"], len(b["detections"])) for b in got
    ]:
        return float("inf")
    pairs = [
        (x, y)
        for a, b in zip(expected, got, strict=True)
        for one, other in zip(a["detections"], b["detections"], strict=True)
        for p, q in zip(read(one), read(other), strict=True)
        for x, y in zip(p, q, strict=True)
    ]
    return round(max((abs(x - y) for x, y in pairs), default=0.0), 3)


if __name__ == "__main__":
    main()
