"""Simplifier and opset converter: what they may not do."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graph.graphs import card, conv_net, graph, run, weights
from trtfuse.graph.model import NotApplied, get_card, opset, put_card, signature
from trtfuse.graph.opset import convert
from trtfuse.graph.simplify import directly, require_same_signature
from trtfuse.graph.simplify import simplify as simplified


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    with TemporaryDirectory() as scratch:
        return simplified(model, Path(scratch), directly)


def test_constants_are_folded_and_everything_outside_stays() -> None:
    model = graph(
        [
            helper.make_node("Identity", ["x"], ["i"]),
            helper.make_node("Add", ["i", "zero"], ["a"]),
            helper.make_node("Mul", ["two", "two"], ["four"]),
            helper.make_node("Mul", ["a", "four"], ["y"]),
        ],
        {"x": ["batch", 3]},
        {"y": ["batch", 3]},
        {"zero": weights(1), "two": weights(1)},
    )
    put_card(model, card())
    new = simplify(model)
    assert [node.op_type for node in new.graph.node] == ["Add", "Mul"]
    assert signature(new) == signature(model)
    assert get_card(new, source="new") == card()
    assert [prop.key for prop in new.metadata_props] == ["trtfuse.card"]
    x = weights(2, 3)
    np.testing.assert_allclose(run(new, x=x)["y"], run(model, x=x)["y"], rtol=1e-6)


def test_a_graph_that_onnxsim_cannot_take_is_told_from_a_crash() -> None:
    unsorted = conv_net("batch")
    unsorted.graph.node.reverse()
    with pytest.raises(NotApplied, match=r"onnxsim failed: .*topologically sorted"):
        simplify(unsorted)


@pytest.mark.parametrize("change", ["fixed batch", "renamed output", "other dtype"])
def test_a_changed_signature_is_not_accepted(change: str) -> None:
    after = conv_net("batch")
    if change == "fixed batch":
        after = conv_net(8)
    elif change == "renamed output":
        after.graph.output[0].name = "z"
    else:
        after.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(NotApplied, match=r"onnxsim changed the (inputs|outputs) from . float32"):
        require_same_signature(conv_net("batch"), after)


def relu(declared: list[int | str]) -> onnx.ModelProto:
    return graph([helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", 3]}, {"y": declared}, {})


def test_a_size_that_only_onnxsim_finds_is_a_gain() -> None:
    assert signature(simplify(relu(["batch", "y_1"]))).outputs[0].shape == ("batch", 3)


def test_an_axis_of_the_inputs_that_onnxsim_fixes_is_a_loss() -> None:
    with pytest.raises(NotApplied, match=r"from y float32 \['batch', 'batch'\] to y .* 3\]"):
        simplify(relu(["batch", "batch"]))


def test_a_graph_is_brought_to_the_file_format_that_its_operators_need() -> None:
    new = convert(conv_net(opset=17), 20)
    assert (opset(new), new.ir_version) == (20, 9)


def test_an_older_graph_is_brought_up_and_keeps_its_answers() -> None:
    old = graph(
        [helper.make_node("Unsqueeze", ["x"], ["y"], axes=[1])],
        {"x": ["batch", 3]},
        {"y": ["batch", 1, 3]},
        {},
        opset=9,
    )
    put_card(old, card())
    new = convert(old, 17)
    assert (opset(new), new.ir_version) == (17, 8)
    assert opset(old) == 9
    assert get_card(new, source="new") == card()
    assert signature(new) == signature(old)
    x = weights(2, 3)
    np.testing.assert_array_equal(run(new, x=x)["y"], x[:, None])


def test_a_newer_graph_stays_what_it_is() -> None:
    with pytest.raises(NotApplied, match="opset 20 is newer than 17 and stays"):
        convert(conv_net(opset=20), 17)


def test_what_the_converter_cannot_do_is_told() -> None:
    old = graph(
        [helper.make_node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 2.0])],
        {"x": ["batch", 3, 8, 8]},
        {"y": ["batch", 3, 16, 16]},
        {},
        opset=7,
    )
    old.graph.node[0].input.append("gone")
    with pytest.raises(NotApplied, match="ONNX's converter from opset 7 failed"):
        convert(old, 17)
