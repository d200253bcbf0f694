"""Constants that hold the batch, in all the places where exporters leave them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.graphs import graph, ints, run, weights
from tests.graph.test_batch import assert_items_stay_apart, opened

Inputs = Mapping[str, object]


def padded(batch: int = 1) -> onnx.ModelProto:
    """BlazeFace's end of a stage: zeros [batch, 2, 4, 4] joined to the channels of the data."""
    return graph(
        [
            helper.make_node("ConstantOfShape", ["pad"], ["zeros"], name="padding"),
            helper.make_node("Concat", ["x", "zeros"], ["y"], name="join", axis=1),
        ],
        {"x": [batch, 3, 4, 4]},
        {"y": [batch, 5, 4, 4]},
        {"pad": ints(batch, 2, 4, 4)},
    )


def folded() -> onnx.ModelProto:
    """The same after constant folding: the zeros are stored."""
    return graph(
        [helper.make_node("Concat", ["x", "zeros"], ["y"], name="join", axis=1)],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 5, 4, 4]},
        {"zeros": np.zeros((1, 2, 4, 4), np.float32)},
    )


def with_token(operator: str, amount: tuple[int, ...]) -> onnx.ModelProto:
    """A class token [1, 1, 4] brought to the batch by Expand or Tile, as in a ViT."""
    return graph(
        [
            helper.make_node(operator, ["token", "amount"], ["tokens"], name="token"),
            helper.make_node("Concat", ["tokens", "x"], ["y"], name="join", axis=1),
        ],
        {"x": [amount[0], 3, 4]},
        {"y": [amount[0], 4, 4]},
        {"token": weights(1, 1, 4), "amount": ints(*amount)},
    )


def windowed(batch: int) -> onnx.ModelProto:
    """Swin's windows: the batch is folded into the first axis and unfolded again."""
    return graph(
        [
            helper.make_node("Reshape", ["x", "fold"], ["w"], name="fold"),
            helper.make_node("Softmax", ["w"], ["s"], axis=1),
            helper.make_node("Reshape", ["s", "unfold"], ["y"], name="unfold"),
        ],
        {"x": [batch, 8, 4]},
        {"y": [batch, 8, 4]},
        {"fold": ints(batch * 4, 2, 4), "unfold": ints(batch, 8, 4)},
    )


def cut(batch: int) -> onnx.ModelProto:
    """A Slice that takes all items, by their number."""
    return graph(
        [helper.make_node("Slice", ["x", "from", "to"], ["y"], name="cut")],
        {"x": [batch, 6]},
        {"y": [batch, 4]},
        {"from": ints(0, 1), "to": ints(batch, 5)},
    )


def grown() -> onnx.ModelProto:
    """A Resize to a constant size, batch included."""
    return graph(
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], name="grow", mode="nearest")],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 3, 8, 8]},
        {"sizes": ints(1, 3, 8, 8)},
    )


def widened() -> onnx.ModelProto:
    """An Expand of the data itself."""
    return graph(
        [helper.make_node("Expand", ["x", "shape"], ["y"], name="widen")],
        {"x": [2, 1, 4]},
        {"y": [2, 3, 4]},
        {"shape": ints(2, 3, 4)},
    )


@pytest.mark.parametrize(
    ("model", "deep", "rewritten", "shape"),
    [
        (padded(), True, "ConstantOfShape 'padding'", (3, 4, 4)),
        (padded(6), True, "ConstantOfShape 'padding'", (3, 4, 4)),
        (folded(), True, "Expand 'trtfuse_y_rows1'", (3, 4, 4)),
        (with_token("Expand", (1, 1, 4)), True, "Expand 'token'", (3, 4)),
        (with_token("Expand", (2, 1, 4)), True, "Expand 'token'", (3, 4)),
        (with_token("Tile", (2, 1, 1)), True, "Tile 'token'", (3, 4)),
        (windowed(1), True, "Reshape 'fold'", (8, 4)),
        (windowed(2), True, "Reshape 'fold'", (8, 4)),
        (cut(1), False, "Slice 'cut'", (6,)),
        (cut(2), False, "Slice 'cut'", (6,)),
        (grown(), False, "Resize 'grow'", (3, 4, 4)),
        (widened(), False, "Expand 'widen'", (1, 4)),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_a_constant_on_the_batch_axis_follows(
    model: onnx.ModelProto, deep: bool, rewritten: str, shape: tuple[int, ...]
) -> None:
    held = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    x = weights(held, *shape, seed=3)
    expected = run(model, x=x)["y"]
    dynamic = opened(model, deep=deep)
    assert rewritten in [one.name for one in dynamic.rewrites]
    assert_items_stay_apart(dynamic.model, *shape)
    np.testing.assert_array_equal(run(dynamic.model, x=x)["y"], expected)
    onnx.checker.check_model(dynamic.model, full_check=True)


@pytest.mark.parametrize("model", [padded(), folded(), with_token("Tile", (1, 1, 1)), windowed(2)])
def test_what_only_meets_the_data_is_left_alone_at_first(model: onnx.ModelProto) -> None:
    touched = [one.name for one in opened(model).rewrites if "input" not in one.name]
    assert [name for name in touched if name != "Reshape 'unfold'"] == []


def test_a_slice_of_other_axes_or_from_elsewhere_is_none_of_ours() -> None:
    model = graph(
        [
            helper.make_node("Slice", ["x", "zero", "one", "axis"], ["a"], name="first_channel"),
            helper.make_node("Slice", ["x", "one", "two", "axis"], ["b"], name="second_channel"),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        {"x": [1, 3, 4]},
        {"y": [1, 1, 4]},
        {"zero": ints(0), "one": ints(1), "two": ints(2), "axis": ints(1)},
    )
    assert [one.name for one in opened(model, deep=True).rewrites] == ["input 'x'"]


def test_the_batch_is_measured_once_and_first() -> None:
    model = padded()
    model.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["pad"], ["more"], name="again"),
            helper.make_node("Concat", ["y", "more"], ["z"], axis=1),
        ]
    )
    model.graph.output[0].name = "z"
    new = opened(model, deep=True).model
    kinds = [node.op_type for node in new.graph.node]
    assert kinds[:2] == ["Shape", "Gather"]
    assert kinds.count("Shape") == 1
