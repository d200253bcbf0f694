"""What a file is, said from the file alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from tests.graph.graphs import card, conv_net, graph, ints, weights
from tests.graph.test_wire import big_net
from trtfuse.cli.inspect import inspect as command
from trtfuse.core.errors import UsageError
from trtfuse.graph.inspect import Inspection, inspect
from trtfuse.graph.model import put_card, save

app = typer.Typer()
app.command()(command)


def inspected(folder: Path, model: onnx.ModelProto, **options: object) -> Inspection:
    save(model, folder / "net.onnx")
    return inspect(folder / "net.onnx", **options)  # type: ignore[arg-type]


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_cost_is_counted_from_shapes(tmp_path: Path) -> None:
    found = inspected(tmp_path, conv_net("batch"), batch=5)
    values = 5 * 4 * 8 * 8
    assert found.cost.parameters == 4 * 3 * 3 * 3
    assert found.cost.flops == 2 * values * 27 + values  # the convolution, then the Relu
    assert found.cost.activation_bytes == 2 * 4 * values
    assert found.cost.largest_bytes == 4 * values
    assert found.cost.unknown == ()
    assert (found.open_axes, found.sizes[0].shape) == (("batch",), (5, 3, 8, 8))


def test_products_of_matrices_and_recurrent_layers_count_their_multiplications(
    tmp_path: Path,
) -> None:
    model = graph(
        [
            helper.make_node("Gemm", ["x", "w"], ["g"], transB=1),
            helper.make_node("Reshape", ["g", "steps"], ["s"]),
            helper.make_node("LSTM", ["s", "i", "r"], ["y"], hidden_size=6),
        ],
        {"x": [2, 5]},
        {"y": [4, 1, 2, 6]},
        {
            "w": weights(12, 5),
            "steps": ints(4, 2, 3),
            "i": weights(1, 24, 3),
            "r": weights(1, 24, 6),
        },
    )
    expected = 2 * 2 * 12 * 5 + 2 * 4 * 2 * 24 * (3 + 6)
    assert inspected(tmp_path, model).cost.flops == expected


def test_open_sizes_are_the_cards_or_those_that_are_said(tmp_path: Path) -> None:
    model = conv_net("n", "s")
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"
    assert inspected(tmp_path, model).sizes[0].shape == (1, 3, 64, 96)
    assert inspected(tmp_path, model, size=(32, 48)).sizes[0].shape == (1, 3, 32, 48)
    put_card(model, card((16, 24)))
    assert inspected(tmp_path, model, batch=2).sizes[0].shape == (2, 3, 16, 24)


def test_weights_in_another_file_are_counted_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(big_net(), str(path), save_as_external_data=True, location="net.data")
    found = inspect(path)
    assert found.external == (tmp_path / "net.data",)
    assert found.file_bytes == sum(one.stat().st_size for one in tmp_path.iterdir())
    assert found.cost.weight_bytes == 64 * 64 * 4 + 8
    assert found.precision == "float32"


def quantized() -> onnx.ModelProto:
    model = graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="back"),
            helper.make_node("Relu", ["d"], ["y"]),
        ],
        {"x": ["batch", 3]},
        {"y": ["batch", 3]},
        {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.int8)},
    )
    return model


def test_what_a_tensorrt_will_refuse_is_said_by_version(tmp_path: Path) -> None:
    said = dict(inspected(tmp_path, quantized()).refusals)
    names = "QuantizeLinear 'quantize', DequantizeLinear 'back'"
    assert said["rtx"] == (f"zero points other than 0: {names}",)
    assert said["ort"] == ()
    said = dict(inspected(tmp_path, conv_net("batch", opset=19)).refusals)
    assert said["tensorrt8.6"] == ("opset 19 is newer than the 17 that it reads",)
    assert said["tensorrt10"] == ()
    assert inspected(tmp_path, quantized()).precision == "float32, 1 Q/DQ pairs"


def test_bytes_inside_a_graph_foreign_operators_and_control_flow_are_said(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.UINT8, None)],
    )
    model = graph(
        [
            helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0]),
            helper.make_node(
                "If", ["yes"], ["i"], name="if", then_branch=branch, else_branch=branch
            ),
            helper.make_node("DynamicQuantizeLinear", ["f"], ["q", "s", "z0"], name="dynamic"),
            helper.make_node("Gelu", ["s"], ["y"], name="gelu", domain="com.microsoft"),
        ],
        {"x": ["batch", 3], "f": ["batch", 3]},
        {"y": []},
        {"yes": np.array(True)},
    )
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    found = inspected(tmp_path, model)
    assert dict(found.refusals)["rtx"] == (
        "operators of the domain com.microsoft, which are not ONNX's: Gelu",
        "operators that its parser does not know: DynamicQuantizeLinear 'dynamic'",
        "input 'x' is uint8 and meets Transpose 'turn', not a Cast",
    )
    assert found.remarks == ("control flow, which TensorRT runs with limits: If 'if'",)


def test_the_command_shows_it_as_tables_or_as_json(tmp_path: Path) -> None:
    model = conv_net("batch")
    put_card(model, card())
    save(model, tmp_path / "net.onnx")
    shown = invoke(tmp_path / "net.onnx", "--batch", "2")
    assert shown.exit_code == 0
    for words in ("embed on 'x'", "108 in 432 B", "x [2, 3, 8, 8]", "Conv", "nothing against it"):
        assert words in shown.stdout
    found = json.loads(invoke(tmp_path / "net.onnx", "--json").stdout)
    assert found["cost"]["parameters"] == 108
    assert found["card"]["input"]["name"] == "x"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("net.pt",), "what is inspected is an .onnx file, or engines"),
        (("none.onnx",), "does not exist"),
        (("net.onnx", "--batch", "0"), "--batch 0: needs a whole number above 0"),
        (("net.onnx", "--size", "256"), "--size 256: needs height and width, as 256x512"),
    ],
)
def test_a_wrong_word_is_one_sentence(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    save(conv_net(), tmp_path / "net.onnx")
    error = invoke(tmp_path / words[0], *words[1:]).exception
    assert isinstance(error, UsageError)
    assert sentence in str(error)


def test_a_graph_that_cannot_be_run_can_be_inspected(tmp_path: Path) -> None:
    cyclic = graph(
        [
            helper.make_node("Add", ["x", "b"], ["a"], name="one"),
            helper.make_node("Relu", ["a"], ["b"], name="two"),
            helper.make_node("Konv", ["b"], ["y"], name="three"),
        ],
        {"x": ["batch", 3]},
        {"y": ["batch", 3]},
        {},
    )
    found = inspected(tmp_path, cyclic)
    assert dict(found.operators) == {"Add": 1, "Relu": 1, "Konv": 1}
    assert "Konv" in found.cost.unknown
