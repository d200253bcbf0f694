from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.graph.graphs import (
    conv_net,
    flatten_net,
    graph,
    ints,
    mixing_net,
    run,
    weights,
    yolox_head,
)
from trtfuse.core.specs import Arrays, TensorSpec
from trtfuse.graph import check
from trtfuse.graph.batch import declare, make_dynamic, plans
from trtfuse.graph.check import Difference, Observation, Proof, Reference
from trtfuse.graph.model import signature
from trtfuse.graph.probe import Items, random_items

X = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8, 8))
ITEMS = random_items([X], count=4, seed=0)


def seen(**outputs: object) -> Observation:
    """Answers to four items, one by one and in one batch: `y` and, if given, `y4` for the batch."""
    alone = np.asarray(outputs["y"], np.float32)
    return Observation(
        {1: {"y": alone}, 4: {"y": np.asarray(outputs.get("y4", alone), np.float32)}}
    )


def test_the_reference_answers_as_onnx_itself_does() -> None:
    model = conv_net("batch")
    x = weights(2, 3, 8, 8)
    np.testing.assert_allclose(Reference(model)({"x": x})["y"], run(model, x=x)["y"], atol=1e-5)


def test_items_that_stay_apart_have_no_difference() -> None:
    proof = check.independence(check.observe(Reference(conv_net("batch")), ITEMS, (1, 2, 4)))
    assert proof.holds(1e-6)
    assert [one.output for one in proof.differences] == ["y"]


def test_items_that_mix_are_found_and_the_node_named() -> None:
    items = random_items(
        [TensorSpec(name="x", dtype="float32", shape=("batch", 5))], count=4, seed=0
    )
    proof = check.independence(check.observe(Reference(mixing_net()), items, (1, 4)))
    assert not proof.holds(1e-2)
    assert proof.relative > 0.5
    assert "output 'y' differs by" in proof.against(1e-2)
    assert check.first_mixing_node(Reference(mixing_net()), items, 1e-4) == "Softmax 'over_batch'"


def test_no_node_is_blamed_where_nothing_mixes_or_nothing_runs() -> None:
    assert check.first_mixing_node(Reference(conv_net("batch")), ITEMS, 1e-4) is None
    assert check.first_mixing_node(Reference(flatten_net("batch", (1, 192))), ITEMS, 1e-4) is None


def test_a_graph_that_runs_at_one_batch_only_is_a_fault_with_the_node() -> None:
    proof = check.independence(
        check.observe(Reference(flatten_net("batch", (1, 192))), ITEMS, (1, 4))
    )
    assert not proof.holds(1.0)
    assert len(proof.faults) == 1
    assert proof.faults[0].startswith("does not run at batch 4: ")
    assert "flatten" in proof.faults[0]


def test_a_graph_that_does_not_load_is_a_fault() -> None:
    broken = conv_net()
    broken.graph.node[0].op_type = "Konv"
    observed = check.observe(Reference(broken), ITEMS, (1,))
    assert not observed.outputs
    assert "Konv" in observed.faults[0]


