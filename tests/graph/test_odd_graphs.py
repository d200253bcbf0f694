"""Graphs that are rare, and right: what becomes of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graph.graphs import graph, run, weights
from tests.graph.test_cases import exported
from trtfuse.core.errors import ExportFailed, UsageError
from trtfuse.graph.model import load, save


def relu_net() -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    return graph([node], {"x": [1, 3, 4]}, {"y": [1, 3, 4]}, {})


def test_values_of_4_bits_may_lie_in_fields_of_32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], name="dq"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul"),
    ]
    model = graph(nodes, {"x": [1, 3]}, {"y": [1, 5]}, {"s": np.array(0.5, np.float32)})
    values = [n - 8 for n in range(15)]
    model.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [3, 5], values))
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 21))
    model.ir_version = 10
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    x = weights(2, 3)
    want = x @ (0.5 * np.array(values, np.float32).reshape(3, 5))
    np.testing.assert_allclose(run(load(tmp_path / "out.onnx"), x=x)["y"], want, rtol=1e-5)


def test_an_input_without_a_shape_gets_the_one_that_is_said(tmp_path: Path) -> None:
    model = relu_net()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    save(model, tmp_path / "in.onnx")
    with pytest.raises(UsageError, match=r"input 'x' declares no shape\. Give it with --shape"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx", shapes=((3, 4),))
    assert report.model.inputs[0].shape == ("batch", 3, 4)
    assert report.model.outputs[0].shape == ("batch", 3, 4)


def test_a_graph_that_takes_nothing_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["k"], ["y"])
    save(graph([node], {}, {"y": [4]}, {"k": weights(4)}), tmp_path / "in.onnx")
    with pytest.raises(ExportFailed, match="has no inputs"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")


def test_what_onnx_runtime_does_not_load_is_said_once_and_without_advice(tmp_path: Path) -> None:
    node = helper.make_node("Fancy", ["x"], ["y"], domain="com.acme")
    model = graph([node], {"x": [1, 3]}, {"y": [1, 3]}, {})
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    save(model, tmp_path / "in.onnx")
    with pytest.raises(ExportFailed, match=r"itself is not loaded: .*Fancy") as error:
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert "--shape" not in str(error.value)
    assert str(error.value).count("Fancy") == 1


def test_another_axis_may_be_called_as_the_batch_is(tmp_path: Path) -> None:
    model = relu_net()
    for value in (*model.graph.input, *model.graph.output):
        shape = value.type.tensor_type.shape
        shape.dim[0].dim_param, shape.dim[1].dim_param = "n", "batch"
    save(model, tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.model.inputs[0].shape == ("batch", "other_batch", 4)
    assert report.model.outputs[0].shape == ("batch", "other_batch", 4)


def test_what_is_no_tensor_or_no_number_is_refused_by_its_name(tmp_path: Path) -> None:
    model = relu_net()
    model.graph.node.append(helper.make_node("SequenceConstruct", ["x", "x"], ["s"]))
    kind = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    model.graph.output.append(kind)
    save(model, tmp_path / "in.onnx")
    with pytest.raises(UsageError, match=r"'s' is of type sequence, needs to be a tensor\. Expor"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    node = helper.make_node("Identity", ["x"], ["y"])
    model = graph([node], {"x": [1, 3]}, {"y": [1, 3]}, {})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.STRING
    save(model, tmp_path / "in.onnx")
    with pytest.raises(UsageError, match=r"input 'x': is text, needs to be"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")


def ends(inputs: list[str], outputs: list[str], *, makers: int = 1) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=f"relu_{n}") for n in range(makers)]
    model = graph(nodes, {"x": [1, 4]}, {"y": [1, 4]}, {})
    x, y = model.graph.input[0], model.graph.output[0]
    del model.graph.input[:], model.graph.output[:]
    for names, old, new in ((inputs, x, model.graph.input), (outputs, y, model.graph.output)):
        for name in names:
            value = new.add()
            value.CopyFrom(old)
            value.name = name
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ends(["x", "x"], ["y"]), "x stands twice among its inputs;"),
        (ends(["x"], ["y", "y"]), "y stands twice among its outputs;"),
        (ends(["x"], ["y"], makers=2), "y stands twice among its inputs and results of nodes;"),
        (ends(["x"], ["y", "z"]), "no node makes its output z"),
    ],
)
def test_a_name_stands_for_one_thing(model: onnx.ModelProto, said: str, tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match=said):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


@pytest.mark.parametrize(("declared", "axis"), [(0, 0), (-1, 0), (0, 1)])
def test_an_axis_declared_as_0_is_one_that_its_exporter_did_not_know(
    declared: int, axis: int, tmp_path: Path
) -> None:
    model = relu_net()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[axis].dim_value = declared
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    want = ("batch", "x_1" if axis else 3, 4)
    assert report.model.inputs[0].shape == want
    assert (
        f"input 'x' declares its axis {axis} as {declared}, which was taken for an open size"
        in (report.notes)
    )
    x = weights(2, 3, 4)
    np.testing.assert_array_equal(run(load(tmp_path / "out.onnx"), x=x)["y"], np.maximum(x, 0))


def test_one_number_for_a_whole_batch_is_refused_with_what_to_change(tmp_path: Path) -> None:
    node = helper.make_node("ReduceMean", ["x"], ["y"], name="mean", keepdims=0)
    save(graph([node], {"x": ["n", 4]}, {"y": []}, {}), tmp_path / "in.onnx")
    with pytest.raises(ExportFailed) as error:
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert str(error.value).count("output 'y' is one number for a whole batch") == 1
    assert "goes over the first axis too, and should leave it out" in str(error.value)
    assert "--shape" not in str(error.value), "its sizes are not what is wrong"


def test_a_reason_that_holds_at_every_batch_is_said_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")]
    model = graph(nodes, {"x": ["n", "length"]}, {"y": ["n", 5]}, {"w": weights(7, 5)})
    save(model, tmp_path / "in.onnx")
    with pytest.raises(ExportFailed, match=r"does not run at batch 1, 2, 5: ") as error:
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert str(error.value).count("does not run") == 1
    assert "give ones that it takes with --shape" in str(error.value)
