from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.graph import precisions as nets
from tests.graph import rtx
from tests.graph.graphs import graph, run, weights
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.specs import Precision
from trtfuse.graph import half, precision
from trtfuse.graph.model import signature
from trtfuse.graph.precision import Measured, Written

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8

every_net = pytest.mark.parametrize("name", nets.NETS)
# (precision, the rest, operator set, IR version, SQNR in dB to reach)
KINDS: dict[str, tuple[Precision, Precision, int, int, float]] = {
    "int8": (INT8, FP32, 17, 8, 25),
    "int8+fp16": (INT8, FP16, 19, 9, 25),
    "fp16": (FP16, FP32, 17, 8, 50),
    "bf16": (BF16, FP32, 22, 10, 30),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def write(model: onnx.ModelProto, kind: str, **more: Any) -> Written:
    wanted, rest, *_ = KINDS[kind]
    known = nets.measured(model, nets.items(model, 16))
    return precision.write(model, wanted, known, rest=rest, **more)


def engine_bytes(model: onnx.ModelProto, folder: Path) -> int:
    """Size of the engine that TensorRT-RTX builds of it."""
    onnx.save(model, str(folder / "net.onnx"))
    return rtx.engine_bytes(folder / "net.onnx")


@every_net
@every_kind
def test_every_precision_is_valid_onnx_with_the_same_inputs_and_outputs(
    name: str, kind: str
) -> None:
    model = nets.NETS[name]()
    written = write(model, kind).model
    onnx.checker.check_model(written, full_check=True)
    assert signature(written) == signature(model)
    assert (written.opset_import[0].version, written.ir_version) == KINDS[kind][2:4]


@every_net
@every_kind
def test_every_precision_answers_as_the_graph_does(name: str, kind: str) -> None:
    model = nets.NETS[name]()
    x = nets.items(model, 8, seed=1)
    written = write(model, kind).model
    # ONNX Runtime has no bfloat16 convolutions on CPUs; ONNX's own evaluator has.
    got = run(written, x=x)["y"] if kind == "bf16" else nets.answer(written, x)
    assert nets.sqnr_db(nets.answer(model, x), got) > KINDS[kind][4]


@every_net
@every_kind
def test_every_precision_is_parsed_and_built_by_tensorrt(
    name: str, kind: str, tmp_path: Path
) -> None:
    written = write(nets.NETS[name](), kind).model
    assert engine_bytes(written, tmp_path)


def test_only_the_edges_of_a_half_graph_are_float() -> None:
    written = write(nets.residual_net(), "fp16").model
    assert nets.ops(written).count("Cast") == 2
    kinds = {tensor.data_type for tensor in written.graph.initializer}
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_int8_with_halves_has_half_scales_and_casts_at_the_edges_only() -> None:
    written = write(nets.residual_net(), "int8+fp16").model
    assert nets.ops(written).count("Cast") == 2
    scales = [one for one in written.graph.initializer if "scale" in one.name]
    assert {one.data_type for one in scales} == {onnx.TensorProto.FLOAT16}


def test_a_layer_whose_fp32_values_leave_float16_stays_fp32_with_its_neighbours(
    tmp_path: Path,
) -> None:
    model = nets.root_mean_square()
    x = np.ones((1, 16), np.float32)
    written = precision.write(model, FP16, nets.measured(model, x))
    (block,) = written.kept
    assert str(block) == ("pow_1..sqrt_3 in fp32: p reaches 9e+04; float16 ends at 65504")
    # ONNX Runtime computes halves in FP32 and would hide an infinity: this evaluator does not.
    assert run(written.model, x=x)["y"] == 300
    naive = half.convert(model, half.FP16, keep=())
    with np.errstate(over="ignore"):
        assert run(naive, x=x)["y"] == np.inf
    assert engine_bytes(written.model, tmp_path)


def test_halves_of_which_nothing_is_known_say_so() -> None:
    written = precision.write(nets.residual_net(), FP16, Measured())
    (note,) = written.notes
    assert "overflow was not checked" in note


def test_bfloat16_reaches_as_far_as_float32_and_keeps_nothing() -> None:
    model = nets.root_mean_square()
    written = precision.write(model, BF16, nets.measured(model, np.ones((1, 16), np.float32)))
    assert written.kept == ()


def test_a_normalization_is_kept_where_the_squares_inside_it_would_overflow() -> None:
    model = nets.attention_net()
    calm = nets.measured(model, nets.items(model))
    assert precision.write(model, FP16, calm).kept == ()
    loud = Measured(reach={**calm.reach, "x": 400.0})
    (block,) = precision.write(model, FP16, loud).kept
    assert block.layers == ("norm",)
    assert "x reaches 400, which it squares" in block.reason


def test_what_tensorrt_has_no_bfloat16_kernel_for_stays_float() -> None:
    nodes = {node.name: node for node in write(nets.skip_net(), "bf16").model.graph.node}
    assert nodes["last"].input == ["both", "w3"]
    assert nodes["down"].input[1] == "w2_bfloat16"


def test_layers_asked_for_are_kept_out_of_int8() -> None:
    written = write(nets.residual_net(), "int8", keep=["head", "body1"])
    assert [one.layers for one in written.kept] == [("body1",), ("head",)]
    assert set(written.quantized) == {"stem", "body2", "add", "pool"}
    nodes = {node.name: node for node in written.model.graph.node}
    assert nodes["head"].input[:2] == ["flat", "w4"]
    assert nodes["body1"].input[1] == "w2"


def test_layers_asked_for_are_kept_out_of_halves() -> None:
    written = write(nets.residual_net(), "fp16", keep=["head"])
    (kept,) = written.kept
    assert (kept.layers, kept.precision, kept.reason) == (("head",), FP32, "asked for")
    nodes = {node.name: node for node in written.model.graph.node}
    assert nodes["head"].input == ["flat", "w4", "b4"]


def test_a_layer_to_keep_that_does_not_exist_is_a_question() -> None:
    with pytest.raises(UnknownName, match=r"--keep 'haed'.*Did you mean head"):
        write(nets.residual_net(), "int8", keep=["haed"])


def test_a_layer_whose_input_never_moved_is_not_quantized_and_told() -> None:
    model = nets.residual_net()
    known = nets.measured(model, nets.items(model))
    amax = {name: value for name, value in known.amax.items() if name != "r2"}
    written = precision.write(model, INT8, Measured(amax=amax))
    (kept,) = written.kept
    assert str(kept) == "body2 in fp32: no range of its input"


def test_what_must_be_measured_is_what_is_written() -> None:
    model = nets.residual_net()
    int8 = precision.needs(model, INT8, rest=FP32)
    assert int8.amax == ("x", "r1", "r2", "flat", "r3")
    assert int8.reach == ()
    mixed = precision.needs(model, INT8, rest=FP16)
    assert mixed.amax == int8.amax
    assert mixed.reach[0] == "x"
    assert mixed.reach[-1] == "y"
    assert precision.needs(model, FP32, rest=FP32) == precision.Needs()


def test_a_graph_that_carries_its_pairs_is_passed_through(tmp_path: Path) -> None:
    quantized = write(nets.residual_net(), "int8").model
    assert precision.carried(quantized) is INT8
    assert precision.layers(quantized) == ()
    assert precision.needs(quantized, INT8, rest=FP32) == precision.Needs()
    again = precision.write(quantized, INT8, Measured())
    assert again.model.SerializeToString() == quantized.SerializeToString()
    assert again.notes == ("the graph has its Q/DQ pairs already",)
    typed = precision.write(quantized, INT8, Measured(), rest=FP16)
    assert engine_bytes(typed.model, tmp_path)
    assert nets.ops(typed.model).count("Cast") == 2


def test_a_graph_in_halves_is_passed_through_and_refuses_the_others() -> None:
    halves = write(nets.residual_net(), "fp16").model
    assert precision.carried(halves) is FP16
    assert precision.needs(halves, FP16, rest=FP32) == precision.Needs()
    assert precision.write(halves, FP16, Measured()).notes == ("the graph is in fp16 already",)
    with pytest.raises(UsageError, match="--precision int8: the graph is in fp16 already"):
        precision.write(halves, INT8, Measured())


def test_fp32_is_the_graph_as_it_is() -> None:
    model = nets.residual_net()
    written = precision.write(model, FP32, Measured())
    assert written.model is model
    assert written.notes == ()


def test_the_source_is_not_touched() -> None:
    for kind in KINDS:
        model = nets.skip_net()
        before = model.SerializeToString()
        write(model, kind)
        assert model.SerializeToString() == before


def test_unnamed_nodes_are_called_by_their_output() -> None:
    model = nets.residual_net()
    for node in model.graph.node:
        node.name = ""
    assert precision.layers(model) == ("c1", "c2", "c3", "y", "sum", "pooled")
    assert write(model, "int8", keep=["c2"]).quantized == ("c1", "c3", "y", "sum", "pooled")


def test_constants_that_do_not_fit_are_brought_to_the_nearest_that_do() -> None:
    big, tiny = np.array([1e9, -np.inf, 1.0], np.float32), np.array([1e-12, 0, -1e-12], np.float32)
    model = graph(
        [
            helper.make_node("Clip", ["x", "", "big"], ["c"], name="clip"),
            helper.make_node("Add", ["x", "tiny"], ["y"], name="add"),
        ],
        {"x": ["batch", 3]},
        {"y": ["batch", 3]},
        {"tiny": tiny, "big": big},
    )
    written = half.convert(model, half.FP16, keep=())
    values = {one.name: numpy_helper.to_array(one) for one in written.graph.initializer}
    assert values["big_float16"].tolist() == [65504, -np.inf, 1]
    assert values["tiny_float16"].tolist() == [2.0**-24, 0, -(2.0**-24)]


def test_a_bfloat16_constant_is_rounded_to_even() -> None:
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -2.5, 3e38], np.float32)
    model = graph(
        [helper.make_node("Add", ["x", "k"], ["y"], name="add")],
        {"x": ["batch", 5]},
        {"y": ["batch", 5]},
        {"k": values},
    )
    (constant,) = half.convert(model, half.BF16, keep=()).graph.initializer
    want = [1, 1, 1 + 2**-6, -2.5, float(np.float32(3e38))]
    got = numpy_helper.to_array(constant).astype(np.float32)
    assert got == pytest.approx(want, rel=2**-8)
    assert got.tolist()[:4] == want[:4]


