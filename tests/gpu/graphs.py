"""Small graphs whose answers NumPy can tell, written to files as `trtfuse export` would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtfuse.core.specs import Array

Shape = Sequence[int | str]


def line(path: Path, *, items: int = 4) -> Path:
    """y = 2 x + 1, float32 (batch, items)."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["scaled"]),
        helper.make_node("Add", ["scaled", "one"], ["y"]),
    ]
    weights = {"two": np.array([2], np.float32), "one": np.array([1], np.float32)}
    return _save(path, nodes, weights, ["batch", items])


def picture(path: Path) -> Path:
    """Two 3x3 convolutions, 3 to 16 to 3 channels, float32 (batch, 3, height, width)."""
    return _save(path, _convolutions("x", "y"), _kernels(np.float32), _PICTURES)


def half(path: Path) -> Path:
    """`picture` in float16 between casts; inputs and outputs stay float32."""
    nodes = [
        helper.make_node("Cast", ["x"], ["in"], to=TensorProto.FLOAT16),
        *_convolutions("in", "out"),
        helper.make_node("Cast", ["out"], ["y"], to=TensorProto.FLOAT),
    ]
    return _save(path, nodes, _kernels(np.float16), _PICTURES)


def quantized(path: Path) -> Path:
    """`picture` with int8 weights and activations, as Q/DQ pairs."""
    nodes, weights = [], _kernels(np.float32)
    for name in ("w0", "w1"):
        weights |= _scale(name, float(np.abs(weights[name]).max()) / 127)
        nodes += _pair(name)
    for name, largest in (("x", 1.0), ("r0", 4.0)):
        weights |= _scale(name, largest / 127)
    conv0, relu, conv1 = _convolutions("x_dq", "y", weights=("w0_dq", "w1_dq"), hidden="r0_dq")
    nodes += [*_pair("x"), conv0, relu, *_pair("r0"), conv1]
    return _save(path, nodes, weights, _PICTURES)


def pixels(path: Path) -> Path:
    """255 - x on uint8 (batch, height, width, 3), computed in float32: a Cast at either edge."""
    nodes = [
        helper.make_node("Cast", ["x"], ["in"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["white", "in"], ["out"]),
        helper.make_node("Cast", ["out"], ["y"], to=TensorProto.UINT8),
    ]
    weights = {"white": np.array([255], np.float32)}
    shape: Shape = ["batch", "height", "width", 3]
    return _save(path, nodes, weights, shape, dtype=TensorProto.UINT8)


def random_number(path: Path) -> Path:
    """Holds an operator that no TensorRT has, in the node "dice"."""
    nodes = [helper.make_node("Multinomial", ["x"], ["y"], name="dice", dtype=TensorProto.INT32)]
    return _save(path, nodes, {}, ["batch", 4], out=TensorProto.INT32)


_PICTURES: Shape = ["batch", 3, "height", "width"]


def _kernels(dtype: type[np.floating]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {"w0": (16, 3, 3, 3), "w1": (3, 16, 3, 3)}
    return {name: (0.2 * random.standard_normal(s)).astype(dtype) for name, s in shapes.items()}


def _convolutions(
    x: str, y: str, *, weights: tuple[str, str] = ("w0", "w1"), hidden: str = "r0"
) -> list[onnx.NodeProto]:
    # The kernel's shape is said: 8.6 cannot tell it from a weight that is dequantized.
    pads, kernel = [1] * 4, [3, 3]
    return [
        helper.make_node("Conv", [x, weights[0]], ["c0"], pads=pads, kernel_shape=kernel),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", [hidden, weights[1]], [y], pads=pads, kernel_shape=kernel),
    ]


def _scale(name: str, scale: float) -> dict[str, Array]:
    return {f"{name}_scale": np.array(scale, np.float32), f"{name}_zero": np.array(0, np.int8)}


def _pair(name: str) -> list[onnx.NodeProto]:
    sides = [f"{name}_scale", f"{name}_zero"]
    return [
        helper.make_node("QuantizeLinear", [name, *sides], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", *sides], [f"{name}_dq"]),
    ]


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, Array],
    shape: Shape,
    *,
    dtype: int = TensorProto.FLOAT,
    out: int | None = None,
) -> Path:
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", dtype if out is None else out, shape)
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, path.stem, [x], [y], stored)
    # Opset 17 with IR 8: what TensorRT 8.6 reads, and every later release.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path
