"""Tiny ONNX graphs, each with one property that export has to deal with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trtfuse.core.card import Card, EmbedTask, InputCard

Shape = Sequence["int | str | None"]


def weights(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape | None],
    constants: Mapping[str, NDArray[np.generic]],
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """A float32 model of IR 8."""
    return helper.make_model(
        helper.make_graph(
            list(nodes),
            "tiny",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def conv_net(batch: int | str = 1, size: int | str = 8, *, opset: int = 17) -> onnx.ModelProto:
    """x [batch, 3, size, size] -> y [batch, 4, size, size]; fully convolutional."""
    return graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"], name="relu"),
        ],
        {"x": [batch, 3, size, size]},
        {"y": [batch, 4, size, size]},
        {"w": weights(4, 3, 3, 3)},
        opset=opset,
    )


def flatten_net(batch: int | str, target: Sequence[int]) -> onnx.ModelProto:
    """x [batch, 3, 8, 8] -> Reshape to `target` ([batch, 192]) -> MatMul -> y [batch, 4]."""
    return graph(
        [
            helper.make_node("Reshape", ["x", "target"], ["flat"], name="flatten"),
            helper.make_node("MatMul", ["flat", "w"], ["y"], name="head"),
        ],
        {"x": [batch, 3, 8, 8]},
        {"y": [batch, 4]},
        {"target": ints(*target), "w": weights(192, 4)},
    )


def yolox_head() -> onnx.ModelProto:
    """x [1, 6, 4, 4] -> Reshape [1, 6, -1] -> y [1, 16, 6], as YOLOX ends.

    With its axes merely renamed it answers (1, 64, 6) to a batch of 4, and no runtime complains.
    """
    return graph(
        [
            helper.make_node("Reshape", ["x", "target"], ["flat"], name="head"),
            helper.make_node("Transpose", ["flat"], ["y"], name="swap", perm=[0, 2, 1]),
        ],
        {"x": [1, 6, 4, 4]},
        {"y": [1, 16, 6]},
        {"target": ints(1, 6, -1)},
    )


def biased_net() -> onnx.ModelProto:
    """x [1, 3, 4, 4] plus a bias vector that a Reshape [1, -1, 1, 1] brings into form."""
    return graph(
        [
            helper.make_node("Reshape", ["bias", "form"], ["b"], name="form_bias"),
            helper.make_node("Add", ["x", "b"], ["s"], name="add"),
            helper.make_node("Reshape", ["s", "form"], ["y"], name="flatten"),
        ],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 48, 1, 1]},
        {"bias": weights(3), "form": ints(1, -1, 1, 1)},
    )


def mixing_net(batch: int | str = "batch") -> onnx.ModelProto:
    """A softmax over the batch: no item is independent of the others."""
    return graph(
        [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("Softmax", ["r"], ["y"], name="over_batch", axis=0),
        ],
        {"x": [batch, 5]},
        {"y": [batch, 5]},
        {},
    )


def card(size: tuple[int, int] | None = (8, 8), *, name: str = "x", output: str = "y") -> Card:
    return Card(
        input=InputCard(
            name=name,
            layout="NCHW",
            colour="RGB",
            range=(0.0, 1.0),
            size=size or "dynamic",
            resize="stretch",
        ),
        task=EmbedTask(name="embed", output=output, normalize=False),
    )


def run(model: onnx.ModelProto, **feeds: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """ONNX's own reference evaluator: not the runtime that export proves with."""
    from onnx.reference import ReferenceEvaluator

    answers = ReferenceEvaluator(model).run(None, feeds)
    return dict(zip((one.name for one in model.graph.output), answers, strict=True))
