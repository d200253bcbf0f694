"""Small graphs, written to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtfuse.core import card as cards
from trtfuse.core.card import Card
from trtfuse.core.specs import Array

Shape = Sequence[int | str]


def line(
    path: Path, *, slope: float = 2.0, offset: float = 1.0, shape: Shape = ("batch", 4)
) -> Path:
    """y = slope x + offset, on x float32 (batch, 4). All have the same number of bytes."""
    columns = [int(size) for size in shape[1:]]
    nodes = [
        helper.make_node("Mul", ["x", "slope"], ["scaled"]),
        helper.make_node("Add", ["scaled", "offset"], ["y"]),
    ]
    weights = {
        "slope": np.full(columns, slope, np.float32),
        "offset": np.full(columns, offset, np.float32),
    }
    return _save(nodes, weights, (shape, shape), path)


def line_for_one_item(path: Path) -> Path:
    """The same as `line`, but a size in it is fixed: loads, and runs at batch 1 alone."""
    model = onnx.load(str(line(path)))
    model.graph.initializer.add().CopyFrom(numpy_helper.from_array(np.array([1, 4]), "one_item"))
    model.graph.node[1].output[0] = "any"
    model.graph.node.add().CopyFrom(helper.make_node("Reshape", ["any", "one_item"], ["y"]))
    onnx.save(model, str(path))
    return path


def mixing(path: Path) -> Path:
    """y = x less the mean of its batch: an item's answer depends on the others. (batch, 4)."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    return _save(nodes, {}, (("batch", 4), ("batch", 4)), path)


def line_with_side_file(path: Path) -> Path:
    """The same as `line` on (batch, 64), its weights in `<name>.onnx.data`.

    64, since ONNX Runtime takes tensors of up to 127 bytes out of the side file by itself.
    """
    model = onnx.load(str(line(path, shape=("batch", 64))))
    onnx.save(
        model,
        str(path),
        save_as_external_data=True,
        location=f"{path.name}.data",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


def picture(path: Path, *, size: Shape, seed: int = 0, card: Card | None = None) -> Path:
    """Two 3x3 convolutions, 3 to 16 to 3 channels, on x float32 (batch, 3, *size)."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["y"], pads=[1] * 4),
    ]
    weights = {
        "w0": rng.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "w1": rng.standard_normal((3, 16, 3, 3)).astype(np.float32),
    }
    shape: Shape = ["batch", 3, *size]
    return _save(nodes, weights, (shape, shape), path, card)


def _save(
    nodes: list[onnx.NodeProto],
    weights: dict[str, Array],
    shapes: tuple[Shape, Shape],
    path: Path,
    card: Card | None = None,
) -> Path:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    )
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", [x], [y], stored)
    # Opset 17 with IR 8: what `trtfuse export` writes.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if card:
        helper.set_model_props(model, {cards.METADATA_KEY: cards.dumps(card)})
    onnx.save(model, str(path))
    return path
