from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.graph import precisions as nets
from trtfuse.core.specs import Precision
from trtfuse.graph import precision, wiring
from trtfuse.graph.equalize import equalize, exponents, tensors
from trtfuse.graph.precision import Measured
from trtfuse.graph.tap import Tap


def reach(model: onnx.ModelProto, tensor: str) -> NDArray[np.float32]:
    """Largest magnitude of each channel."""
    array = Tap(model, [tensor], threads=1)({"x": nets.items(model, 8)})[tensor]
    return np.asarray(np.abs(array).max((0, 2, 3)), np.float32)


def equalized(model: onnx.ModelProto) -> onnx.ModelProto:
    return equalize(model, {name: exponents(reach(model, name)) for name in tensors(model)})


def test_fp32_answers_do_not_change_in_a_bit() -> None:
    model = nets.depthwise_net()
    x = nets.items(model, 4, seed=1)
    changed = equalized(model)
    assert changed != wiring.copy(model)
    np.testing.assert_array_equal(nets.answer(changed, x), nets.answer(model, x))


def test_channels_come_within_a_factor_of_two_of_the_largest() -> None:
    model = nets.depthwise_net(spread=16)
    before, after = reach(model, "r1"), reach(equalized(model), "r1")
    assert before.max() / before.min() > 16
    assert after.max() == before.max()
    assert after.min() > before.max() / 2


def test_a_channel_is_raised_by_16_at_most_and_one_that_never_moved_not_at_all() -> None:
    assert exponents(np.array([8.0, 8.0, 4.1, 4.0, 0.6, 0.001, 0.0])) == (0, 0, 0, 1, 3, 4, 0)
    assert exponents(np.zeros(2)) == (0, 0)


def test_int8_gains_where_channels_differ() -> None:
    model = nets.depthwise_net()
    x = nets.items(model, 8)

    def sqnr_db(base: onnx.ModelProto, of: Measured) -> float:
        written = precision.write(base, Precision.INT8, of).model
        return nets.sqnr_db(nets.answer(model, x), nets.answer(written, x))

    found = {name: exponents(reach(model, name)) for name in tensors(model)}
    amax = nets.measured(equalize(model, found), x).amax
    plain = sqnr_db(model, nets.measured(model, x))
    assert sqnr_db(model, Measured(amax=amax, exponents=found)) > plain + 6


def test_only_int8_asks_for_channels_and_only_of_what_depthwise_layers_read() -> None:
    model = nets.depthwise_net()
    int8, fp16, fp32 = Precision.INT8, Precision.FP16, Precision.FP32
    assert precision.needs(model, int8, rest=fp16).channels == ("r1",)
    assert precision.needs(model, fp16, rest=fp32).channels == ()
    assert tensors(nets.residual_net()) == ()


def with_node(node: onnx.NodeProto, output: str) -> onnx.ModelProto:
    """`depthwise_net` with one more node and output."""
    model = nets.depthwise_net()
    model.graph.node.append(node)
    model.graph.output.append(helper.make_tensor_value_info(output, 1, None))
    return model


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            with_node(helper.make_node("Conv", ["r1", "w3"], ["z"]), "z"), id="another reader"
        ),
        pytest.param(
            with_node(helper.make_node("Add", ["c1", "c1"], ["z"]), "z"), id="read before the relu"
        ),
        pytest.param(
            with_node(helper.make_node("Neg", ["w2"], ["z"]), "z"),
            id="a weight that others read",
        ),
        pytest.param(
            with_node(helper.make_node("Neg", ["b1"], ["z"]), "z"), id="a bias that others read"
        ),
        pytest.param(with_node(helper.make_node("Neg", ["x"], ["z"]), "r1"), id="an output"),
    ],
)
def test_what_others_see_stays_as_it_is(model: onnx.ModelProto) -> None:
    assert tensors(model) == ()


def test_a_clip_does_not_take_a_factor_through() -> None:
    model = nets.depthwise_net()
    model.graph.node[1].op_type = "Clip"
    model.graph.node[1].input.extend(["low", "high"])
    for name, value in (("low", 0), ("high", 6)):
        model.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
    assert tensors(model) == ()


def test_a_channel_that_several_outputs_read_is_made_smaller_in_each() -> None:
    model = nets.depthwise_net()
    held = {one.name: one for one in model.graph.initializer}
    for name, axis in (("w2", 0), ("w3", 1)):
        twice = np.repeat(numpy_helper.to_array(held[name]), 2, axis=axis)
        held[name].CopyFrom(numpy_helper.from_array(twice, name))
    x = nets.items(model, 2)
    changed = equalized(model)
    assert reach(changed, "r1").min() > 4 * reach(model, "r1").min()
    np.testing.assert_array_equal(nets.answer(changed, x), nets.answer(model, x))
