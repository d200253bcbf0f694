from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.graph.graphs import card, conv_net, mixing_net
from tests.graph.test_wire import big_net
from trtfuse.cli.export import export
from trtfuse.core import card as cards
from trtfuse.core.errors import ExportFailed, UsageError
from trtfuse.core.options import ExportOptions
from trtfuse.graph.model import describe, save

app = typer.Typer()
app.command()(export)


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_steps_are_a_table_and_the_last_line_is_stable(tmp_path: Path) -> None:
    save(conv_net(10, opset=9), tmp_path / "in.onnx")
    (tmp_path / "card.json").write_text(cards.dumps(card()))
    out = tmp_path / "face.onnx"
    result = invoke(tmp_path / "in.onnx", "--card", tmp_path / "card.json", "-o", out)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[-1] == f"trtfuse export: OK {out}, dynamic batch, largest difference 0"
    for word in ("dynamic batch", "opset 17", "simplify", "file", "kept"):
        assert word in result.stdout
    assert "input 'x': [10, 3, 8, 8] -> [batch, 3, 8, 8]" in result.stdout
    assert "reading" in result.stderr
    assert describe(out).card == card()


def test_an_onnx_source_needs_a_name_for_the_result(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    result = invoke(tmp_path / "in.onnx")
    assert isinstance(result.exception, UsageError)
    assert "say where the result goes" in str(result.exception)
    assert isinstance(invoke(tmp_path / "gone.onnx").exception, UsageError)


def test_a_result_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    result = invoke(tmp_path / "in.onnx", "-o", tmp_path / "in.onnx" / "out.onnx")
    assert isinstance(result.exception, UsageError)
    assert "in.onnx/out.onnx: cannot be written (" in str(result.exception)


def test_a_factory_names_its_own_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("tests.graph.nets:DictNet", "--shape", "3,4,4", "--no-simplify")
    assert result.exit_code == 0
    assert result.stdout.endswith(
        "trtfuse export: OK DictNet.onnx, dynamic batch, largest difference 0\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"DictNet.onnx", "DictNet.export.json"}


@pytest.mark.parametrize("shape", ["3,256,", "3x256", "0,4", "-1", ""])
def test_a_shape_that_is_none_is_refused(shape: str) -> None:
    result = invoke("tests.graph.nets:DictNet", f"--shape={shape}")
    assert isinstance(result.exception, UsageError)
    assert "needs whole numbers above 0" in str(result.exception)


def test_flags_reach_the_options(tmp_path: Path) -> None:
    save(conv_net("n", "s"), tmp_path / "in.onnx")
    words = (tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--shape", "3,16,24")
    assert invoke(*words, "--seed", "7", "--opset", "18").exit_code == 0
    for flag, value in (("--tolerance", "0"), ("--tolerance", "nan"), ("--seed", "-5")):
        wrong = invoke(*words, flag, value)
        assert isinstance(wrong.exception, UsageError)
        assert flag in str(wrong.exception)
    wrong = invoke(*words[:3], "--shape", "4,16,24")
    assert "input 'x' is" in str(wrong.exception)


def test_a_refused_graph_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    save(mixing_net(), tmp_path / "in.onnx")
    result = invoke(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
    assert isinstance(result.exception, ExportFailed)
    assert result.exception.exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_the_defaults_stand_in_the_options_alone() -> None:
    import inspect

    defaults = {n: p.default for n, p in inspect.signature(export).parameters.items()}
    options = ExportOptions(model="m", output=Path())
    for name in ("card", "simplify", "tolerance", "opset", "seed"):
        assert defaults[name] == getattr(options, name)


def test_shapes_may_have_types_and_names(tmp_path: Path) -> None:
    words = ("tests.graph.nets:TokenNet", "-o", tmp_path / "net.onnx")
    result = invoke(*words, "--shape", "int64:7", "--shape", "bool:7")
    assert result.exit_code == 0
    assert [one.dtype for one in describe(tmp_path / "net.onnx").inputs] == ["int64", "bool"]
    named: tuple[str | Path, ...] = (
        "tests.graph.nets:AnchorNet",
        "-o",
        tmp_path / "net.onnx",
        "--batch-input",
        "image",
    )
    result = invoke(*named, "--shape", "3,h,8", "--shape", "10,4", "--shape", "float32:")
    assert result.exit_code == 0, result.exception
    shapes = [one.shape for one in describe(tmp_path / "net.onnx").inputs]
    assert shapes == [("batch", 3, "h", 8), (10, 4), ()]


def test_arguments_and_weights_reach_the_factory(tmp_path: Path) -> None:
    words = ("tests.graph.nets:ScaledNet", "--shape", "3,8,8", "-o", tmp_path / "net.onnx")
    assert invoke(*words, "--arg", "width=5", "--arg", "gain=0.5").exit_code == 0
    assert describe(tmp_path / "net.onnx").outputs[0].shape == ("batch", 5, 6, 6)
    wrong = invoke(*words, "--arg", "width")
    assert "needs a name and a value, as scale=4" in str(wrong.exception)
    wrong = invoke(*words, "--arg", "width=5", "--weights", tmp_path / "none.pt")
    assert "none.pt: does not exist" in str(wrong.exception)


def test_the_report_lies_beside_the_graph(tmp_path: Path) -> None:
    save(conv_net(10, opset=9), tmp_path / "in.onnx")
    assert invoke(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx").exit_code == 0
    report = json.loads((tmp_path / "out.export.json").read_text())
    assert report["model"]["sha256"] == describe(tmp_path / "out.onnx").sha256
    assert report["steps"][0]["name"] == "dynamic batch"
    assert all(
        {"absolute", "relative", "mean"} <= set(one)
        for step in report["steps"]
        for one in step["proof"]["differences"]
    )
    assert report["rewrites"][0]["after"] == ["batch", 3, 8, 8]


def test_a_static_batch_is_said_to_be_one(tmp_path: Path) -> None:
    save(conv_net(3), tmp_path / "in.onnx")
    result = invoke(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--static-batch")
    assert result.stdout.splitlines()[-1].startswith(f"trtfuse export: OK {tmp_path}/out.onnx, sta")
    wrong = invoke(
        tmp_path / "in.onnx", "-o", tmp_path / "o.onnx", "--static-batch", "--batch-input", "x"
    )
    assert "--static-batch excludes" in str(wrong.exception)


def test_sizes_of_memory_are_read_as_people_write_them(tmp_path: Path) -> None:
    save(big_net(), tmp_path / "in.onnx")
    words = (tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
    assert invoke(*words, "--external-data-threshold", "1KiB").exit_code == 0
    assert (tmp_path / "out.onnx.data").stat().st_size > 16_000
    wrong = invoke(*words, "--simplify-memory", "lots")
    assert "--simplify-memory lots: needs a size such as" in str(wrong.exception)


def test_fusing_is_a_step_of_the_table(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    (tmp_path / "card.json").write_text(cards.dumps(card()))
    words = (tmp_path / "in.onnx", "--card", tmp_path / "card.json", "-o", tmp_path / "out.onnx")
    result = invoke(*words, "--fuse", "pre,post")
    assert result.exit_code == 0
    assert "fuse pre, post" in result.stdout
    assert describe(tmp_path / "out.onnx").inputs[0].dtype == "uint8"
    wrong = invoke(*words, "--fuse", "pre,postt")
    assert "Did you mean post" in str(wrong.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--opset", "5"), "--opset 5: --target any needs one from 7 to 25"),
        (("--opset", "99"), "--opset 99: --target any needs one from 7 to 25"),
        (("--opset", "20", "--target", "tensorrt8.6"), "needs one from 7 to 17"),
        (("--constant", "x=1", "--constant", "x=2"), "--constant x=2: --constant x=1 is given too"),
        (("--batch-axis", "x=1", "--batch-axis", "x=2"), "--batch-axis x=1 is given too"),
    ],
)
def test_what_contradicts_itself_or_the_target_is_refused(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    result = invoke(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", *words)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_an_operator_set_that_was_asked_for_is_reached_or_nothing_is_written(
    tmp_path: Path,
) -> None:
    save(conv_net(opset=13), tmp_path / "in.onnx")
    result = invoke(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--opset", "12")
    assert isinstance(result.exception, ExportFailed)
    assert "opset 13 is newer than 12 and stays. Leave --opset out" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_the_result_is_called_as_an_onnx_file_is(tmp_path: Path) -> None:
    save(conv_net(), tmp_path / "in.onnx")
    result = invoke(tmp_path / "in.onnx", "-o", tmp_path / "out.txt")
    assert isinstance(result.exception, UsageError)
    assert "out.txt: needs a name that ends in .onnx" in str(result.exception)
