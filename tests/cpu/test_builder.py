from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cpu import graphs
from trtfuse.core.errors import BuildFailed
from trtfuse.cpu.builder import build


def test_the_engine_is_one_file_with_fused_nodes(tmp_path: Path) -> None:
    model = graphs.picture(tmp_path / "model.onnx", size=[8, 8])
    build(model, tmp_path / "engine.onnx")
    nodes = [node.op_type for node in onnx.load(tmp_path / "engine.onnx").graph.node]
    assert "Relu" not in nodes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine.onnx", "model.onnx"]


def test_nothing_is_written_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(graphs.line(tmp_path / "model.onnx"))
    # ONNX Runtime warns of weights that are inputs too, and of weights that nobody uses.
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("slope", TensorProto.FLOAT, [4]))
    model.graph.initializer.add().CopyFrom(
        onnx.numpy_helper.from_array(np.zeros(1, np.float32), "unused")
    )
    onnx.save(model, tmp_path / "model.onnx")
    build(tmp_path / "model.onnx", tmp_path / "engine.onnx")
    assert capfd.readouterr() == ("", "")


def test_a_graph_it_cannot_build_is_told_in_its_own_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(graphs.line(tmp_path / "model.onnx"))
    model.graph.node[0].op_type = "Mull"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(BuildFailed, match=r"model\.onnx: ONNX Runtime cannot build it: .*Mull"):
        build(tmp_path / "model.onnx", tmp_path / "engine.onnx")
    assert not (tmp_path / "engine.onnx").exists()
    assert capfd.readouterr() == ("", "")
