from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graph.graphs import (
    biased_net,
    card,
    conv_net,
    flatten_net,
    graph,
    ints,
    run,
    weights,
    yolox_head,
)
from trtfuse.core.card import InputCard
from trtfuse.core.specs import TensorSpec
from trtfuse.graph.batch import (
    Dynamic,
    baked_batch,
    declare,
    make_dynamic,
    plans,
)
from trtfuse.graph.model import load, signature
from trtfuse.graph.repair import Rewrite, nodes_with_fixed_batch, nodes_with_fixed_size
from trtfuse.graph.tidy import tidied

DATA = Path(__file__).parents[1] / "data" / "graph"


def planned_inputs(
    tensors: Sequence[TensorSpec], the_card: InputCard | None = None
) -> tuple[TensorSpec, ...]:
    """The likeliest plan."""
    return plans(tensors, the_card)[0]


def opened(model: onnx.ModelProto, traced_at: int = 1, *, deep: bool = False) -> Dynamic:
    declared = signature(model).inputs
    planned = planned_inputs(declared)
    held = baked_batch(declared, planned) or traced_at
    return make_dynamic(tidied(model, source="net"), planned, held=held, deep=deep)


def shapes(model: onnx.ModelProto) -> list[tuple[int | str, ...]]:
    ends = signature(model)
    return [one.shape for one in (*ends.inputs, *ends.outputs)]


def assert_items_stay_apart(model: onnx.ModelProto, *shape: int) -> None:
    x = weights(4, *shape, seed=1)
    together = run(model, x=x)["y"]
    alone = [run(model, x=x[i : i + 1])["y"] for i in range(4)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "after"), [((1, 192), (-1, 192)), ((1, -1), (0, -1)), ((2, 192), (-1, 192))]
)
def test_a_baked_reshape_follows_the_batch(target: Sequence[int], after: Sequence[int]) -> None:
    dynamic = opened(flatten_net(target[0], target))
    assert shapes(dynamic.model) == [("batch", 3, 8, 8), ("batch", 4)]
    assert dynamic.rewrites == (
        Rewrite("Reshape 'flatten'", tuple(target), tuple(after)),
        Rewrite("input 'x'", (target[0], 3, 8, 8), ("batch", 3, 8, 8)),
    )
    assert_items_stay_apart(dynamic.model, 3, 8, 8)


def test_a_graph_traced_at_one_behind_an_open_axis_is_repaired() -> None:
    model = load(DATA / "baked.onnx")
    dynamic = opened(model)
    assert [one.name for one in dynamic.rewrites] == ["Reshape 'rs'"]
    assert_items_stay_apart(dynamic.model, 3, 8, 8)


def test_yolox_needs_more_than_a_new_name() -> None:
    declared = signature(yolox_head()).inputs
    renamed = make_dynamic(yolox_head(), planned_inputs(declared, None), held=None).model
    assert run(renamed, x=weights(4, 6, 4, 4))["y"].shape == (1, 64, 6)
    repaired = opened(yolox_head()).model
    assert run(repaired, x=weights(4, 6, 4, 4))["y"].shape == (4, 16, 6)
    assert_items_stay_apart(repaired, 6, 4, 4)


def test_a_reshape_of_biases_is_left_alone_even_if_it_shares_its_target() -> None:
    dynamic = opened(biased_net())
    reshapes = [one.name for one in dynamic.rewrites if one.name.startswith("Reshape")]
    assert reshapes == ["Reshape 'flatten'"]
    assert_items_stay_apart(dynamic.model, 3, 4, 4)


def test_one_number_an_item_follows_the_batch_too() -> None:
    model = graph(
        [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Reshape", ["m", "form"], ["f"], name="form"),
            helper.make_node("Sub", ["x", "f"], ["y"]),
        ],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 3, 4, 4]},
        {"form": ints(1, 1, 1, 1)},
    )
    assert_items_stay_apart(opened(model).model, 3, 4, 4)


def test_data_of_another_length_is_not_the_batch() -> None:
    """Turned, the data leads with 3 channels: a target that leads with 6 means no batch there."""
    model = graph(
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            helper.make_node("Reshape", ["t", "six"], ["s"], name="swap"),
            helper.make_node("Reshape", ["s", "three"], ["u"], name="back"),
            helper.make_node("Transpose", ["u"], ["y"], perm=[1, 0, 2]),
        ],
        {"x": [6, 3, 4]},
        {"y": [6, 3, 4]},
        {"six": ints(6, 3, 4), "three": ints(3, 6, 4)},
    )
    assert "Reshape 'swap'" not in [one.name for one in opened(model).rewrites]


