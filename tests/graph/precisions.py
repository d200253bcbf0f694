"""Graphs to write precision into, with inputs and what is measured of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tests.graph.graphs import graph, weights
from trtfuse.graph import wiring
from trtfuse.graph.check import Reference
from trtfuse.graph.precision import Measured
from trtfuse.graph.tap import Tap

Node = helper.make_node


def residual_net() -> onnx.ModelProto:
    """x [batch, 3, 16, 16] -> conv, relu, two convs with a skip, pool, Gemm -> y."""
    return graph(
        [
            Node("Conv", ["x", "w1", "b1"], ["c1"], name="stem", pads=[1, 1, 1, 1]),
            Node("Relu", ["c1"], ["r1"], name="stem_relu"),
            Node("Conv", ["r1", "w2"], ["c2"], name="body1", pads=[1, 1, 1, 1]),
            Node("Relu", ["c2"], ["r2"], name="body_relu"),
            Node("Conv", ["r2", "w3"], ["c3"], name="body2", pads=[1, 1, 1, 1]),
            Node("Add", ["c3", "r1"], ["sum"], name="add"),
            Node("Relu", ["sum"], ["r3"], name="add_relu"),
            Node("GlobalAveragePool", ["r3"], ["pooled"], name="pool"),
            Node("Flatten", ["pooled"], ["flat"], name="flatten"),
            Node("Gemm", ["flat", "w4", "b4"], ["y"], name="head", transB=1),
        ],
        {"x": ["batch", 3, 16, 16]},
        {"y": ["batch", 5]},
        {
            "w1": weights(8, 3, 3, 3),
            "b1": weights(8, seed=1),
            "w2": weights(8, 8, 3, 3, seed=2) / 8,
            "w3": weights(8, 8, 3, 3, seed=3) / 8,
            "w4": weights(5, 8, seed=4),
            "b4": weights(5, seed=5),
        },
    )


def skip_net() -> onnx.ModelProto:
    """x [batch, 3, 16, 16] -> down, SiLU, up by Resize, Concat with the skip, conv -> y."""
    return graph(
        [
            Node("Conv", ["x", "w1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
            Node("Sigmoid", ["c1"], ["s1"], name="sigmoid"),
            Node("Mul", ["c1", "s1"], ["a1"], name="silu"),
            Node("Conv", ["a1", "w2"], ["c2"], name="down", pads=[1, 1, 1, 1], strides=[2, 2]),
            Node("Relu", ["c2"], ["a2"], name="down_relu"),
            Node("Resize", ["a2", "", "scales"], ["up"], name="resize", mode="nearest"),
            Node("Concat", ["up", "a1"], ["both"], name="concat", axis=1),
            Node("ConvTranspose", ["both", "w3"], ["y"], name="last", pads=[1, 1, 1, 1]),
        ],
        {"x": ["batch", 3, 16, 16]},
        {"y": ["batch", 3, 16, 16]},
        {
            "w1": weights(6, 3, 3, 3),
            "w2": weights(8, 6, 3, 3, seed=1) / 4,
            "w3": weights(14, 3, 3, 3, seed=2) / 8,
            "scales": np.array([1, 1, 2, 2], np.float32),
        },
    )


def attention_net() -> onnx.ModelProto:
    """x [batch, 9, 16]: one block of a transformer, with a LayerNormalization and a Softmax."""
    return graph(
        [
            Node("LayerNormalization", ["x", "gain", "bias"], ["n"], name="norm", axis=-1),
            Node("MatMul", ["n", "wq"], ["q"], name="query"),
            Node("MatMul", ["n", "wk"], ["k"], name="key"),
            Node("MatMul", ["n", "wv"], ["v"], name="value"),
            Node("Transpose", ["k"], ["kt"], name="turn", perm=[0, 2, 1]),
            Node("MatMul", ["q", "kt"], ["scores"], name="scores"),
            Node("Mul", ["scores", "quarter"], ["scaled"], name="scale"),
            Node("Softmax", ["scaled"], ["shares"], name="softmax", axis=-1),
            Node("MatMul", ["shares", "v"], ["mixed"], name="mix"),
            Node("MatMul", ["mixed", "wo"], ["out"], name="out"),
            Node("Add", ["out", "x"], ["y"], name="skip"),
        ],
        {"x": ["batch", 9, 16]},
        {"y": ["batch", 9, 16]},
        {
            "gain": np.ones(16, np.float32),
            "bias": np.zeros(16, np.float32),
            "quarter": np.array(0.25, np.float32),
            **{f"w{name}": weights(16, 16, seed=n) / 4 for n, name in enumerate("qkvo")},
        },
    )


def root_mean_square() -> onnx.ModelProto:
    """x [batch, 16] -> 300 x, squared, averaged, root: 90 000 in the middle, 300 at the end."""
    return graph(
        [
            Node("Mul", ["x", "gain"], ["a"], name="gain_0"),
            Node("Pow", ["a", "two"], ["p"], name="pow_1"),
            Node("ReduceMean", ["p"], ["m"], name="mean_2", axes=[1], keepdims=1),
            Node("Sqrt", ["m"], ["y"], name="sqrt_3"),
        ],
        {"x": ["batch", 16]},
        {"y": ["batch", 1]},
        {"gain": np.array(300, np.float32), "two": np.array(2, np.float32)},
    )


def shared_scale_head(scores: int = 251) -> onnx.ModelProto:
    """A detector's head: 4 boxes of up to 640 and `scores` scores of up to 1 in one tensor.

    The last convolution (weights 1) reads them under one scale: 640 / 127 is 5, and no score is
    left of it.
    """
    both = 4 + scores
    return graph(
        [
            Node("Conv", ["x", "wf"], ["f"], name="features", pads=[1, 1, 1, 1]),
            Node("Relu", ["f"], ["r"], name="features_relu"),
            Node("Conv", ["r", "wb"], ["b"], name="boxes"),
            Node("Sigmoid", ["b"], ["bs"], name="boxes_sigmoid"),
            Node("Mul", ["bs", "size"], ["bp"], name="boxes_scale"),
            Node("Conv", ["r", "ws", "bs0"], ["s"], name="scores"),
            Node("Sigmoid", ["s"], ["ss"], name="scores_sigmoid"),
            Node("Concat", ["bp", "ss"], ["both"], name="concat", axis=1),
            Node("Conv", ["both", "wd"], ["y"], name="decode", group=both),
        ],
        {"x": ["batch", 3, 16, 16]},
        {"y": ["batch", both, 16, 16]},
        {
            "wf": weights(16, 3, 3, 3),
            "wb": weights(4, 16, 1, 1, seed=1) / 16,
            "ws": weights(scores, 16, 1, 1, seed=2) / 16,
            # Most scores of a detector are near 0.
            "bs0": np.full(scores, -4, np.float32),
            "wd": np.ones((both, 1, 1, 1), np.float32),
            "size": np.array(640, np.float32),
        },
    )


def depthwise_net(spread: float = 64.0) -> onnx.ModelProto:
    """x [batch, 3, 16, 16] -> conv, relu, depthwise, conv -> y; as a block of a MobileNet.

    Channels between the first two differ by `spread` in size, and count the same in the answer.
    """
    size = np.geomspace(1, 1 / spread, 12).astype(np.float32)
    return graph(
        [
            Node("Conv", ["x", "w1", "b1"], ["c1"], name="expand"),
            Node("Relu", ["c1"], ["r1"], name="expand_relu"),
            Node("Conv", ["r1", "w2"], ["c2"], name="deep", group=12, pads=[1, 1, 1, 1]),
            Node("Relu", ["c2"], ["r2"], name="deep_relu"),
            Node("Conv", ["r2", "w3"], ["y"], name="project"),
        ],
        {"x": ["batch", 3, 16, 16]},
        {"y": ["batch", 4, 16, 16]},
        {
            "w1": weights(12, 3, 1, 1) * size.reshape(-1, 1, 1, 1),
            "b1": weights(12, seed=1) * size,
            "w2": weights(12, 1, 3, 3, seed=2) / size.reshape(-1, 1, 1, 1),
            "w3": weights(4, 12, 1, 1, seed=3),
        },
    )


def items(model: onnx.ModelProto, count: int = 4, seed: int = 0) -> NDArray[np.float32]:
    """Standard normal inputs `x`."""
    shape = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim][1:]
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)


def measured(model: onnx.ModelProto, x: NDArray[np.float32]) -> Measured:
    """The largest magnitudes of all tensors, as thresholds too."""
    source = wiring.copy(model)
    names = wiring.float_activations(source)
    seen = Tap(source, names, threads=1)({"x": x})
    reach = {name: float(np.abs(array).max()) for name, array in seen.items()}
    return Measured(amax=reach, reach=reach)


def answer(model: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The output `y`, from ONNX Runtime without optimizations."""
    (y,) = Reference(model)({"x": x}).values()
    return y


def sqnr_db(expected: NDArray[np.float32], got: NDArray[np.float32]) -> float:
    """How far the error lies below the signal."""
    noise = np.square(expected.astype(np.float64) - got).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / noise))


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual_net,
    "skip": skip_net,
    "attention": attention_net,
    "depthwise": lambda: depthwise_net(spread=1),
}
