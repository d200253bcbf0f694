from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graph.graphs import (
    card,
    conv_net,
    flatten_net,
    graph,
    ints,
    mixing_net,
    run,
    weights,
    yolox_head,
)
from trtfuse.core import card as cards
from trtfuse.core.card import Card
from trtfuse.core.errors import CardError, ExportFailed, UsageError
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import ModelSpec
from trtfuse.graph.check import Reference
from trtfuse.graph.dynamic import with_dynamic_batch
from trtfuse.graph.export import Chain, ExportReport, export
from trtfuse.graph.model import describe, load, opset, put_card, save, signature
from trtfuse.graph.source import Source, opened

DATA = Path(__file__).parents[1] / "data" / "graph"


def quiet(_: str) -> None:
    """No progress."""


def exported(
    folder: Path, model: onnx.ModelProto, the_card: Card | None = None, **options: object
) -> ExportReport:
    save(model, folder / "in.onnx")
    if the_card:
        (folder / "card.json").write_text(cards.dumps(the_card))
        options["card"] = folder / "card.json"
    return export(
        ExportOptions(model=str(folder / "in.onnx"), output=folder / "out.onnx", **options),  # type: ignore[arg-type]
        quiet,
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("batch", [1, 10])
def test_a_static_batch_becomes_dynamic_and_answers_as_before(tmp_path: Path, batch: int) -> None:
    report = exported(tmp_path, conv_net(batch), card())
    assert report.model == describe(tmp_path / "out.onnx")
    assert report.model.inputs[0].shape == ("batch", 3, 8, 8)
    assert report.model.outputs[0].shape == ("batch", 4, 8, 8)
    assert report.model.card == card()
    assert [step.name for step in report.steps] == ["dynamic batch", "simplify", "file"]
    x = weights(batch, 3, 8, 8)
    expected = run(conv_net(batch), x=x)["y"]
    answers = Reference(load(tmp_path / "out.onnx"))
    np.testing.assert_allclose(answers({"x": x})["y"], expected, atol=1e-5)
    np.testing.assert_allclose(answers({"x": x[:1]})["y"], expected[:1], atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        flatten_net(1, (1, 192)),
        flatten_net(6, (6, -1)),
        yolox_head(),
        load(DATA / "baked.onnx"),
    ],
    ids=["static", "static 6", "yolox", "baked behind an open axis"],
)
def test_baked_reshapes_are_repaired_and_reported(tmp_path: Path, model: onnx.ModelProto) -> None:
    report = exported(tmp_path, model)
    assert sum(one.name.startswith("Reshape") for one in report.rewrites) == 1
    assert report.model.outputs[0].shape[0] == "batch"


def test_a_graph_that_is_dynamic_already_keeps_its_nodes(tmp_path: Path) -> None:
    report = exported(tmp_path, flatten_net("batch", (-1, 192)))
    assert report.rewrites == ()
    assert report.notes == ()


def test_a_leading_one_that_is_no_batch_survives_behind_an_open_axis(tmp_path: Path) -> None:
    """x [n, 4] -> [1, n, 4] and back: repairing it would be wrong, and it is not needed."""
    model = graph(
        [
            helper.make_node("Reshape", ["x", "sequence"], ["s"], name="sequence"),
            helper.make_node("Relu", ["s"], ["r"]),
            helper.make_node("Reshape", ["r", "flat"], ["y"], name="flat"),
        ],
        {"x": ["n", 4]},
        {"y": ["n", 4]},
        {"sequence": ints(1, -1, 4), "flat": ints(-1, 4)},
    )
    report = exported(tmp_path, model)
    assert [one.name for one in report.rewrites] == ["input 'x'"]


