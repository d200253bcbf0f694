"""What `scaling.py` runs: models with cards, folders of pictures, engines by `trtfuse build`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from trtfuse.build.build import build
from trtfuse.core.card import Card, ClassifyTask, ImageTask, InputCard
from trtfuse.core.options import BuildOptions, CalibrationOptions, InferOptions
from trtfuse.core.specs import Array, Precision, TrtSettings
from trtfuse.graph import model as files

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Model:
    """A network of `gpu_nets`: bytes (n, size, size, 3) in."""

    name: str
    size: int
    batch: int
    width: int = 48
    level: int = 3
    """TensorRT's optimization level."""

    @property
    def words(self) -> list[str]:
        """For the command line of `scaling_torch.py`."""
        return [self.name, str(self.size), str(self.batch), str(self.width)]

    def card(self) -> Card:
        """Pictures of its size, as they are."""
        size = (self.size, self.size)
        given: dict[str, Any] = {"layout": "NHWC", "colour": "RGB", "range": (0.0, 255.0)}
        first = InputCard(name="x", size=size, resize="stretch", **given)
        if self.name == "unet":
            return Card(input=first, task=ImageTask(name="image", output="y", **given))
        labels = tuple(f"class {n}" for n in range(1000))
        task = ClassifyTask(name="classify", output="y", labels=labels, scores="logits")
        return Card(input=first, task=task)

    def pictures(self, count: int, seed: int = 0) -> Array:
        """Noise in blocks of 8 x 8, so that networks and encoders see something."""
        shape = (count, self.size // 8, self.size // 8, 3)
        blocks = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
        return blocks.repeat(8, axis=1).repeat(8, axis=2)


@dataclass(frozen=True)
class Kind:
    """A kind of devices, and what is measured on it."""

    name: str
    models: tuple[Model, ...]
    precisions: tuple[Precision, ...]

    def first(self, count: int, instances: int = 1) -> dict[str, Any]:
        """Options of the first `count` devices, with so many workers on each.

        Workers on CPUs are devices themselves: they share the cores.
        """
        if self.name == "cpu":
            return {"devices": f"cpu:{count * instances}"}
        return {"gpus": ",".join(map(str, range(count))), "workers": instances}


KINDS = {
    "gpu": Kind(
        "gpu",
        # At level 3, one precision of the U-Net took more than three minutes.
        (Model("resnet50", 224, 64), Model("unet", 256, 16, level=2)),
        (Precision.FP16, Precision.INT8),
    ),
    # Small, to try everything in a minute.
    "cpu": Kind("cpu", (Model("unet", 64, 8, 8),), (Precision.FP32, Precision.INT8)),
}


def prepare(work: Path, model: Model, torch: str) -> None:
    """Write the ONNX file with its card, and pictures that INT8 may rest on."""
    path = onnx_path(work, model)
    if path.exists():
        return
    part = path.with_suffix(".part")
    run_torch([torch, str(HERE / "scaling_torch.py"), "graph", *model.words, "--onnx", str(part)])
    graph = files.load(part)
    files.put_card(graph, model.card())
    files.save(graph, path)
    part.unlink()
    folder(calibration_path(work, model), model, 64)


def run_torch(words: Sequence[str]) -> str:
    """What a command of the Python that has PyTorch prints.

    Where that is another one than this, packages and libraries of this one would break it.
    """
    environment = dict(os.environ)
    if words[0] != sys.executable:
        environment.pop("LD_LIBRARY_PATH", None)
        environment["PYTHONPATH"] = str(HERE.parent)
    done = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE, env=environment
    )
    return done.stdout


def onnx_path(work: Path, model: Model) -> Path:
    """The ONNX file."""
    return work / f"{model.name}.onnx"


def calibration_path(work: Path, model: Model) -> Path:
    """The pictures that INT8 rests on."""
    return work / f"{model.name}-calibration"


def folder(path: Path, model: Model, count: int) -> Path:
    """A folder of so many JPEG files, made unless it is there."""
    if not path.exists():
        part = path.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        for n in range(count):
            Image.fromarray(model.pictures(1, seed=n)[0]).save(part / f"{n:06d}.jpg", quality=90)
        part.rename(path)
    return path


def engines(
    work: Path, kind: Kind, model: Model, count: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Build for the first `count` devices; how many devices that took how many builds."""
    found = {}
    for precision in kind.precisions:
        chosen = {"devices": "cpu"} if kind.name == "cpu" else {"gpus": kind.first(count)["gpus"]}
        options = BuildOptions(
            model=onnx_path(work, model),
            engines=work / "engines",
            batch=(1, model.batch, model.batch),
            precision=precision,
            # Random weights: their answers mean nothing, so no gate can hold them to anything.
            calibration=CalibrationOptions(
                data=calibration_path(work, model), gate=False, ranges=work / "ranges"
            ),
            settings=TrtSettings(optimization_level=model.level),
            **chosen,
        )
        outcomes = build(options, say).outcomes
        found[precision.value] = {
            "devices": sum(one.devices for one in outcomes),
            "builds": len(outcomes),
            "seconds": round(max(one.seconds for one in outcomes), 1),
        }
    return found


def running(
    work: Path, model: Model, precision: Precision, *, source: Path | None = None, **chosen: Any
) -> InferOptions:
    """Options of a run on these devices; without `source`, of one that gets arrays."""
    return InferOptions(
        source=source or work,
        engines=work / "engines",
        model=model.name,
        precision=precision,
        memory_bytes=8 << 30,
        batch=model.batch,
        **chosen,
    )
