"""Failures that people have met in public, each with what is right."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.graphs import conv_net, graph, ints, run, weights
from tests.graph.test_wire import big_net
from trtfuse.build.build import build
from trtfuse.core.errors import ExportFailed, UnknownName, UsageError
from trtfuse.core.options import BuildOptions, ExportOptions
from trtfuse.graph.export import ExportReport, export
from trtfuse.graph.model import describe, load, save
from trtfuse.graph.target import TARGETS, large_integers, refusals
from trtfuse.graph.wire import outline

DATA = Path(__file__).parents[1] / "data" / "graph"


def exported(model: Path | str, output: Path, **options: object) -> ExportReport:
    given = ExportOptions(model=str(model), output=output, **options)  # type: ignore[arg-type]
    return export(given, lambda _: None)


def test_e01_a_batch_that_was_read_as_a_number_is_repaired(tmp_path: Path) -> None:
    report = exported(DATA / "baked.onnx", tmp_path / "out.onnx")
    assert [one.name for one in report.rewrites] == ["Reshape 'rs'"]
    for batch in (1, 2, 5):
        x = weights(batch, 3, 8, 8)
        assert len(run(load(tmp_path / "out.onnx"), x=x)["y"]) == batch


def test_e03_a_name_that_is_none_is_refused_before_any_work(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    with pytest.raises(UnknownName, match=r"--batch-input 'image': not known\..* Known: x"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx", batch_inputs=("image",))
    with pytest.raises(UnknownName, match="Known: embedding, image"):
        exported(
            "tests.graph.nets:PairNet",
            tmp_path / "out.onnx",
            shapes=((3, 4, 4), (3,)),
            batch_inputs=("images",),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_e08_the_end_of_a_slice_is_harmless(tmp_path: Path) -> None:
    found = large_integers(load(DATA / "slice_end.onnx"), None)
    assert (found.count, found.harmless, found.harmful) == (3, ("e",), ())
    report = exported(DATA / "slice_end.onnx", tmp_path / "out.onnx", target="tensorrt8.6")
    assert len(report.notes) == 1
    assert report.notes[0].startswith("3 INT64 constants, 1 of them beyond 32 bits as ends")


def test_e08_a_number_that_would_be_cut_is_an_error_where_it_is() -> None:
    model = load(DATA / "big_const.onnx")
    assert large_integers(model, None).harmful == ("k",)
    (sentence,) = refusals(model, TARGETS["tensorrt8.6"], None)
    assert sentence.startswith("1 of 1 INT64 constants do not fit 32 bits")
    assert refusals(model, TARGETS["tensorrt10"], None) == ()


def shifted() -> onnx.ModelProto:
    """y = x + (2**40 - 2**40), which 32 bits compute as x too, but not by way of 2**40."""
    return graph(
        [
            helper.make_node("Cast", ["x"], ["i"], to=7),
            helper.make_node("Add", ["i", "k"], ["j"]),
            helper.make_node("Sub", ["j", "k"], ["m"]),
            helper.make_node("Cast", ["m"], ["f"], to=1),
            helper.make_node("Add", ["f", "x"], ["y"]),
        ],
        {"x": ["batch", 4]},
        {"y": ["batch", 4]},
        {"k": ints(1 << 40)},
    )


def test_e08_the_target_decides_whether_it_is_an_error(tmp_path: Path) -> None:
    save(shifted(), tmp_path / "in.onnx")
    output = tmp_path / "out.onnx"
    with pytest.raises(ExportFailed, match=r"tensorrt8\.6 will not read it.*INT64 constants"):
        exported(tmp_path / "in.onnx", output, target="tensorrt8.6", simplify=False)
    assert not output.exists()
    assert exported(tmp_path / "in.onnx", output, target="rtx", simplify=False).notes == ()
    (note,) = exported(tmp_path / "in.onnx", output, simplify=False).notes
    assert note.startswith("TensorRT 8.6 will not read it: 1 of 1 INT64 constants do not fit")


def test_e09_a_graph_in_two_files_is_read_from_both(tmp_path: Path) -> None:
    report = exported(DATA / "pair" / "m.onnx", tmp_path / "out.onnx")
    assert report.model.inputs[0].shape == ("batch", 64)
    shutil.copy(DATA / "pair" / "m.onnx", tmp_path / "lone.onnx")
    with pytest.raises(UsageError, match=r"'m\.onnx\.data' is missing beside it"):
        exported(tmp_path / "lone.onnx", tmp_path / "again.onnx")


def test_e09_weights_beyond_the_threshold_get_a_file_of_their_own(tmp_path: Path) -> None:
    save(big_net(), tmp_path / "in.onnx")
    output = tmp_path / "out" / "m.onnx"
    report = exported(tmp_path / "in.onnx", output, external_data_bytes=1024)
    assert {path.name for path in output.parent.iterdir()} == {
        "m.onnx",
        "m.onnx.data",
        "m.export.json",
    }
    places = {
        entry.value
        for tensor in outline(output).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert places == {"m.onnx.data"}
    assert describe(output) == report.model
    data = output.with_name("m.onnx.data")
    before = data.read_bytes()
    data.write_bytes(bytes([before[0] ^ 1]) + before[1:])  # the engine's key covers this file too
    assert describe(output).sha256 != report.model.sha256
    data.write_bytes(before)
    x = weights(2, 64)
    np.testing.assert_allclose(
        run(onnx.load(str(output)), x=x)["y"], run(big_net(), x=x)["y"], rtol=1e-4, atol=1e-5
    )
    shutil.copy(output, tmp_path / "m.onnx")
    options = BuildOptions(model=tmp_path / "m.onnx", engines=tmp_path / "engines")
    with pytest.raises(UsageError, match=r"'m\.onnx\.data' is missing beside it"):
        build(options, lambda _: None)


def test_e10_only_the_picture_carries_the_batch(tmp_path: Path) -> None:
    report = exported(DATA / "mixed.onnx", tmp_path / "out.onnx")
    assert {one.name: one.shape for one in report.model.inputs} == {
        "img": ("batch", 3, 8, 8),
        "anchors": (10, 4),
        "thr": (),
    }
    assert report.model.outputs[0].shape == ("batch", 10, 4)


def table_net(*rows: int | str) -> onnx.ModelProto:
    """x [batch, 3, 4] times a table [rows, 1, 4] that is summed: only x can carry the batch."""
    return graph(
        [
            helper.make_node("ReduceSum", ["table", "axis"], ["row"], keepdims=1, name="sum"),
            helper.make_node("Mul", ["x", "row"], ["y"], name="scale"),
        ],
        {"x": [rows[0], 3, 4], "table": [rows[1], 1, 4]},
        {"y": [rows[0], 3, 4]},
        {"axis": ints(0)},
    )


@pytest.mark.parametrize("rows", [("n", "k"), (1, 1), ("n", "n")])
def test_e10_who_carries_the_batch_is_found_by_running(
    tmp_path: Path, rows: tuple[int | str, int | str]
) -> None:
    save(table_net(*rows), tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert [one.shape[0] == "batch" for one in report.model.inputs] == [True, False]


def test_e10_who_carries_the_batch_can_be_said(tmp_path: Path) -> None:
    report = exported(
        "tests.graph.nets:AnchorNet",
        tmp_path / "out.onnx",
        shapes=((3, 8, 8), (10, 4), ()),
        batch_inputs=("image",),
    )
    assert {one.name: one.shape for one in report.model.inputs} == {
        "image": ("batch", 3, 8, 8),
        "anchors": (10, 4),
        "threshold": (),
    }
    assert report.model.outputs[0].shape == ("batch", 10, 4)


def state_net() -> onnx.ModelProto:
    """A recurrent step: x [1, 4] and state [2, 1, 4], whose batch is on axis 1."""
    return graph(
        [
            helper.make_node("ReduceMean", ["state"], ["m"], axes=[0], keepdims=0, name="mean"),
            helper.make_node("Add", ["x", "m"], ["y"], name="add"),
            helper.make_node("Add", ["state", "x"], ["new"], name="step"),
        ],
        {"x": [1, 4], "state": [2, 1, 4]},
        {"y": [1, 4], "new": [2, 1, 4]},
        {},
    )


def test_a_batch_on_another_axis_is_refused_by_name_or_kept(tmp_path: Path) -> None:
    save(state_net(), tmp_path / "in.onnx")
    with pytest.raises(ExportFailed) as error:
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert "output 'new' has shape (2, 1, 4) at batch 1: its first axis needs" in str(error.value)
    assert "keep it with --static-batch" in str(error.value)
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx", static_batch=True)
    assert [one.shape for one in report.model.inputs] == [(1, 4), (2, 1, 4)]
    assert report.notes[0] == "the batch was left as it is"
    named = state_net()
    for value, axis in ((named.graph.input[0], 0), (named.graph.input[1], 1)):
        value.type.tensor_type.shape.dim[axis].dim_param = "n"
    save(named, tmp_path / "in.onnx")
    with pytest.raises(ExportFailed, match=r"'state' \[2, n, 4\].*axis 1.*--batch-axis state=1"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")


@pytest.mark.parametrize("named", [False, True])
def test_a_batch_on_another_axis_can_be_moved_to_the_front(tmp_path: Path, named: bool) -> None:
    """A recurrent state, as silero has it; in the graph two transpositions do the rest."""
    model = state_net()
    if named:
        for value, axis in ((model.graph.input[0], 0), (model.graph.input[1], 1)):
            value.type.tensor_type.shape.dim[axis].dim_param = "n"
    save(model, tmp_path / "in.onnx")
    report = exported(
        tmp_path / "in.onnx", tmp_path / "out.onnx", batch_axes=(("state", 1), ("new", 1))
    )
    assert [one.shape for one in report.model.inputs] == [("batch", 4), ("batch", 2, 4)]
    assert [one.shape for one in report.model.outputs] == [("batch", 4), ("batch", 2, 4)]
    assert "the batch of 'state' is now its axis 0, not 1" in report.notes
    x, state = weights(3, 4), weights(3, 2, 4)
    got = run(load(tmp_path / "out.onnx"), x=x, state=state)
    for n in range(3):
        alone = run(state_net(), x=x[n : n + 1], state=state[n][:, None])
        np.testing.assert_allclose(got["y"][n], alone["y"][0], rtol=1e-6)
        np.testing.assert_allclose(got["new"][n], alone["new"][:, 0], rtol=1e-6)


@pytest.mark.parametrize("measured", [False, True])
def test_the_axis_is_one_of_the_output_as_it_is(tmp_path: Path, measured: bool) -> None:
    """A text reader of ddddocr declares two axes for an output that has three."""
    model = state_net()
    if measured:  # ONNX does not infer what is reshaped to such a shape
        (maker,) = (node for node in model.graph.node if "new" in node.output)
        maker.output[0] = "made"
        model.graph.node.extend(
            [
                helper.make_node("Shape", ["state"], ["sizes"]),
                helper.make_node("Reshape", ["made", "sizes"], ["new"]),
            ]
        )
    del model.graph.output[1].type.tensor_type.shape.dim[2:]
    save(model, tmp_path / "in.onnx")
    report = exported(
        tmp_path / "in.onnx", tmp_path / "out.onnx", batch_axes=(("state", 1), ("new", 1))
    )
    shape = report.model.outputs[1].shape
    assert (shape[0], len(shape)) == ("batch", 3)


def rated_net() -> onnx.ModelProto:
    """y = x * 2 at a rate of 16000, and nothing that runs at any other."""
    scale = helper.make_node("Mul", ["x", "two"], ["twice"], name="twice")
    wrong = helper.make_node("Reshape", ["x", "nowhere"], ["lost"], name="lost")
    branches = [
        helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, 1, None)])
        for node, name in ((scale, "twice"), (wrong, "lost"))
    ]
    model = graph(
        [
            helper.make_node("Equal", ["rate", "k16"], ["known"], name="known"),
            helper.make_node(
                "If", ["known"], ["y"], then_branch=branches[0], else_branch=branches[1], name="if"
            ),
        ],
        {"x": [1, 4]},
        {"y": [1, 4]},
        {"two": np.full(1, 2, np.float32), "k16": np.array(16000), "nowhere": ints(7, 7)},
    )
    model.graph.input.append(helper.make_tensor_value_info("rate", 7, []))
    return model


def test_e10_an_input_that_never_changes_becomes_a_constant(tmp_path: Path) -> None:
    """So that a card can describe what is left, and random numbers do not stand for a rate."""
    save(rated_net(), tmp_path / "in.onnx")
    for static in (False, True):
        with pytest.raises(ExportFailed, match="say which with --constant NAME=VALUE"):
            exported(tmp_path / "in.onnx", tmp_path / "out.onnx", static_batch=static)
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx", constants=(("rate", "16000"),))
    assert [one.shape for one in report.model.inputs] == [("batch", 4)]
    assert report.notes[0] == "input 'rate' is now the constant 16000"
    assert [node.op_type for node in load(tmp_path / "out.onnx").graph.node] == ["Mul"]
    np.save(tmp_path / "anchors.npy", weights(10, 4))
    values = (("anchors", str(tmp_path / "anchors.npy")), ("thr", "0.5"))
    report = exported(DATA / "mixed.onnx", tmp_path / "out.onnx", constants=values)
    assert [one.name for one in report.model.inputs] == ["img"]
    image = weights(2, 3, 8, 8)
    want = run(load(DATA / "mixed.onnx"), img=image, anchors=weights(10, 4), thr=np.float32(0.5))
    got = run(load(tmp_path / "out.onnx"), img=image)
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"constants": (("rat", "1"),)}, "--constant 'rat': not known. Did you mean rate"),
        ({"constants": (("rate", "fast"),)}, "rate=fast: needs a number or a .npy file"),
        ({"constants": (("rate", "0.5"),)}, "is float64 [], input 'rate' needs int64 []"),
        ({"constants": (("rate", "gone.npy"),)}, "rate=gone.npy: needs a number or a .npy"),
        ({"batch_axes": (("x", 2),)}, "--batch-axis x=2: 'x' is [1, 4], needs an axis behind"),
        ({"batch_axes": (("z", 1),)}, "--batch-axis 'z': not known"),
    ],
)
def test_ends_that_are_not_there_are_refused(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    save(rated_net(), tmp_path / "in.onnx")
    with pytest.raises((UsageError, UnknownName)) as error:
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx", **options)
    assert words in str(error.value)
    with pytest.raises(UsageError, match=r"are for an \.onnx"):
        exported("tests.graph.nets:ConvNet", tmp_path / "out.onnx", **options)


def test_a_static_export_is_proven_too(tmp_path: Path) -> None:
    """It answers to whole inputs as its source does, simplified or not."""
    save(conv_net(3), tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx", static_batch=True)
    assert [step.name for step in report.steps] == ["static batch", "simplify", "file"]
    assert report.model.inputs[0].shape == (3, 3, 8, 8)
    assert report.model.outputs[0].shape == (3, 4, 8, 8)


def test_an_output_that_ignores_its_input_is_noted(tmp_path: Path) -> None:
    model = conv_net("batch")
    model.graph.node.append(helper.make_node("Mul", ["y", "zero"], ["z"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    model.graph.output.append(helper.make_tensor_value_info("z", 1, ["batch", 4, 8, 8]))
    save(model, tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.notes[0] == "output 'z' is the same for every item: nothing is proven of it"


def test_a_graph_whose_every_output_ignores_its_input_is_refused(tmp_path: Path) -> None:
    """onnx's "light" models: all weights are zeros, and every proof of them would hold."""
    model = conv_net("batch")
    model.graph.initializer[0].raw_data = bytes(432)
    save(model, tmp_path / "in.onnx")
    with pytest.raises(ExportFailed, match="every output is the same for all of 5 random items"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")


def test_two_unknown_sizes_of_one_name_are_two(tmp_path: Path) -> None:
    """ "?" twice is one and the same size to TensorRT, and its build fails."""
    save(conv_net("?", "?"), tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.model.inputs[0].shape == ("batch", 3, "x_2", "x_3")


def test_a_size_that_is_right_at_one_value_only_is_found(tmp_path: Path) -> None:
    """An open size, and behind it a constant that is right at 64 x 96, our first choice, alone."""
    model = graph(
        [
            helper.make_node("GlobalAveragePool", ["x"], ["p"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=1),
            helper.make_node("Shape", ["x"], ["all"], name="measure", start=2),
            helper.make_node("Equal", ["all", "first"], ["same"]),
            helper.make_node("Cast", ["same"], ["f"], to=1),
            helper.make_node("ReduceMin", ["f"], ["one"], keepdims=0),
            helper.make_node("ReduceMax", ["s"], ["top"], keepdims=0),
            helper.make_node("Sub", ["unit", "one"], ["other"]),
            helper.make_node("Mul", ["top", "other"], ["mixed"]),
            helper.make_node("Add", ["p", "mixed"], ["y"]),
        ],
        {"x": ["n", 3, "h", "w"]},
        {"y": ["n", 3, 1, 1]},
        {"axes": ints(2, 3), "first": ints(64, 96), "unit": np.array(1, np.float32)},
    )
    save(model, tmp_path / "in.onnx")
    with pytest.raises(ExportFailed, match=r"right at x \[batch, 3, 64, 96\], but not at"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")


def test_sizes_that_were_said_are_the_only_ones_proven(tmp_path: Path) -> None:
    save(conv_net("n", "s"), tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx", shapes=((3, 16, 24),))
    assert report.model.inputs[0].shape == ("batch", 3, "s", "s")
    assert report.notes == ("input 'x': proven at x [batch, 3, 16, 24] only, its sizes stay open",)


def test_a_size_that_is_named_becomes_open(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    report = exported(tmp_path / "in.onnx", tmp_path / "out.onnx", shapes=((3, "h", "w"),))
    assert report.model.inputs[0].shape == ("batch", 3, "h", "w")
    assert report.notes == ()


def test_an_input_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    model = conv_net("batch", 1 << 20)
    save(model, tmp_path / "in.onnx")
    with pytest.raises(UsageError, match=r"takes 61440\.0 GB for the 5 items of a proof"):
        exported(tmp_path / "in.onnx", tmp_path / "out.onnx")