def test_a_source_that_is_wrong_at_larger_batches_is_no_witness_there(tmp_path: Path) -> None:
    """Runs at every batch, but softmax reaches over all items: true of single items only."""
    model = graph(
        [
            helper.make_node("Reshape", ["x", "row"], ["r"], name="row"),
            helper.make_node("Softmax", ["r"], ["s"], axis=1),
            helper.make_node("Reshape", ["s", "back"], ["y"], name="back"),
        ],
        {"x": ["n", 4]},
        {"y": ["n", 4]},
        {"row": ints(1, -1), "back": ints(-1, 4)},
    )
    report = exported(tmp_path, model)
    assert report.notes[0].startswith("the source is right at batch 1 only: output 'y' differs")
    assert [one.name for one in report.rewrites] == ["Reshape 'row'", "input 'x'"]
    x = weights(3, 4)
    wanted = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(run(load(tmp_path / "out.onnx"), x=x)["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize("batch", ["batch", 1, 4])
def test_items_that_mix_are_refused_with_numbers_and_the_node(
    tmp_path: Path, batch: int | str
) -> None:
    with pytest.raises(ExportFailed) as error:
        exported(tmp_path, mixing_net(batch))
    words = str(error.value)
    assert "output 'y' differs by" in words
    assert "(0.0001 is allowed)" in words
    assert "Softmax 'over_batch'" in words
    assert names(tmp_path) == {"in.onnx"}


def test_a_constant_that_cannot_follow_is_refused_with_its_node(tmp_path: Path) -> None:
    """Turned, the data has the batch on axis 1, and a target holds it there."""
    model = graph(
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            helper.make_node("Reshape", ["t", "heads"], ["h"], name="heads"),
            helper.make_node("ReduceSum", ["h"], ["s"], keepdims=0),
            helper.make_node("Add", ["x", "s"], ["y"], name="add"),
        ],
        {"x": [1, 3, 4]},
        {"y": [1, 3, 4]},
        {"heads": ints(3, 1, 2, 2)},
    )
    with pytest.raises(ExportFailed) as error:
        exported(tmp_path, model)
    assert "does not run at batch 2" in str(error.value) or "differs by" in str(error.value)
    assert "hold the batch as a number: Reshape 'heads'" in str(error.value)
    assert "--static-batch" in str(error.value)
    assert names(tmp_path) == {"in.onnx"}


def test_an_output_without_a_batch_is_refused(tmp_path: Path) -> None:
    model = conv_net()
    model.graph.node.append(helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("total", 1, []))
    with pytest.raises(ExportFailed, match="output 'total' is one number for a whole batch"):
        exported(tmp_path, model)


def test_a_source_that_gives_nan_is_refused(tmp_path: Path) -> None:
    model = graph([helper.make_node("Sqrt", ["x"], ["y"])], {"x": [1, 9]}, {"y": [1, 9]}, {})
    with pytest.raises(ExportFailed, match=r"source itself fails .* output 'y' holds NaN"):
        exported(tmp_path, model)


def test_only_inputs_with_a_batch_become_dynamic(tmp_path: Path) -> None:
    model = graph(
        [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
            helper.make_node("Mul", ["m", "anchors"], ["y"]),
        ],
        {"x": ["n", 3, 4], "anchors": [6, 4]},
        {"y": ["n", 6, 4]},
        {},
    )
    report = exported(tmp_path, model)
    assert [one.shape for one in report.model.inputs] == [("batch", 3, 4), (6, 4)]
    assert report.model.outputs[0].shape == ("batch", 6, 4)


def test_the_cards_size_is_set_and_proven(tmp_path: Path) -> None:
    report = exported(tmp_path, conv_net(2), card((16, 24)))
    assert report.model.inputs[0].shape == ("batch", 3, 16, 24)
    assert report.model.outputs[0].shape == ("batch", 4, 16, 24)
    x = weights(1, 3, 16, 24)
    np.testing.assert_allclose(
        run(load(tmp_path / "out.onnx"), x=x)["y"],
        run(conv_net(1, "s"), x=x)["y"],
        atol=1e-5,
    )


def test_a_dynamic_card_opens_the_size(tmp_path: Path) -> None:
    report = exported(tmp_path, conv_net(2), card(None))
    assert report.model.inputs[0].shape == ("batch", 3, "height", "width")
    assert report.model.outputs[0].shape == ("batch", 4, "y_2", "y_3")


def test_a_size_that_is_baked_in_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match="its batch and size cannot be made dynamic"):
        exported(tmp_path, flatten_net(1, (1, 192)), card((16, 16)))
    resizing = graph(
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], name="back_to_8")],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 3, 8, 8]},
        {"sizes": ints(1, 3, 8, 8)},
    )
    with pytest.raises(ExportFailed, match="holds its own size in Resize 'back_to_8'"):
        exported(tmp_path, resizing, card((16, 16)))
    assert names(tmp_path) == {"in.onnx", "card.json"}


def test_a_card_of_another_model_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(CardError, match="input 'picture' is not in the graph"):
        exported(tmp_path, conv_net(), card(name="picture"))
    with pytest.raises(CardError, match="needs 4 axes"):
        exported(tmp_path, mixing_net(), card())
    with pytest.raises(CardError, match="output 'scores' is not in the graph"):
        exported(tmp_path, conv_net(), card(output="scores"))
    assert names(tmp_path) == {"in.onnx", "card.json"}


def test_the_card_inside_is_kept_unless_another_is_given(tmp_path: Path) -> None:
    model = conv_net(1)
    put_card(model, card())
    assert exported(tmp_path, model).model.card == card()
    wide = card((16, 16))
    put_card(model, wide)
    report = exported(tmp_path, model)
    assert (report.model.card, report.model.inputs[0].shape) == (wide, ("batch", 3, 16, 16))
    assert exported(tmp_path, model, card()).model.card == card()
    put_card(model, card(name="picture"))
    with pytest.raises(CardError, match="'picture' is not in the graph"):
        exported(tmp_path, model)


