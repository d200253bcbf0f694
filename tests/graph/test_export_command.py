from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.graph.graphs import card, conv_net, mixing_net
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


def test_a_factory_names_its_own_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("tests.graph.nets:DictNet", "--shape", "3,4,4", "--no-simplify")
    assert result.exit_code == 0
    assert result.stdout.endswith(
        "trtfuse export: OK DictNet.onnx, dynamic batch, largest difference 0\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["DictNet.onnx"]


@pytest.mark.parametrize("shape", ["3,256,", "3x256", "0,4", "-1", ""])
def test_a_shape_that_is_none_is_refused(shape: str) -> None:
    result = invoke("tests.graph.nets:DictNet", f"--shape={shape}")
    assert isinstance(result.exception, UsageError)
    assert "needs whole numbers above 0" in str(result.exception)


def test_flags_reach_the_options(tmp_path: Path) -> None:
    save(conv_net("n", "s"), tmp_path / "in.onnx")
    words = (tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--shape", "3,16,24")
    assert invoke(*words, "--seed", "7", "--opset", "18").exit_code == 0
    wrong = invoke(*words, "--tolerance", "0")
    assert isinstance(wrong.exception, UsageError)
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