def test_operators_without_halves_and_what_sub_graphs_read_stay_float() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["r", "one"], ["then"], name="inner")],
        "then",
        [],
        [helper.make_tensor_value_info("then", onnx.TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["r"], ["else"], name="inner2")],
        "else",
        [],
        [helper.make_tensor_value_info("else", onnx.TensorProto.FLOAT, None)],
    )
    model = graph(
        [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("ReduceSum", ["r"], ["s"], name="sum", keepdims=0),
            helper.make_node("Greater", ["s", "one"], ["g"], name="greater"),
            helper.make_node("If", ["g"], ["i"], name="if", then_branch=inner, else_branch=other),
            helper.make_node("Mul", ["i", "one"], ["y"], name="mul"),
        ],
        {"x": ["batch", 4]},
        {"y": ["batch", 4]},
        {"one": np.array(1, np.float32)},
    )
    written = half.convert(model, half.FP16, keep=())
    onnx.checker.check_model(written, full_check=True)
    x = np.array([[1, -2, 3, 4]], np.float32)
    assert nets.answer(written, x).tolist() == nets.answer(model, x).tolist()
    nodes = {node.name: node for node in written.graph.node}
    assert nodes["relu"].output[0] == "r_float16"
    assert nodes["greater"].input[0] == "s"
    assert nodes["mul"].input[0] == "i_float16"


def test_a_weight_that_two_layers_count_differently_has_two_pairs() -> None:
    model = graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="one"),
            helper.make_node("Gemm", ["a", "w"], ["y"], name="two", transB=1),
        ],
        {"x": ["batch", 4]},
        {"y": ["batch", 4]},
        {"w": weights(4, 4)},
    )
    written = write(model, "int8").model
    assert nets.ops(written).count("QuantizeLinear") == 4
    x = nets.items(model, 16)
    assert nets.sqnr_db(nets.answer(model, x), nets.answer(written, x)) > 30