def test_a_card_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    options = ExportOptions(
        model=str(tmp_path / "in.onnx"), output=tmp_path / "out.onnx", card=tmp_path / "no.json"
    )
    with pytest.raises(UsageError, match=r"no\.json: cannot be read"):
        export(options, quiet)


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    before = (tmp_path / "in.onnx").read_bytes()
    (tmp_path / "link.onnx").symlink_to("in.onnx")
    for name in ("in.onnx", "link.onnx"):
        options = ExportOptions(model=str(tmp_path / "in.onnx"), output=tmp_path / name)
        with pytest.raises(UsageError, match="is the source itself"):
            export(options, quiet)
    assert (tmp_path / "in.onnx").read_bytes() == before


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        export(ExportOptions(model="in.onnx", output=tmp_path), quiet)


def test_an_old_output_stays_when_the_export_fails(tmp_path: Path) -> None:
    (tmp_path / "out.onnx").write_text("precious")
    with pytest.raises(ExportFailed):
        exported(tmp_path, mixing_net())
    assert (tmp_path / "out.onnx").read_text() == "precious"


def chain_of(folder: Path, model: onnx.ModelProto) -> Chain:
    save(model, folder / "in.onnx")
    (folder / "scratch").mkdir()
    options = ExportOptions(model=str(folder / "in.onnx"), output=folder / "out.onnx")
    with opened(options, folder / "scratch") as source:
        return Chain.starting(with_dynamic_batch(source, options), options.tolerance)


def published(chain: Chain, folder: Path) -> ModelSpec:
    options = ExportOptions(model="in.onnx", output=folder / "out.onnx")
    return chain.publish(options, None, folder / "scratch")


def other_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """What a broken simplifier does: the same signature, and it runs, but answers otherwise."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    new.graph.initializer[0].raw_data = weights(4, 3, 3, 3, seed=5).tobytes()
    return new


def test_a_simplifier_that_changes_results_is_dropped_with_a_note(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, conv_net())
    before = chain.model
    chain.improve("simplify", other_weights)
    assert chain.model is before
    assert not chain.steps[-1].kept
    assert chain.notes[-1].startswith("simplify: dropped; output 'y' differs by")
    spec = published(chain, tmp_path)
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(load(spec.path).graph.initializer[0]), weights(4, 3, 3, 3)
    )


def test_a_graph_that_went_wrong_on_the_way_is_not_published(tmp_path: Path) -> None:
    chain = chain_of(tmp_path, conv_net())
    chain.model = other_weights(chain.model)
    with pytest.raises(ExportFailed, match="not written; output 'y' differs by"):
        published(chain, tmp_path)
    assert names(tmp_path) == {"in.onnx", "scratch"}


def test_small_differences_do_not_add_up_unseen(tmp_path: Path) -> None:
    """Each step is within the tolerance of the one before; the second is not of the first."""

    def drifted(model: onnx.ModelProto) -> onnx.ModelProto:
        new = onnx.ModelProto()
        new.CopyFrom(model)
        w = onnx.numpy_helper.to_array(model.graph.initializer[0])
        new.graph.initializer[0].raw_data = (w * np.float32(1 + 7e-5)).tobytes()
        return new

    chain = chain_of(tmp_path, conv_net())
    chain.improve("once", drifted)
    chain.improve("twice", drifted)
    assert [step.kept for step in chain.steps] == [True, True, False]


def test_a_graph_that_answers_otherwise_than_its_witness_is_refused(tmp_path: Path) -> None:
    """What a wrong exporter makes of a module: items stay apart, and all are wrong."""
    source = Source(
        model=other_weights(conv_net("batch")),
        folder=None,
        witness=lambda: Reference(conv_net("batch")),
        takes=signature(conv_net("batch")).inputs,
        traced_at=2,
        remedy="mend it",
        card=None,
    )
    with pytest.raises(ExportFailed, match="output 'y' differs by"):
        with_dynamic_batch(source, ExportOptions(model="net", output=tmp_path / "out.onnx"))


def test_no_simplify_leaves_the_nodes(tmp_path: Path) -> None:
    model = conv_net()
    model.graph.node.append(helper.make_node("Identity", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    exported(tmp_path, model, simplify=False)
    assert len(load(tmp_path / "out.onnx").graph.node) == 3
    exported(tmp_path, model)
    assert len(load(tmp_path / "out.onnx").graph.node) == 2


def test_an_older_operator_set_is_raised_and_a_newer_one_noted(tmp_path: Path) -> None:
    exported(tmp_path, conv_net(opset=9))
    assert opset(load(tmp_path / "out.onnx")) == 17
    report = exported(tmp_path, conv_net(opset=19))
    assert opset(load(tmp_path / "out.onnx")) == 19
    assert report.notes == (
        "opset 17: not done; opset 19 is newer than 17 and stays",
        "TensorRT 8.6 will not read it: opset 19 is newer than the 17 that it reads",
    )
