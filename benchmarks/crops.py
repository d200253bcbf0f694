"""Real photographs to calibrate and judge by: crops and flips of those that packages ship.

    python benchmarks/crops.py 64 folder/

The crops are chosen by a fixed seed, so that the same packages give the same pictures. A crop has a
third to all of its photograph's side, and every other one is mirrored.
"""

from __future__ import annotations

import argparse
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from PIL import Image

from trtfuse.core.specs import Array

# Six photographs of scikit-image and two of scikit-learn; astronaut and its like hold faces.
PHOTOS = {
    "scikit-image": ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "rocket.jpg"),
    "scikit-learn": ("china.jpg", "flower.jpg"),
}
# Every second crop is of the only photograph with a large face: ranges of a face detector are
# those of faces.
FACES = "astronaut.png"


def photograph(name: str) -> Array:
    """uint8 (height, width, 3)."""
    package = next(package for package, names in PHOTOS.items() if name in names)
    files = distribution(package).files or []
    (found,) = [Path(str(file.locate())) for file in files if file.name == name]
    with Image.open(found) as image:
        return np.asarray(image.convert("RGB"))


def crops(count: int, *, seed: int = 0, only: tuple[str, ...] = ()) -> list[Array]:
    """`count` crops, uint8 (height, width, 3), of any size."""
    random = np.random.default_rng(seed)
    names = only or tuple(name for group in PHOTOS.values() for name in group)
    made = []
    for number in range(count):
        faces = not only and number % 2 == 0
        pixels = photograph(FACES if faces else names[int(random.integers(len(names)))])
        height, width = (int(side * random.uniform(1 / 3, 1)) for side in pixels.shape[:2])
        top = int(random.integers(pixels.shape[0] - height + 1))
        left = int(random.integers(pixels.shape[1] - width + 1))
        crop = pixels[top : top + height, left : left + width]
        made.append(crop[:, ::-1] if random.random() < 0.5 else crop)
    return made


def tensors(count: int, size: int, *, seed: int = 0) -> Array:
    """Crops as float32 (count, 3, size, size), 0 to 1."""
    made = [
        np.asarray(Image.fromarray(np.ascontiguousarray(one)).resize((size, size)), np.float32)
        for one in crops(count, seed=seed)
    ]
    return np.asarray(np.stack(made).transpose(0, 3, 1, 2) / np.float32(255))


def write(count: int, folder: Path, *, seed: int = 0) -> Path:
    """Crops as PNG files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(crops(count, seed=seed)):
        Image.fromarray(np.ascontiguousarray(one)).save(folder / f"{number:03d}.png")
    return folder


def main() -> None:
    """Write a folder of crops."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    print(f"{given.count} crops in {write(given.count, given.folder)}")


if __name__ == "__main__":
    main()
