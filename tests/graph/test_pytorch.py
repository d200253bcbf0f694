from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.graph import nets
from tests.graph.graphs import card, run, weights
from trtfuse.core.errors import ExportFailed, UnknownName, UsageError
from trtfuse.core.options import ExportOptions
from trtfuse.graph.export import ExportReport, export
from trtfuse.graph.model import describe, load, opset, save


def exported(
    tmp_path: Path, factory: str, *shapes: tuple[int, ...], opset: int = 17
) -> ExportReport:
    options = ExportOptions(
        model=f"tests.graph.nets:{factory}",
        output=tmp_path / "net.onnx",
        shapes=shapes,
        opset=opset,
    )
    return export(options, lambda _: None)


def test_a_module_left_in_training_mode_is_exported_in_eval_mode(tmp_path: Path) -> None:
    """E04: BatchNorm and Dropout(0.5), answering as the module does in eval mode."""
    report = exported(tmp_path, "ConvNet", (3, 16, 16))
    model = load(tmp_path / "net.onnx")
    assert report.model.inputs[0].shape == ("batch", 3, 16, 16)
    assert report.model.outputs[0].shape == ("batch", 4, 14, 14)
    assert not {"Dropout", "BatchNormalization"} & {node.op_type for node in model.graph.node}
    assert (opset(model), model.ir_version) == (17, 8)
    x = weights(3, 3, 16, 16)
    with torch.no_grad():
        expected = nets.ConvNet().eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run(model, x=x)["output"], expected, atol=1e-5)
    assert report.notes == (
        "the module was in training mode; exported in eval mode",
        "exported with torch.export",
    )


def test_each_parts_own_mode_is_restored(tmp_path: Path) -> None:
    """E04."""
    before = {name: part.training for name, part in nets.shared.named_modules()}
    assert len(set(before.values())) == 2
    exported(tmp_path, "same_again", (3, 8, 8))
    assert {name: part.training for name, part in nets.shared.named_modules()} == before


def test_the_module_is_the_witness_at_batches_on_both_sides_of_the_traced_one(
    tmp_path: Path,
) -> None:
    report = exported(tmp_path, "BakedNet", (3, 8, 8))
    assert [one.after for one in report.rewrites] == [(-1, 192)]
    assert report.notes[-1] == "exported with TorchScript; torch.export gave a static axis"
    model = load(tmp_path / "net.onnx")
    for batch in (1, 2, 5):
        x = weights(batch, 3, 8, 8)
        with torch.no_grad():
            expected = nets.BakedNet()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(run(model, x=x)["output"], expected, atol=1e-5)


def test_names_of_nested_outputs_are_kept_and_none_is_noted(tmp_path: Path) -> None:
    """E06: a dict with None and a tuple inside, in its own order."""
    report = exported(tmp_path, "DictNet", (3, 8, 8))
    assert [one.name for one in report.model.outputs] == ["boxes", "scores.0", "scores.1"]
    assert "output 'aux' is None and was dropped" in report.notes
    x = weights(2, 3, 8, 8)
    answers = run(load(tmp_path / "net.onnx"), x=x)
    np.testing.assert_array_equal(answers["boxes"], x * 2)
    np.testing.assert_array_equal(answers["scores.1"], x - 1)


def test_two_inputs_and_a_tuple_are_named_after_the_signature(tmp_path: Path) -> None:
    report = exported(tmp_path, "PairNet", (3, 4, 4), (3,))
    assert [one.name for one in report.model.inputs] == ["image", "embedding"]
    assert [one.shape[0] for one in report.model.inputs] == ["batch", "batch"]
    assert [one.name for one in report.model.outputs] == ["output.0", "output.1"]


def test_a_module_that_mixes_items_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ExportFailed) as refused:
        exported(tmp_path, "MixingNet", (3, 8, 8))
    assert "The source is right at batch 1 only: output 'output' differs" in str(refused.value)
    assert "items of a batch change each other: ReduceMean" in str(refused.value)
    assert "Look in forward for what goes over the first axis" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("factory", ["RandomNet", "CountingNet"])
def test_a_module_that_answers_otherwise_when_asked_again_is_told_so(
    tmp_path: Path, factory: str, static: bool
) -> None:
    options = ExportOptions(
        model=f"tests.graph.nets:{factory}",
        output=tmp_path / "net.onnx",
        shapes=((1, 8) if static else (8,),),
        static_batch=static,
    )
    with pytest.raises(ExportFailed, match="answers otherwise when it is asked the same again"):
        export(options, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_an_if_that_a_trace_goes_through_one_way_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportFailed, match="an if that keeps what it was traced with") as refused:
        exported(tmp_path, "BranchNet", (4,))
    assert "training framework" not in str(refused.value)
    assert "Exported with TorchScript; torch.export failed: " in str(refused.value)
    assert capsys.readouterr().err == ""


def test_the_rounding_of_float16_can_be_allowed_for(tmp_path: Path) -> None:
    options = ExportOptions(
        model="tests.graph.nets:HalfNet", output=tmp_path / "net.onnx", shapes=((3, 8, 8),)
    )
    with pytest.raises(ExportFailed, match=r"computes in float16: --tolerance 0\.002 allows"):
        export(options, lambda _: None)
    export(replace(options, tolerance=0.002), lambda _: None)
    assert (tmp_path / "net.onnx").exists()


def test_what_an_exporter_leaves_of_a_later_operator_set_is_taken_out(tmp_path: Path) -> None:
    exported(tmp_path, "SpectrumNet", (16,))
    model, x = load(tmp_path / "net.onnx"), weights(3, 16)
    assert opset(model) == 17
    want = np.abs(np.fft.rfft(x))
    np.testing.assert_allclose(run(model, x=x)["output"], want, rtol=1e-4, atol=1e-5)


