"""Does memory stay flat, and does everything opened get closed, over half an hour of runs?

    python benchmarks/soak.py --minutes 30

One process runs a folder of small pictures and videos through two workers, again and again, each
run some minutes long. Every five seconds it notes its own memory, descriptors and threads, its
workers' memory, and what of it lies in /dev/shm; and after every run what is left of that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import faces
import numpy as np
import psutil
from PIL import Image
from video_end_to_end import convolution, recorded

from trtfuse.bench.report import conditions, write_result
from trtfuse.build.build import build
from trtfuse.core.options import BuildOptions, InferOptions, WritingOptions
from trtfuse.core.record import to_json
from trtfuse.core.report import Progress
from trtfuse.infer import infer

SIZE = (96, 128)
# Pages that an allocator keeps, and caches that fill, are no leak; a leak of 2 KB an item is more.
FLAT_MIB = 16.0


@dataclass(frozen=True)
class Sample:
    """One look at this process and its children. Memory is resident, in MiB."""

    seconds: int
    run: int
    items: int
    parent_mib: float
    workers_mib: float
    descriptors: int
    threads: int
    shared_mib: float


@dataclass
class Watcher:
    """Takes a sample every `every_s` seconds while runs go on."""

    every_s: float = 5.0
    started: float = field(default_factory=time.monotonic)
    run: int = 0
    samples: list[Sample] = field(default_factory=list)

    def watch(self, progress: Progress) -> None:
        """To be called with every item."""
        if not self.samples or self.seconds - self.samples[-1].seconds >= self.every_s:
            self.samples.append(self.look(progress.done))

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.started

    def look(self, items: int) -> Sample:
        """How things are now."""
        me = psutil.Process()
        workers = [child for child in me.children() if "spawn_main" in " ".join(child.cmdline())]
        return Sample(
            seconds=round(self.seconds),
            run=self.run,
            items=items,
            parent_mib=round(me.memory_info().rss / 2**20, 1),
            workers_mib=round(sum(one.memory_info().rss for one in workers) / 2**20, 1),
            descriptors=me.num_fds(),
            threads=me.num_threads(),
            shared_mib=round(sum(path.stat().st_size for path in shared()) / 2**20, 1),
        )


def shared() -> list[Path]:
    """What of this process lies in /dev/shm."""
    return list(Path("/dev/shm").glob(f"trtfuse-{os.getpid()}-*"))


def main() -> None:
    """Run, look, judge, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--pictures", type=int, default=20_000, help="in one run")
    arguments.add_argument("--videos", type=int, default=8, help="in one run, of 600 frames")
    given = arguments.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_source(folder / "in", given.pictures, given.videos)
        model = convolution(folder / "soak.onnx", channels=8)
        engines = folder / "engines"
        build(
            BuildOptions(model=model, engines=engines, devices="cpu", sizes=(SIZE,) * 3),
            lambda _: None,
        )
        options = InferOptions(
            source=folder / "in",
            output=folder / "out",
            engines=engines,
            workers=2,
            writing=WritingOptions(segment=100),
        )
        watcher = Watcher()
        ends = [end_of_run(watcher, items=0)]
        while watcher.seconds < 60 * given.minutes:
            report = infer(options, watch=watcher.watch)
            assert not report.failures
            shutil.rmtree(folder / "out")
            ends.append(end_of_run(watcher, report.items))
            print(ends[-1], flush=True)
    verdict = judge(watcher.samples, ends)
    print(verdict)
    write_result(
        faces.ROOT / "benchmarks" / "results" / "soak.json",
        question="Is memory flat, and is everything closed, over half an hour of runs?",
        conditions=conditions(
            model="convolutions 3 to 8 to 3 channels, 96 x 128",
            run=f"{given.pictures} pictures and {given.videos} videos of 600 frames, two workers",
            minutes=given.minutes,
            flat=f"less than {FLAT_MIB} MiB more in the last third than in the second",
            load=f"{psutil.getloadavg()[0]:.1f} processes ready at the end, other work included",
        ),
        rows={
            **verdict,
            "after_runs": [to_json(end) for end in ends],
            "during_runs": [to_json(one) for one in watcher.samples[::6]],
        },
    )
    sys.exit(0 if verdict["flat"] and verdict["closed"] else 1)


def end_of_run(watcher: Watcher, items: int) -> Sample:
    """The look between two runs: nothing of the last may be left."""
    watcher.run += 1
    return watcher.look(items)


def judge(samples: Sequence[Sample], ends: Sequence[Sample]) -> dict[str, Any]:
    """Growth from the second to the last third of the time, and what was left after runs.

    The first third is warm-up: libraries load, allocators and caches fill.
    """
    third = samples[-1].seconds / 3
    parts = [
        [one for one in samples if one.seconds >= low and one.seconds < high]
        for low, high in ((third, 2 * third), (2 * third, 4 * third))
    ]
    growth = {
        name: round(
            median(getattr(one, name) for one in parts[1])
            - median(getattr(one, name) for one in parts[0]),
            1,
        )
        for name in ("parent_mib", "workers_mib", "descriptors", "threads")
    }
    # The first run loads libraries that keep a descriptor or a thread for good.
    after_first, *later = ends[1:]
    return {
        "items": sum(end.items for end in ends),
        "runs": len(ends) - 1,
        "growth": growth,
        "flat": max(growth["parent_mib"], growth["workers_mib"]) < FLAT_MIB,
        "closed": all(
            (end.descriptors, end.threads, end.shared_mib, end.workers_mib)
            == (after_first.descriptors, after_first.threads, 0.0, 0.0)
            for end in later
        ),
    }


def make_source(folder: Path, pictures: int, videos: int) -> None:
    """Links to a few files: what is read is the same, what is written is not."""
    folder.mkdir()
    photo = Image.open(faces.photo("astronaut.png")).convert("RGB")
    height, width = SIZE
    crops = [
        photo.crop((x, y, x + width, y + height))
        for x in range(0, 380, 20)
        for y in range(0, 400, 20)
    ]
    for n, crop in enumerate(crops[:40]):
        crop.save(folder / f"{n:06d}.png")
    for n in range(40, pictures):
        os.link(folder / f"{n % 40:06d}.png", folder / f"{n:06d}.png")
    frames = [np.asarray(crops[n % len(crops)]) for n in range(600)]
    recorded(folder / "v000.mp4", frames, WritingOptions())
    for n in range(1, videos):
        os.link(folder / "v000.mp4", folder / f"v{n:03d}.mp4")


if __name__ == "__main__":
    main()