def test_a_target_in_a_constant_node_is_found_and_allowzero_does_not_bite() -> None:
    model = flatten_net(1, (1, -1))
    target = model.graph.initializer[0]
    del model.graph.initializer[0]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["target"], value=target))
    model.graph.node[1].attribute.append(helper.make_attribute("allowzero", 1))
    assert_items_stay_apart(opened(model).model, 3, 8, 8)


def test_a_reshape_of_a_measured_shape_is_no_reshape_of_data() -> None:
    """A row of sizes [1, 4] leads with a 1 that is no batch."""
    model = graph(
        [
            helper.make_node("Shape", ["x"], ["s"], name="measure"),
            helper.make_node("Reshape", ["s", "row"], ["r"], name="row_of_shape"),
            helper.make_node("Reshape", ["r", "row"], ["r2"], name="row_again"),
            helper.make_node("Reshape", ["r2", "flat"], ["back"], name="flat_again"),
            helper.make_node("Reshape", ["x", "back"], ["y"], name="same"),
        ],
        {"x": [1, 3, 4, 4]},
        {"y": [1, 3, 4, 4]},
        {"row": ints(1, 4), "flat": ints(4)},
    )
    assert [one.name for one in opened(model).rewrites] == ["input 'x'"]


def test_output_axes_follow_the_inputs_whatever_was_declared() -> None:
    wrong = conv_net(1)
    wrong.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "l"]))
    assert shapes(opened(wrong).model)[1] == ("batch", 4, 8, 8)
    bare = conv_net(1)
    bare.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    assert shapes(opened(bare).model)[1] == ("batch", 4, 8, 8)


def test_an_axis_that_inference_cannot_tell_gets_a_name_of_its_own() -> None:
    pooled = graph(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
        {"x": ["n", 3, "h", "w"]},
        {"y": ["n", 3, "same", "same"]},
        {},
    )
    assert shapes(opened(pooled).model)[1] == ("batch", 3, "y_2", "y_3")


def test_the_size_of_the_card_replaces_the_graphs() -> None:
    declared = signature(conv_net(10, 32)).inputs
    fixed = planned_inputs(declared, card((64, 96)).input)
    assert fixed[0].shape == ("batch", 3, 64, 96)
    free = planned_inputs(declared, card(None).input)
    assert free[0].shape == ("batch", 3, "height", "width")
    assert shapes(declare(conv_net(10, 32), fixed))[1] == ("batch", 4, 64, 96)


def test_sizes_that_the_graph_leaves_open_stay_open() -> None:
    declared = signature(conv_net("n", "s")).inputs
    assert planned_inputs(declared, card((64, 64)).input)[0].shape == ("batch", 3, "s", "s")


def tensor(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape)


@pytest.mark.parametrize(
    ("inputs", "batched"),
    [
        ([tensor("a", "n", 3), tensor("b", 10, 4), tensor("c")], ["a"]),
        ([tensor("a", 2, 3), tensor("b", 2, 4), tensor("c", 7, 4)], ["a", "b"]),
        ([tensor("t", 1), tensor("a", 1, 3, 8, 8), tensor("e", 1, 5)], ["a", "e"]),
        ([tensor("c")], []),
    ],
)
def test_only_inputs_that_carry_the_batch_get_it(
    inputs: list[TensorSpec], batched: list[str]
) -> None:
    planned = planned_inputs(inputs, None)
    assert [one.name for one in planned if one.shape[:1] == ("batch",)] == batched
    others = [one for one in inputs if one.name not in batched]
    assert [one for one in planned if one.name not in batched] == others


def test_the_baked_batch_is_read_from_the_inputs() -> None:
    planned = [tensor("a", "batch", 3)]
    assert baked_batch([tensor("a", 10, 3)], planned) == 10
    assert baked_batch([tensor("a", "n", 3)], planned) is None
    assert baked_batch([replace(planned[0], shape=(5,))], [tensor("a", 5)]) is None


def test_nodes_that_hold_a_batch_or_a_size_are_named() -> None:
    held = flatten_net("batch", (1, 192))
    planned = planned_inputs(signature(held).inputs, None)
    assert nodes_with_fixed_batch(held, planned, 1) == ["Reshape 'flatten'"]
    assert nodes_with_fixed_batch(held, planned, 2) == ["Reshape 'flatten'"]  # 192 values, ever
    assert nodes_with_fixed_batch(flatten_net("batch", (-1, 192)), planned, 2) == []
    biased = biased_net()
    planned = planned_inputs(signature(biased).inputs, None)
    assert nodes_with_fixed_batch(biased, planned, 1) == ["Reshape 'flatten'"]
    resized = graph(
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"])],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 3, 16, 16]},
        {"sizes": ints(1, 3, 16, 16)},
    )
    assert nodes_with_fixed_size(resized) == ["Resize of 'y'"]
    assert nodes_with_fixed_size(conv_net()) == []
