from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graph import precisions as nets
from tests.graph.graphs import graph, weights
from trtfuse.graph import qdq, wiring


def pairs(model: onnx.ModelProto) -> dict[str, str]:
    """What each quantized tensor is read by, once dequantized."""
    placement = qdq.place(model)
    return {f"{spot.layer}[{spot.index}]": spot.tensor for spot in placement.spots}


def test_weighted_layers_the_skip_of_a_residual_and_the_pool_are_quantized() -> None:
    assert pairs(nets.residual_net()) == {
        "stem[0]": "x",
        "body1[0]": "r1",
        "body2[0]": "r2",
        "head[0]": "flat",
        "add[1]": "r1",  # the other input, c3, is the sum inside body2's kernel
        "pool[0]": "r3",
    }


def test_a_concat_gets_the_one_scale_of_the_layer_that_reads_it_and_no_other() -> None:
    assert pairs(nets.skip_net()) == {"first[0]": "x", "down[0]": "a1", "last[0]": "both"}
    assert "both" in pairs(nets.shared_scale_head()).values()
    head = nets.shared_scale_head()
    del head.graph.node[-1]  # now the Concat is the output, and its parts keep their own numbers
    assert "both" not in pairs(head).values()


def test_products_of_two_activations_are_not_quantized() -> None:
    assert qdq.place(nets.attention_net()).layers == ("query", "key", "value", "out")


def test_the_later_of_two_convolutions_takes_the_sum() -> None:
    model = graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="early"),
            helper.make_node("Conv", ["x", "w"], ["b"], name="late"),
            helper.make_node("Add", ["b", "a"], ["y"], name="add"),
        ],
        {"x": ["batch", 3, 4, 4]},
        {"y": ["batch", 3, 4, 4]},
        {"w": weights(3, 3, 1, 1)},
    )
    assert pairs(model)["add[1]"] == "a"


def test_a_sum_that_no_kernel_takes_over_is_left_alone() -> None:
    model = graph(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
            helper.make_node("Add", ["a", "x"], ["s"], name="add"),
            helper.make_node("Mul", ["s", "a"], ["y"], name="mul"),  # a is needed again
        ],
        {"x": ["batch", 3, 4, 4]},
        {"y": ["batch", 3, 4, 4]},
        {"w": weights(3, 3, 1, 1)},
    )
    assert pairs(model) == {"conv[0]": "x"}


@pytest.mark.parametrize(
    ("kind", "shape", "attributes", "axis"),
    [
        ("Conv", (4, 3, 1, 1), {}, 0),
        ("ConvTranspose", (3, 4, 1, 1), {}, 1),
        ("ConvTranspose", (3, 1, 1, 1), {"group": 3}, None),
        ("Gemm", (3, 4), {}, 1),
        ("Gemm", (4, 3), {"transB": 1}, 0),
        ("MatMul", (3, 4), {}, 1),
        ("MatMul", (3,), {}, None),
    ],
)
def test_weights_have_a_scale_for_each_output_channel(
    kind: str, shape: tuple[int, ...], attributes: dict[str, int], axis: int | None
) -> None:
    rank, sizes = 4 if "Conv" in kind else 2, ("batch", 3, 4, 4)
    model = graph(
        [helper.make_node(kind, ["x", "w"], ["y"], name="layer")],
        {"x": sizes[:rank]},
        {"y": None},
        {"w": weights(*shape)},
    )
    for name, value in attributes.items():
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    (weight,) = qdq.place(model).weights
    assert weight.axis == axis


def test_no_bias_is_quantized() -> None:
    placement = qdq.place(nets.residual_net())
    assert {weight.tensor for weight in placement.weights} == {"w1", "w2", "w3", "w4"}


def test_a_convolution_whose_weight_is_quantized_says_its_kernel() -> None:
    model = graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node("ConvTranspose", ["c", "v"], ["y"], name="grow", kernel_shape=[2, 3]),
        ],
        {"x": ["batch", 3, 9, 9]},
        {"y": None},
        {"w": weights(4, 3, 5, 1), "v": weights(4, 3, 2, 3)},
    )
    placement = qdq.place(model)
    written = qdq.insert(model, placement, dict.fromkeys(placement.tensors, 1.0), half=False)
    kernels = {
        node.name: [list(one.ints) for one in node.attribute if one.name == "kernel_shape"]
        for node in written.graph.node
        if "Conv" in node.op_type
    }
    assert kernels == {"conv": [[5, 1]], "grow": [[2, 3]]}


def test_a_tensor_that_two_layers_read_has_one_pair() -> None:
    model = nets.residual_net()
    placement = qdq.place(model)
    written = qdq.insert(model, placement, dict.fromkeys(placement.tensors, 1.0), half=False)
    assert nets.ops(written).count("QuantizeLinear") == 5 + 4
    readers = [n.name for n in written.graph.node if "r1_dequantized" in n.input]
    assert readers == ["body1", "add"]


def test_scales_are_symmetric_and_zero_points_zero() -> None:
    model = nets.residual_net()
    placement = qdq.place(model)
    written = qdq.insert(model, placement, dict.fromkeys(placement.tensors, 12.7), half=False)
    constants = {one.name: numpy_helper.to_array(one) for one in written.graph.initializer}
    assert constants["x_qdq_scale"] == np.float32(0.1)
    zeros = [value for name, value in constants.items() if name.endswith("zero_point")]
    assert len(zeros) == 9
    assert all(zero.dtype == np.int8 and not zero.any() for zero in zeros)
    w1 = constants["w1"]
    expected = np.abs(w1).max(axis=(1, 2, 3)) / 127
    assert constants["w1_axis0_qdq_scale"] == pytest.approx(expected)


def test_a_half_scale_is_one_exactly_and_never_too_small() -> None:
    amax = np.array([0, 1e-7, 1e-4, 0.3, 12.7, 6e4], np.float32)
    scale = qdq.scale_of(amax, half=True)
    assert (scale == scale.astype(np.float16)).all()
    assert (scale * 127 >= amax).all()
    assert scale[0] == 1
    assert scale[3:] == pytest.approx(amax[3:] / 127, rel=2**-10)


def test_a_constant_input_is_no_activation() -> None:
    model = graph(
        [
            helper.make_node("MatMul", ["k", "w"], ["a"], name="constant"),
            helper.make_node("Add", ["x", "a"], ["y"], name="add"),
        ],
        {"x": ["batch", 4]},
        {"y": ["batch", 4]},
        {"k": weights(1, 4), "w": weights(4, 4)},
    )
    assert qdq.place(model).spots == ()


def test_the_weights_of_a_constant_node_are_quantized_too() -> None:
    model = nets.residual_net()
    held = model.graph.initializer.pop(0)
    assert held.name == "w1"
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w1"], value=held))
    assert "w1" not in {weight.tensor for weight in qdq.place(model).weights}
    assert "w1" in {weight.tensor for weight in qdq.place(wiring.copy(model)).weights}