def test_weights_that_were_narrowed_are_said_where_the_module_then_fails(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Before, float64 was made float32: line\.weight"):
        exported(tmp_path, "StubbornNet", (8,))


def test_a_module_that_writes_into_its_input_spoils_no_proof(tmp_path: Path) -> None:
    exported(tmp_path, "WritingNet", (3, 4, 4))
    x = weights(2, 3, 4, 4)
    answers = run(load(tmp_path / "net.onnx"), x=x.copy())
    np.testing.assert_allclose(answers["output"], x * 2 + 1, rtol=1e-6)


def test_the_asked_operator_set_is_kept(tmp_path: Path) -> None:
    exported(tmp_path, "ConvNet", (3, 8, 8), opset=18)
    assert opset(load(tmp_path / "net.onnx")) == 18


def test_a_card_may_open_the_size_that_was_traced(tmp_path: Path) -> None:
    from trtfuse.core import card as cards

    path = tmp_path / "card.json"
    path.write_text(cards.dumps(card(None, output="output")))
    options = ExportOptions(
        model="tests.graph.nets:ConvNet",
        output=tmp_path / "net.onnx",
        card=path,
        shapes=((3, 16, 16),),
    )
    report = export(options, lambda _: None)
    assert report.model.inputs[0].shape == ("batch", 3, "height", "width")
    assert report.model.card == card(None, output="output")


def test_a_factory_in_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 3\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ExportOptions(
        model="my_own_net:Net", output=tmp_path / "out" / "net.onnx", shapes=((2,),)
    )
    report = export(options, lambda _: None)
    assert report.largest_difference == 0
    assert describe(tmp_path / "out" / "net.onnx") == report.model


@pytest.mark.parametrize(
    ("factory", "shapes", "kind", "words"),
    [
        ("ConfNet", [(3, 8, 8)], UnknownName, r"'ConfNet': not known\. Did you mean ConvNet"),
        ("not_a_module", [(3, 8, 8)], UsageError, r"gave a list, needs to be a callable"),
        ("ConvNet", [], UsageError, r"forward takes x; got 0 shapes\. Give one --shape an input"),
        ("ConvNet", [(3, 8, 8), (3,)], UsageError, r"forward takes x; got 2 shapes"),
        ("PairNet", [(3, 8, 8)], UsageError, r"forward takes image, embedding; got 1 shapes"),
        ("EchoNet", [(3, 8, 8)], UsageError, r"uses the name x for more than one"),
        ("TextNet", [(3, 8, 8)], UsageError, r"output 'label' of the module is of type str"),
        ("NothingNet", [(3, 8, 8)], UsageError, r"forward returns no tensor"),
        ("ConvNet", [(3, 999_999, 999_999)], UsageError, r"input 'x': .* takes \d+\.\d GB"),
        ("raising", [(3,)], UsageError, r"nets\.py:\d+ raised ValueError \(no such size\)\."),
        ("ConvNet", [(4, 8, 8)], UsageError, r"fails on random x float32 \[2, 4, 8, 8\]: Given gr"),
    ],
)
def test_what_the_caller_can_mend_is_said_before_tracing(
    tmp_path: Path, factory: str, shapes: list[tuple[int, ...]], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        exported(tmp_path, factory, *shapes)
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    options = ExportOptions(model="no_such.thing:Net", output=tmp_path / "n.onnx", shapes=((1,),))
    with pytest.raises(UsageError, match=r"cannot import no_such\.thing"):
        export(options, lambda _: None)


def test_a_type_that_is_none_is_refused(tmp_path: Path) -> None:
    options = ExportOptions(
        model="tests.graph.nets:ConvNet",
        output=tmp_path / "n.onnx",
        shapes=((3, 8, 8),),
        dtypes=("float31",),
    )
    with pytest.raises(UnknownName, match=r"'float31': not known\. Did .* as in int64:77"):
        export(options, lambda _: None)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("unfinished_net:Net", r".*unfinished_net\.py:1 raised Syn"),
        (":Net", r"needs a module and a factory"),
        ("unfinished_net:", r"needs a module and a factory"),
    ],
)
def test_a_module_that_is_none_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unfinished_net.py").write_text("def Net(:\n")
    options = ExportOptions(model=model, output=tmp_path / "n.onnx", shapes=((1,),))
    with pytest.raises(UsageError, match=words):
        export(options, lambda _: None)


def test_the_exporters_warnings_do_not_reach_the_caller(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exported(tmp_path, "ConvNet", (3, 8, 8))
    assert [str(one.message) for one in caught if "onnx" in str(one.filename)] == []


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    exported(tmp_path, "ConvNet", (3, 8, 8))
    first = (tmp_path / "net.onnx").read_bytes()
    save(load(tmp_path / "net.onnx"), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == first


def test_inputs_of_a_starred_parameter_are_numbered(tmp_path: Path) -> None:
    report = exported(tmp_path, "ManyNet", (3,), (5,))
    assert [one.name for one in report.model.inputs] == ["parts_0", "parts_1"]
    first, second = weights(2, 3), weights(2, 5)
    answers = run(load(tmp_path / "net.onnx"), parts_0=first, parts_1=second)
    want = first + second.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(answers["output"], want, rtol=1e-5)
    with pytest.raises(UsageError, match="forward takes no input; got 0 shapes"):
        exported(tmp_path, "ManyNet")


def test_a_parameter_that_needs_its_keyword_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="forward needs gain by keyword, which no graph can take"):
        exported(tmp_path, "KeywordNet", (3,))