def test_an_output_whose_first_axis_is_not_the_batch_is_a_fault() -> None:
    renamed = make_dynamic(
        yolox_head(), plans(signature(yolox_head()).inputs, None)[0], held=None
    ).model
    items = random_items(
        [TensorSpec(name="x", dtype="float32", shape=("batch", 6, 4, 4))], count=4, seed=0
    )
    proof = check.independence(check.observe(Reference(renamed), items, (1, 4)))
    assert proof.faults == (
        "output 'y' has shape (1, 64, 6) at batch 4: its first axis needs to be the batch",
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_faults(bad: float) -> None:
    def answer(feeds: Arrays) -> Arrays:
        y = feeds["x"].sum(axis=(1, 2, 3), keepdims=False)[:, None].copy()
        y[-1, 0] = bad
        return {"y": y}

    observed = check.observe(answer, ITEMS, (1, 4))
    assert not observed.outputs
    assert observed.faults[1] == "output 'y' holds NaN or infinity in 1 of 4 values"
    assert not check.independence(observed).holds(1e9)


def test_every_batch_size_sees_distinct_items_in_order() -> None:
    fed: list[Arrays] = []

    def echo(feeds: Arrays) -> Arrays:
        fed.append(feeds)
        return {"y": feeds["x"]}

    items = Items(5, {"x": np.arange(5, dtype=np.float32)[:, None]}, {"k": np.array([7.0])})
    observed = check.observe(echo, items, (1, 2, 5))
    assert [feeds["x"].ravel().tolist() for feeds in fed] == [
        *([n] for n in range(5)),
        [0, 1],
        [2, 3],
        [0, 1, 2, 3, 4],
    ]
    assert all(feeds["k"].tolist() == [7] for feeds in fed)
    assert {batch: len(out["y"]) for batch, out in observed.outputs.items()} == {1: 5, 2: 4, 5: 5}
    assert check.independence(observed) == Proof((Difference("y", 0.0, 0.0),))


def test_differences_are_relative_to_the_largest_expected_value() -> None:
    proof = check.agreement(seen(y=[[1], [2], [3], [-8]]), seen(y=[[1], [2], [3.5], [-8]]))
    assert proof.differences == (Difference("y", 0.5, 0.0625, mean=0.125),)
    assert proof.holds(0.0625)
    assert not proof.holds(0.06)
    assert proof.against(0.06) == (
        "output 'y' differs by 0.5, 0.0625 of its largest value (0.06 is allowed)"
    )


def test_any_difference_from_zeros_is_infinite() -> None:
    assert check.compare({"y": np.zeros(2)}, {"y": np.zeros(2)}).relative == 0
    assert check.compare({"y": np.zeros(2)}, {"y": np.full(2, 1e-9)}).relative == np.inf


def test_agreement_looks_at_every_batch_size() -> None:
    good, bad = seen(y=[[1], [2], [3], [4]]), seen(y=[[1], [2], [3], [4]], y4=[[1], [2], [3], [5]])
    assert check.agreement(good, good).relative == 0
    assert check.agreement(good, bad).absolute == 1
    assert check.independence(bad).absolute == 1


def test_a_lost_batch_size_is_no_agreement() -> None:
    before = seen(y=[[1], [2], [3], [4]])
    lost = Observation({1: before.outputs[1]}, ("does not run at batch 4: because",))
    assert not check.agreement(before, lost).holds(1.0)


@pytest.mark.parametrize(
    ("got", "fault"),
    [
        ({"z": np.zeros((2, 3))}, "outputs are ['z'], need to be ['y']"),
        ({"y": np.zeros((1, 3))}, "output 'y' is float64 (1, 3), needs to be float64 (2, 3)"),
        ({"y": np.zeros((2, 4))}, "output 'y' is float64 (2, 4), needs to be float64 (2, 3)"),
        (
            {"y": np.zeros((2, 3), np.float16)},
            "output 'y' is float16 (2, 3), needs to be float64 (2, 3)",
        ),
    ],
)
def test_outputs_of_another_kind_are_faults(got: Arrays, fault: str) -> None:
    assert check.compare({"y": np.zeros((2, 3))}, got).faults == (fault,)


def test_integers_and_booleans_are_compared_too() -> None:
    assert (
        check.compare(
            {"y": np.array([1, 255], np.uint8)}, {"y": np.array([0, 255], np.uint8)}
        ).absolute
        == 1
    )
    assert check.compare({"y": np.array([True])}, {"y": np.array([False])}).absolute == 1


def test_combining_keeps_the_worst_of_each_output_and_each_fault_once() -> None:
    one = Proof((Difference("a", 1, 0.1), Difference("b", 1, 0.3)), ("late",))
    two = Proof((Difference("a", 2, 0.2),), ("late", "early"))
    assert check.combined(one, two) == Proof(
        (Difference("a", 2, 0.2), Difference("b", 1, 0.3)), ("late", "early")
    )


def test_an_independent_graph_with_other_weights_does_not_agree() -> None:
    wrong = conv_net("batch")
    wrong.graph.initializer[0].raw_data = weights(4, 3, 3, 3, seed=9).tobytes()
    before, after = (
        check.observe(Reference(model), ITEMS, (1, 4)) for model in (conv_net("batch"), wrong)
    )
    assert check.independence(after).holds(1e-6)
    assert not check.agreement(before, after).holds(1e-2)


def test_declaring_another_size_does_not_change_the_answers_at_the_old_one() -> None:
    anywhere = declare(
        conv_net("batch"), [TensorSpec(name="x", dtype="float32", shape=("batch", 3, "h", "w"))]
    )
    before, after = (
        check.observe(Reference(model), ITEMS, (1, 4)) for model in (conv_net("batch"), anywhere)
    )
    assert check.agreement(before, after).absolute < 1e-5


def test_a_graph_with_unnamed_nodes_is_blamed_by_its_tensor() -> None:
    model = graph(
        [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]),
            helper.make_node("Sub", ["x", "m"], ["y"]),
        ],
        {"x": ["batch", 3, 8, 8]},
        {"y": ["batch", 3, 8, 8]},
        {},
    )
    assert check.first_mixing_node(Reference(model), ITEMS, 1e-4) == "ReduceMean of 'm'"


def test_a_size_that_counts_the_items_is_not_blamed() -> None:
    """Shape -> Slice gives [4] for the batch and [1] for an item: that is its job."""
    model = graph(
        [
            helper.make_node("Shape", ["x"], ["s"], end=1),
            helper.make_node("Concat", ["s", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["flat"]),
            helper.make_node("Softmax", ["flat"], ["y"], axis=0),
        ],
        {"x": ["batch", 3, 8, 8]},
        {"y": ["batch", 192]},
        {"rest": ints(192)},
    )
    assert check.first_mixing_node(Reference(model), ITEMS, 1e-4) == "Softmax of 'y'"


def test_an_output_of_text_is_a_fault() -> None:
    observed = check.observe(lambda feeds: {"y": np.array(["cat"] * len(feeds["x"]))}, ITEMS, (1,))
    assert observed.faults == ("output 'y' is <U3, needs to hold numbers",)


def test_a_constant_with_a_leading_one_is_not_blamed() -> None:
    model = graph(
        [
            helper.make_node("Reshape", ["bias", "row"], ["b"], name="form_bias"),
            helper.make_node("Add", ["x", "b"], ["s"], name="add"),
            helper.make_node("Softmax", ["s"], ["y"], name="over_batch", axis=0),
        ],
        {"x": ["batch", 3, 8, 8]},
        {"y": ["batch", 3, 8, 8]},
        {"bias": weights(8), "row": ints(1, 1, 1, 8)},
    )
    assert check.first_mixing_node(Reference(model), ITEMS, 1e-4) == "Softmax 'over_batch'"
