"""How fast do pictures reach a model: DataLoader, memmap with prefetching, trtfuse's feeders?

    python benchmarks/loading.py [--pictures 512]

The same command on a CPU and on a GPU machine: batches end in host memory, or on the GPU where
PyTorch has one (from pinned memory then). JPEGs of 640 x 480 become float32 of 3 x 256 x 256. A
memmap holds pictures that are decoded and resized already; making it is a row of its own, since it
is what the next row leaves out. Claims to be held against: DataLoader 120, memmap and prefetching
580 pictures/s.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faces
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from turns import Path as Way
from turns import in_turn, steady, table

from trtfuse.bench.report import conditions, write_result
from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.cores import usable_cores
from trtfuse.core.flow import (
    Answer,
    Attached,
    Claim,
    Codec,
    Entry,
    Geometry,
    Item,
    Outcome,
    Pending,
    Picture,
    Timing,
)
from trtfuse.core.specs import Array, Arrays, TensorSpec
from trtfuse.io.opening import open_source
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import Largest, Ring, created, lay_out
from trtfuse.pool.stream import Stream, Threads
from trtfuse.tasks.table import codec
from trtfuse.testing import FakePending

QUESTION = "How many pictures a second reach a model, by the ways people load them and by ours?"
ON_GPU = torch.cuda.is_available()
SIZE = 256
PHOTOS = ("astronaut.png", "coffee.png", "chelsea.png", "china.jpg", "flower.jpg")


def main() -> None:
    """Make the pictures, measure, print, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pictures", type=int, default=256)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--workers", type=int, default=usable_cores())
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    load = os.getloadavg()[0]
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_pictures(folder / "photos", given.pictures)
        files = sorted((folder / "photos").iterdir())
        memmap(files, folder / "pictures.npy")
        with feeders(folder / "photos", given.batch) as ours:
            paths = {
                "DataLoader": loader(Files(files), given.batch, 0),
                f"DataLoader, {given.workers} workers": loader(
                    Files(files), given.batch, given.workers
                ),
                "memmap, prefetched": loader(
                    Mapped(folder / "pictures.npy"), given.batch, given.workers
                ),
                "making the memmap": steady(lambda: memmap(files, folder / "again.npy")),
                "trtfuse feeders": ours,
            }
            # Each way goes through all pictures once a turn: starting workers is part of it.
            rates = in_turn(paths, repeats=given.repeats, seconds=0.0)
    name = "loading_gpu.json" if ON_GPU else "loading.json"
    write_result(
        faces.ROOT / "benchmarks" / "results" / name,
        question=QUESTION,
        conditions=conditions(
            pictures=f"{given.pictures} JPEGs of 640 x 480, cached by the system",
            batch=given.batch,
            workers=given.workers,
            to=torch.cuda.get_device_name() if ON_GPU else "host memory",
            load_before=round(load, 2),
            turns=f"{given.repeats} passes over all pictures, in rotation, after one to warm up",
            claims="DataLoader 120, memmap and prefetching 580 pictures/s, machine not said",
        ),
        rows=table(rates, over="DataLoader"),
    )


def make_pictures(folder: Path, count: int) -> None:
    """`count` seeded crops of real photographs."""
    folder.mkdir()
    dice = random.Random(0)
    photos = [Image.open(faces.photo(name)).convert("RGB") for name in PHOTOS]
    for n in range(count):
        whole = photos[n % len(photos)]
        side = dice.randint(200, min(whole.size))
        left, top = (dice.randint(0, size - side) for size in whole.size)
        crop = whole.crop((left, top, left + side, top + side)).resize((640, 480))
        crop.save(folder / f"{n:05d}.jpg", quality=90)


def decoded(file: Path) -> Array:
    """uint8 (SIZE, SIZE, 3), as people decode."""
    return np.asarray(
        Image.open(file).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    )


def as_input(pixels: Array) -> torch.Tensor:
    """float32 (3, SIZE, SIZE), 0 to 1."""
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous().float().div_(255)


