"""Files that are no models, or are made to hurt: refused in a sentence, with little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.graph.graphs import conv_net, graph, weights
from trtfuse.core.errors import UsageError
from trtfuse.graph.model import load, save
from trtfuse.graph.weights import gather, write, write_beside
from trtfuse.graph.wire import MOST_NODES, outline, varint


def big_net() -> onnx.ModelProto:
    """x [batch, 64] -> MatMul with 16 KiB, a constant of 4 KiB in a node -> y."""
    row = numpy_helper.from_array(weights(16, 64), "row")
    return graph(
        [
            helper.make_node("Constant", [], ["bias"], value=row),
            helper.make_node("ReduceSum", ["bias", "axis"], ["b"], keepdims=1),
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["y"]),
        ],
        {"x": ["batch", 64]},
        {"y": ["batch", 64]},
        {"w": weights(64, 64), "axis": np.array([0])},
    )


def test_large_tensors_stay_in_the_file_and_small_ones_come_along(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(big_net().SerializeToString())
    model = outline(path)
    large, small = model.graph.initializer
    where = {one.key: one.value for one in large.external_data}
    assert where["location"] == "net.onnx"
    cut = path.read_bytes()[int(where["offset"]) :][: int(where["length"])]
    np.testing.assert_array_equal(np.frombuffer(cut, np.float32).reshape(64, 64), weights(64, 64))
    assert (small.name, bool(small.external_data)) == ("axis", False)
    assert load(path) == big_net()


@pytest.mark.parametrize("form", ["float_data", "double_data", "int64_data", "string_data"])
def test_every_form_of_numbers_is_read(tmp_path: Path, form: str) -> None:
    kinds: dict[str, tuple[int, NDArray[Any]]] = {
        "float_data": (TensorProto.FLOAT, weights(600)),
        "double_data": (TensorProto.DOUBLE, weights(600).astype(np.float64)),
        "int64_data": (TensorProto.INT64, np.arange(600)),
        "string_data": (TensorProto.STRING, np.array([b"word"] * 600)),
    }
    kind, values = kinds[form]
    model = conv_net()
    model.graph.initializer.append(helper.make_tensor("k", kind, [600], values.tolist()))
    assert len(getattr(model.graph.initializer[1], form)) == 600
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    read = load(tmp_path / "net.onnx").graph.initializer[1]
    assert numpy_helper.to_array(read).astype(values.dtype).tolist() == values.tolist()


@pytest.mark.parametrize("beside", [False, True])
def test_a_gathered_graph_is_written_as_it_was(tmp_path: Path, beside: bool) -> None:
    path, scratch = tmp_path / "net.onnx", tmp_path / "scratch"
    scratch.mkdir()
    path.write_bytes(big_net().SerializeToString())
    model = outline(path)
    gather(model, tmp_path, scratch, source="net.onnx")
    assert len(model.SerializeToString()) < 1500
    again = tmp_path / "again.onnx"
    if beside:
        write_beside(model, scratch, again, tmp_path / "again.data", "again.data")
        assert again.stat().st_size < 1500
    else:
        write(model, scratch, again)
    onnx.checker.check_model(str(again), full_check=True)
    read = {one.name: numpy_helper.to_array(one) for one in onnx.load(str(again)).graph.initializer}
    np.testing.assert_array_equal(read["w"], weights(64, 64))
    np.testing.assert_array_equal(read["bias"], weights(16, 64))
    assert "Constant" not in [node.op_type for node in load(again).graph.node]


def test_a_shape_that_the_bytes_do_not_fill_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for name, dims in (("w", [1 << 40, 1 << 20]), ("w", [-64, -64]), ("axis", [1 << 50])):
        model = big_net()
        (tensor,) = [one for one in model.graph.initializer if one.name == name]
        del tensor.dims[:]
        tensor.dims.extend(dims)
        path.write_bytes(model.SerializeToString())
        with pytest.raises(UsageError, match=rf"tensor '{name}' (\[|has the shape)"):
            outline(path)


def test_external_data_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    onnx.save_model(
        big_net(), str(tmp_path / "net.onnx"), save_as_external_data=True, location="net.data"
    )
    data = tmp_path / "net.data"
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(UsageError, match=r"'net\.data' ends before tensor"):
        load(tmp_path / "net.onnx")


def test_a_million_nodes_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    """Whose last is broken: a parser would say so."""
    node = helper.make_node("Relu", ["x"], ["x"]).SerializeToString()
    nodes = (b"\x0a" + varint(len(node)) + node) * 1_000_000 + b"\x0a\x02\xff\xff"
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\x08" + b"\x3a" + varint(len(nodes)) + nodes)
    with pytest.raises(UsageError, match=f"more than {MOST_NODES} nodes"):
        outline(path)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 40])
def test_numbers_are_written_as_protobuf_does(number: int) -> None:
    tensor = TensorProto(dims=[number])
    assert varint(number) in tensor.SerializeToString()


def test_nested_graphs_without_end_are_refused(tmp_path: Path) -> None:
    inner = b""
    for field in (b"\x32", b"\x2a", b"\x0a") * 150:  # attribute.g, node.attribute, graph.node
        inner = field + varint(len(inner)) + inner
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\x08\x3a" + varint(len(inner)) + inner)
    with pytest.raises(UsageError, match="not an ONNX file, or cut short"):
        outline(path)


def test_a_file_saved_here_is_one_that_onnx_reads(tmp_path: Path) -> None:
    save(big_net(), tmp_path / "net.onnx")
    assert onnx.load(str(tmp_path / "net.onnx")) == big_net()
