"""Files made to hurt, through the command itself: a sentence, an exit code, and little memory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from tests.graph.graphs import conv_net, graph, ints
from tests.graph.test_wire import big_net
from trtfuse.graph.model import save
from trtfuse.graph.wire import varint

# The command, and what the kernel says of its memory afterwards.
COMMAND = """
import sys
from trtfuse.cli.main import main
try:
    main()
finally:
    sys.stderr.write(open("/proc/self/status").read())
"""


def truncated(path: Path) -> None:
    path.write_bytes(big_net().SerializeToString()[:-900])


def cyclic(path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["y"]), helper.make_node("Relu", ["y"], ["b"])]
    save(graph(nodes, {"x": [1, 3]}, {"y": [1, 3]}, {}), path)


def endless(path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["x"]).SerializeToString()
    nodes = (b"\x0a" + varint(len(node)) + node) * 1_000_000
    path.write_bytes(b"\x08\x08\x3a" + varint(len(nodes)) + nodes)


def elsewhere(path: Path) -> None:
    onnx.save_model(big_net(), str(path), save_as_external_data=True, location="net.data")
    model = onnx.load(str(path), load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../../../../../../etc/passwd"
    path.write_bytes(model.SerializeToString())


def lying(path: Path) -> None:
    model = conv_net()
    model.graph.initializer[0].dims[0] = 1 << 40
    path.write_bytes(model.SerializeToString())


def inflating(path: Path) -> None:
    """40 GB of zeros, made by a node."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["top"], keepdims=0),
        helper.make_node("Add", ["x", "top"], ["y"]),
    ]
    shape = {"shape": ints(100_000, 1 << 30)}
    save(graph(nodes, {"x": [1, 3]}, {"y": [1, 3]}, shape), path)


def gigantic(path: Path) -> None:
    save(conv_net(1, 1 << 24), path)


def nonsense(path: Path) -> None:
    """An attribute that no operator has."""
    model = conv_net()
    model.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("pads", "everywhere"))
    path.write_bytes(model.SerializeToString())


def lacking(path: Path) -> None:
    """A node of nothing."""
    model = conv_net()
    model.graph.node.append(helper.make_node("Dropout", [], [], name="drop"))
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (truncated, 2, "not an ONNX file, or cut short"),
        (cyclic, 2, "nodes wait for each other in a cycle"),
        (endless, 2, "more than 100000 nodes"),
        (elsewhere, 2, "lies outside the model's folder"),
        (lying, 2, "holds 432 bytes, needs"),
        (inflating, 3, "the source itself fails on random inputs"),
        (gigantic, 2, "items of a proof, needs to be below 2"),
        (nonsense, 3, "the source itself is not loaded"),
        (lacking, 2, "a node Dropout 'drop' lacks inputs, outputs or its value"),
    ],
)
def test_a_hostile_file_is_one_sentence(
    tmp_path: Path, make: Callable[[Path], None], code: int, words: str
) -> None:
    make(tmp_path / "net.onnx")
    command = [sys.executable, "-c", COMMAND, "export", "net.onnx", "-o", "out.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", done.stderr, re.MULTILINE)
    assert peak
    assert int(peak[1]) < 250_000  # 90 000 of them are the libraries
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "out"))] == []
