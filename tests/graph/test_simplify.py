"""The simplifier, where it goes wrong: dead, hanging, hungry, or simply mistaken."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.graphs import conv_net, graph, ints, run, weights
from trtfuse.api import isolated
from trtfuse.core.options import ExportOptions
from trtfuse.graph.export import ExportReport, export
from trtfuse.graph.model import load, save
from trtfuse.graph.simplify import Isolate, directly


def exported(folder: Path, model: onnx.ModelProto, isolate: Isolate = directly) -> ExportReport:
    save(model, folder / "in.onnx")
    options = ExportOptions(model=str(folder / "in.onnx"), output=folder / "out.onnx")
    return export(options, lambda _: None, isolate=isolate)


def in_child(**limits: float) -> Isolate:
    """As the command does it."""
    return isolated(ExportOptions(model="m", output=Path(), **limits))  # type: ignore[arg-type]


def instead(stub: Callable[..., str], isolate: Isolate) -> Isolate:
    """`isolate`, which runs `stub` and not the simplifier."""

    def isolated(function: Callable[..., object], *args: object) -> object:
        del function
        return isolate(stub, *args)

    return isolated  # type: ignore[return-value]


def die(*_: object) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def hang(*_: object) -> str:
    time.sleep(600)
    return ""


def devour(*_: object) -> str:
    return f"{len(bytes(3 << 30))} bytes"


def raise_foreign(*_: object) -> str:
    raise KeyError("c10::Error")


def write_rubbish(_: Path, after: Path) -> str:
    after.write_bytes(b"\x08\x08")
    return ""


def test_the_simplifier_works_in_a_child_as_it_does_here(tmp_path: Path) -> None:
    model = conv_net("batch")
    model.graph.node.insert(0, helper.make_node("Mul", ["two", "two"], ["unused"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights(1), "two"))
    report = exported(tmp_path, model, in_child())
    assert [step.kept for step in report.steps if step.name == "simplify"] == [True]
    assert len(load(tmp_path / "out.onnx").graph.node) == 2


@pytest.mark.parametrize(
    ("stub", "limits", "words"),
    [
        (die, {}, "simplifier was killed by SIGSEGV"),
        (hang, {"simplify_s": 3.0}, "gave no answer within 3.0 s and was ended"),
        (devour, {"simplify_bytes": 2 << 30}, "MemoryError"),
        (raise_foreign, {}, "KeyError"),
        (write_rubbish, {}, "it holds no graph"),
    ],
)
def test_a_simplifier_that_fails_costs_a_note_and_not_the_export(
    tmp_path: Path, stub: Callable[..., str], limits: dict[str, float], words: str
) -> None:
    """S03."""
    report = exported(tmp_path, conv_net(), instead(stub, in_child(**limits)))
    (note,) = report.notes
    assert note.startswith("simplify: not done; ")
    assert words in note
    assert [step.name for step in report.steps] == ["dynamic batch", "file"]
    x = weights(2, 3, 8, 8)
    np.testing.assert_allclose(
        run(load(tmp_path / "out.onnx"), x=x)["y"], run(conv_net("b"), x=x)["y"], atol=1e-5
    )


def fix_the_batch(before: Path, after: Path) -> str:
    """What onnxsim did with --input-shape: the named axis is a number afterwards."""
    model = onnx.load(str(before))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 8
    onnx.save(model, str(after))
    return ""


def test_a_simplifier_that_fixes_the_batch_is_not_believed(tmp_path: Path) -> None:
    """S01: names, types and open axes are as before, or the graph before is kept."""
    report = exported(tmp_path, conv_net(), instead(fix_the_batch, directly))
    assert "simplify" not in [step.name for step in report.steps]
    assert report.notes[0].startswith("simplify: not done; onnxsim changed the inputs from x")
    assert report.model.inputs[0].shape[0] == "batch"


def same_padding() -> onnx.ModelProto:
    """PyTorch's F.pad for TensorFlow's "same" at stride 2: one row and column, on one side only.

    onnxslim 0.1.98 folds the pads of this pattern to [0, 0, 1, 1, 0, 0, 0, 0], the other side.
    """
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Shape", ["shape"], ["rank"]),
        helper.make_node("Mul", ["rank", "two"], ["twice"]),
        helper.make_node("Sub", ["twice", "four"], ["missing"]),
        helper.make_node("ConstantOfShape", ["missing"], ["zeros"], value=_int64_zero()),
        helper.make_node("Concat", ["sides", "zeros"], ["flat"], axis=0),
        helper.make_node("Reshape", ["flat", "pairs"], ["square"]),
        helper.make_node("Slice", ["square", "last", "before", "axis", "back"], ["turned"]),
        helper.make_node("Transpose", ["turned"], ["columns"], perm=[1, 0]),
        helper.make_node("Reshape", ["columns", "line"], ["pads"]),
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    constants = {
        "two": ints(2),
        "four": ints(4),
        "sides": ints(0, 1, 0, 1),
        "pairs": ints(-1, 2),
        "last": ints(-1),
        "before": ints(-(1 << 31)),
        "axis": ints(0),
        "back": ints(-1),
        "line": ints(-1),
    }
    return graph(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 4, 4]}, constants)


def _int64_zero() -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(ints(0), "zero")


def wrong_output() -> onnx.ModelProto:
    """A head whose declared output is wrong, as in a CRNN: [1, "length"] for [batch, 4, 3]."""
    return graph(
        [
            helper.make_node("Reshape", ["x", "target"], ["r"]),
            helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 1]),
        ],
        {"x": [1, 3, 2, 2]},
        {"y": [1, "length"]},
        {"target": ints(1, 3, 4)},
    )


def branching() -> onnx.ModelProto:
    """A branch that computes shapes from the outer graph: onnxsim 0.8.1 loses the nodes' order."""
    branches = []
    for name, scale in (("then", "two"), ("else", "half")):
        nodes = [
            helper.make_node("Unsqueeze", ["r", "axis"], [f"{name}_u"]),
            helper.make_node("Squeeze", [f"{name}_u", "axis"], [f"{name}_s"]),
            helper.make_node("Shape", [f"{name}_s"], [f"{name}_shape"]),
            helper.make_node("Mul", [f"{name}_s", scale], [f"{name}_m"]),
            helper.make_node("Reshape", [f"{name}_m", f"{name}_shape"], [f"{name}_out"]),
        ]
        out = helper.make_tensor_value_info(f"{name}_out", 1, None)
        branches.append(helper.make_graph(nodes, name, [], [out]))
    return graph(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Size", ["axis"], ["size"]),
            helper.make_node("Equal", ["size", "one"], ["yes"]),
            helper.make_node(
                "If", ["yes"], ["y"], then_branch=branches[0], else_branch=branches[1]
            ),
        ],
        {"x": ["batch", 3, 4]},
        {"y": ["batch", 3, 4]},
        {
            "axis": ints(0),
            "one": np.array(1),
            "two": np.full(1, 2, np.float32),
            "half": np.full(1, 0.5, np.float32),
        },
    )


@pytest.mark.parametrize("make", [same_padding, wrong_output, branching])
def test_no_simplifiers_mistake_reaches_the_user(
    tmp_path: Path, make: Callable[[], onnx.ModelProto]
) -> None:
    shape = [size.dim_value for size in make().graph.input[0].type.tensor_type.shape.dim][1:]
    x = weights(1, *shape, seed=2)
    expected = run(make(), x=x)["y"]
    report = exported(tmp_path, make(), in_child())
    answers = run(load(tmp_path / "out.onnx"), x=np.concatenate([x, x + 1]))["y"]
    np.testing.assert_allclose(answers[:1], expected, rtol=1e-6)
    assert report.model.outputs[0].shape == ("batch", *expected.shape[1:])
