from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.graph.graphs import card, conv_net, graph, weights
from trtfuse.core.card import METADATA_KEY
from trtfuse.core.errors import CardError, UsageError
from trtfuse.core.specs import TensorSpec
from trtfuse.graph.model import describe, get_card, load, put_card, save, signature


def save_in_two(path: Path) -> Path:
    """conv_net with its weights beside it; returns the data file."""
    onnx.save_model(
        conv_net(), str(path), save_as_external_data=True, location="w.data", size_threshold=0
    )
    return path.parent / "w.data"


def test_a_saved_graph_loads_and_describes_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    save(conv_net("batch"), path)
    assert load(path) == conv_net("batch")
    spec = describe(path)
    assert spec.inputs == (TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8, 8)),)
    assert spec.outputs == (TensorSpec(name="y", dtype="float32", shape=("batch", 4, 8, 8)),)
    assert spec.card is None
    assert [one.name for one in tmp_path.iterdir()] == ["net.onnx"]


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.onnx: does not exist"):
        load(tmp_path / "gone.onnx")
    with pytest.raises(UsageError, match="is not a file"):
        describe(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello, this is no model\n" * 9, b"{}", b"\x08\x08"])
def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not an ONNX file, or cut short"):
        load(path)


def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = conv_net().SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            model = load(path)
        except UsageError:
            continue
        # What is left must be a whole graph: only trailing fields, such as the opset, may be gone.
        assert model.graph == conv_net().graph


def test_an_initializer_listed_as_an_input_is_no_input() -> None:
    model = conv_net()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3]))
    assert [one.name for one in signature(model).inputs] == ["x"]


def test_unknown_axes_get_names_of_their_own() -> None:
    model = graph([], {"x": ["?", 3, "?", None]}, {"y": [-1, "n", "n"]}, {})
    ends = signature(model)
    assert ends.inputs[0].shape == ("x_0", 3, "x_2", "x_3")
    assert ends.outputs[0].shape == ("y_0", "n", "n")


def test_an_output_that_is_no_tensor_is_named() -> None:
    model = conv_net()
    value = helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None)
    model.graph.output.append(value)
    with pytest.raises(UsageError, match="'list' is of type sequence, needs to be a tensor"):
        signature(model)


def test_the_fingerprint_covers_external_data(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    data = save_in_two(path)
    before = describe(path).sha256
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    assert describe(path).sha256 != before


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    save_in_two(path).unlink()
    for read in (load, describe):
        with pytest.raises(UsageError, match=r"'w\.data' is missing beside it"):
            read(path)


def test_external_data_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(1000))
    folder = tmp_path / "model"
    folder.mkdir()
    save_in_two(folder / "net.onnx")
    model = onnx.load(str(folder / "net.onnx"), load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../secret"
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match="outside the model's folder"):
        describe(folder / "net.onnx")


def test_external_data_of_a_constant_node_counts(tmp_path: Path) -> None:
    tensor = onnx.numpy_helper.from_array(weights(4), "value")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="constant.data")
    model = conv_net()
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=tensor))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match=r"constant\.data"):
        describe(path)


def test_a_model_beyond_one_protobuf_message_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    os.truncate(save_in_two(path), 1 << 33)  # sparse: takes no room on disk
    model = onnx.load(str(path), load_external_data=False)
    (weight,) = model.graph.initializer
    weight.dims[0] = 1 << 26
    del weight.external_data[1:]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match=r"6\.8 GB with its weights, needs to be below 2 GB"):
        load(path)


def test_a_card_comes_back_and_leaves_other_metadata_alone() -> None:
    model = conv_net()
    helper.set_model_props(model, {"author": "someone"})
    put_card(model, card())
    put_card(model, card(None))
    assert get_card(model, source="net.onnx") == card(None)
    assert {prop.key for prop in model.metadata_props} == {"author", METADATA_KEY}


def test_a_malformed_card_names_the_file() -> None:
    model = conv_net()
    helper.set_model_props(model, {METADATA_KEY: "{"})
    with pytest.raises(CardError, match=r"^net\.onnx, metadata trtfuse\.card: not JSON"):
        get_card(model, source="net.onnx")


def test_an_integer_output_is_described_as_one(tmp_path: Path) -> None:
    model = graph([helper.make_node("Shape", ["x"], ["y"])], {"x": ["n", 2]}, {"y": [2]}, {})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    save(model, tmp_path / "net.onnx")
    assert describe(tmp_path / "net.onnx").outputs[0].dtype == "int64"
