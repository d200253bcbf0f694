"""Are the results the same bytes with one worker, with three, and with workers killed on the way?

    python benchmarks/same_bytes.py

Runs `trtfuse infer` with CenterFace over 2,000 variations (seeded crops, flips, brightness) of real
photographs, three times: with one worker, with three, and with two of which one is killed by
SIGKILL three times. Compares the bytes of results.jsonl, and that there is one line a picture, in
input order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import faces
import psutil
from PIL import Image, ImageEnhance, ImageOps

from trtfuse.bench.report import conditions, write_result

PHOTOS = ("astronaut.png", "camera.png", "coffee.png", "chelsea.png", "china.jpg", "flower.jpg")


@dataclass(frozen=True)
class Run:
    """One run: its name, its flags, and at which shares of the items a worker is killed."""

    name: str
    flags: tuple[str, ...]
    kills: tuple[float, ...] = ()


RUNS = (
    Run("one worker", ("--workers", "1")),
    Run("three workers", ("--workers", "3")),
    Run("two workers, three kills", ("--workers", "2"), (0.1, 0.4, 0.7)),
)


def main() -> None:
    """Make the pictures, run three times, compare, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--count", type=int, default=2000)
    count = arguments.parse_args().count
    with TemporaryDirectory() as name:
        folder = Path(name)
        engine = faces.engine(folder)
        make_pictures(folder / "photos", count)
        keys = sorted(path.name for path in (folder / "photos").iterdir())
        rows = [measure(folder, engine.folder.parents[1], run, keys) for run in RUNS]
    same = len({row["results_sha256"] for row in rows}) == 1
    for row in rows:
        print(row)
    print("the same bytes in all runs" if same else "DIFFERENT bytes")
    write_result(
        faces.ROOT / "benchmarks" / "results" / "same_bytes.json",
        question="Do workers and deaths change the bytes of results.jsonl?",
        conditions=conditions(
            model="CenterFace 512 x 512, fp32", pictures=count, sizes="256 to 640 pixels", seed=0
        ),
        rows={"same_bytes": same, "runs": rows},
    )
    sys.exit(0 if same else 1)


def make_pictures(folder: Path, count: int) -> None:
    """`count` seeded variations of the photographs, all distinct."""
    folder.mkdir()
    dice = random.Random(0)
    photos = [Image.open(faces.photo(name)).convert("RGB") for name in PHOTOS]
    for n in range(count):
        whole = photos[n % len(photos)]
        side = dice.randint(256, min(whole.size))
        left, top = (dice.randint(0, size - side) for size in whole.size)
        picture = whole.crop((left, top, left + side, top + side))
        if dice.random() < 0.5:
            picture = ImageOps.mirror(picture)
        picture = ImageEnhance.Brightness(picture).enhance(dice.uniform(0.6, 1.3))
        picture.save(folder / f"{n:05d}.jpg", quality=90)


def measure(folder: Path, engines: Path, run: Run, keys: list[str]) -> dict[str, object]:
    """Run once; kill as planned; what came out."""
    output = folder / run.name.replace(" ", "-")
    words = ["infer", str(folder / "photos"), "-o", str(output), "--engines", str(engines)]
    process = subprocess.Popen(
        [sys.executable, "-m", "trtfuse", *words, *run.flags], stdout=subprocess.DEVNULL
    )
    for share in run.kills:
        wait_for_lines(process, output / "results.jsonl.part", int(share * len(keys)))
        kill_a_worker(process.pid)
    code = process.wait()
    text = (output / "results.jsonl").read_text()
    found = [json.loads(line)["key"] for line in text.splitlines()]
    report = json.loads((output / "run.json").read_text())
    return {
        "run": run.name,
        "exit_code": code,
        "items": report["items"],
        "failed": len(report["failures"]),
        "deaths": sum(len(device["deaths"]) for device in report["devices"]),
        "one_line_each_in_input_order": found == keys,
        "faces": text.count('"label"'),
        "seconds": report["seconds"],
        "results_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def wait_for_lines(process: subprocess.Popen[bytes], path: Path, lines: int) -> None:
    """Until so many results are there."""
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with {process.returncode} before {lines} lines")
        time.sleep(0.02)


def kill_a_worker(parent: int) -> None:
    """SIGKILL the first worker of the run."""
    children = psutil.Process(parent).children()
    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    os.kill(workers[0].pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