class Files(Dataset[torch.Tensor]):
    """Decodes a file for each item."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, n: int) -> torch.Tensor:
        return as_input(decoded(self.files[n]))


class Mapped(Dataset[torch.Tensor]):
    """Reads items that are decoded already from a memory-mapped file."""

    def __init__(self, path: Path) -> None:
        self.pixels: Array = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, n: int) -> torch.Tensor:
        return as_input(self.pixels[n])


def memmap(files: list[Path], path: Path) -> int:
    """Decode every file into a memory-mapped array; how many."""
    shape = (len(files), SIZE, SIZE, 3)
    pixels = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    for n, file in enumerate(files):
        pixels[n] = decoded(file)
    pixels.flush()
    return len(files)


def loader(pictures: Any, batch: int, workers: int) -> Way:
    """One pass of a DataLoader, its batches brought to the device."""

    def run() -> int:
        items = 0
        for x in DataLoader(pictures, batch, num_workers=workers, pin_memory=ON_GPU):
            if ON_GPU:
                x.cuda(non_blocking=True)
            items += len(x)
        return items

    return steady(run, torch.cuda.synchronize if ON_GPU else lambda: None)


class Taker:
    """A runner that takes a batch, brings it to the GPU if there is one, and answers nothing."""

    lanes = 1
    inputs = (TensorSpec(name="x", dtype="float32", shape=("batch", 3, SIZE, SIZE)),)
    outputs = (TensorSpec(name="y", dtype="float32", shape=("batch", 1)),)

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """At once."""
        if ON_GPU:
            torch.from_numpy(inputs["x"]).cuda()
        claim("y", (len(inputs["x"]), 1))[:] = 0
        return FakePending(Timing())

    @contextmanager
    def __call__(self, device: str, ring: Array) -> Iterator[Taker]:
        """Open itself; pin the ring as an engine's runner does."""
        if ON_GPU:
            cuda: Any = torch.cuda
            cuda.cudart().cudaHostRegister(ring.ctypes.data, ring.nbytes, 0)
        yield self


@dataclass(frozen=True)
class OneWay:
    """A codec whose answers say nothing: what is measured is the way in."""

    inner: Codec

    def fit(self, height: int, width: int) -> Geometry:
        """As the card says."""
        return self.inner.fit(height, width)

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """As the card says."""
        return self.inner.shape(geometry)

    def encode(self, picture: Picture, geometry: Geometry, into: Array) -> None:
        """As the card says."""
        self.inner.encode(picture, geometry, into)

    def decode(self, outputs: Arrays, geometry: Geometry) -> Answer:
        """Nothing."""
        return Answer()


class Nowhere:
    """A sink that keeps nothing."""

    def store(self, item: Item, attached: Attached, answer: Answer) -> Entry:
        """Nothing."""
        return Entry(line=None)

    def commit(self, outcome: Outcome) -> Outcome:
        """As it came."""
        return outcome


@contextmanager
def feeders(folder: Path, batch: int) -> Iterator[Way]:
    """One pass of trtfuse's own source, feeders, ring and pool, as `infer` has them."""
    card = Card(
        input=InputCard(
            name="x", layout="NCHW", colour="RGB", range=(0.0, 1.0), size=(SIZE, SIZE),
            resize="stretch",
        ),
        task=ImageTask(name="image", output="y", layout="NCHW", colour="RGB", range=(0.0, 1.0)),
    )  # fmt: skip
    threads = usable_cores()
    layout = lay_out(
        [Largest(spec=Taker.inputs[0], item=(3, SIZE, SIZE))],
        [Largest(spec=Taker.outputs[0], item=(1,))],
        batch=batch,
        wanted=2 * threads + 2,
        memory_bytes=1 << 30,
    )
    seat = Seat(device="cpu:0", open_runner=Taker())
    with created(layout) as ring, Pool([seat], ring) as pool:
        yield steady(_pass(folder, OneWay(codec(card)), pool, ring, threads))


def _pass(folder: Path, meaning: Codec, pool: Pool, ring: Ring, threads: int) -> Callable[[], int]:
    def run() -> int:
        with Stream(open_source(folder), meaning, Nowhere(), pool, ring) as stream:
            items = sum(1 for _ in stream.run(Threads(feeders=threads, writers=1)))
        # What told the threads of this pass to end would end those of the next.
        while not pool.results.empty():
            pool.results.get()
        return items

    return run


if __name__ == "__main__":
    main()
