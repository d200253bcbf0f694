"""`trtfuse bench` on a small model: every path is measured, and files say what they should."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.models import brighter
from trtfuse.bench.result import read, write
from trtfuse.cli.main import app

FACTORY = """
import torch

def net():
    conv = torch.nn.Conv2d(3, 3, 3, padding=1, bias=False)
    with torch.no_grad():
        conv.weight.zero_()
        for channel in range(3):
            conv.weight[channel, channel, 1, 1] = {gain}
    return conv
"""
FAST = ("--batch", "1,2", "--repeats", "3", "--seconds", "0.01")


def run(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["bench", *map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of open sizes, and an engine that has settled them."""
    folder = tmp_path_factory.mktemp("bench")
    brighter(folder / "net.onnx")
    words = ["--size", "16x16", "--batch", "1:2:2", "--engines", str(folder / "engines")]
    done = CliRunner().invoke(app, ["build", str(folder / "net.onnx"), *words])
    assert done.exit_code == 0
    return folder


@pytest.fixture
def home(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(built)
    return built


def test_every_path_is_measured_and_held_against_an_earlier_result(home: Path) -> None:
    (home / "bright.py").write_text(FACTORY.format(gain=0.5))
    code, said = run(
        "net", *FAST, "--against", "naive,ort,pytorch", "--module", "bright:net",
        "--json", "a.json", "--chart", "a.svg",
    )  # fmt: skip
    assert code == 0, said
    found = read(home / "a.json")
    paths = ("pool", "device", "naive", "ort", "pytorch")
    assert {(c.path, c.batch) for c in found.cells} == {(p, b) for p in paths for b in (1, 2)}
    for cell in found.cells:
        assert len(cell.items_per_s) == 3
        assert min(cell.items_per_s) > 0
        assert cell.latency.samples >= 9
    assert found.conditions["shapes"] == "x 3x16x16"
    for other in ("ort", "pytorch"):
        assert float(found.noted[f"{other}, answers"].split()[0]) < 1e-5
    assert "pytorch" in (home / "a.svg").read_text()

    code, said = run("compare", "a.json", "a.json", "--fail-below", "0.95")
    assert (code, "1.000" in said) == (0, True)

    fast = read(home / "a.json").cells
    data = json.loads((home / "a.json").read_text())
    for cell in data["cells"]:
        cell["items_per_s"] = [1000 * rate for rate in cell["items_per_s"]]
    (home / "fast.json").write_text(json.dumps(data))
    assert fast != read(home / "fast.json").cells
    code, said = run("compare", "fast.json", "a.json", "--fail-below", "0.95")
    assert (code, "slower" in said) == (3, True)


def test_a_module_that_is_another_model_is_refused(home: Path) -> None:
    (home / "other.py").write_text("import torch\ndef net(): return torch.nn.MaxPool2d(2)\n")
    code, said = run("net", *FAST, "--against", "pytorch", "--module", "other:net")
    assert code == 2
    assert "It is another model" in said


def test_a_baseline_of_other_conditions_is_refused(home: Path) -> None:
    assert run("net", *FAST, "--json", "a.json")[0] == 0
    earlier = read(home / "a.json")
    write(home / "b.json", type(earlier)(
        schema=1, model=earlier.model, noted={}, cells=earlier.cells,
        conditions={**earlier.conditions, "cores": "64"},
    ))  # fmt: skip
    code, said = run("net", *FAST, "--baseline", "b.json", "--fail-below", "0.01")
    assert (code, "cores: 64, and now" in said) == (2, True)
    code, said = run(
        "net", *FAST, "--baseline", "b.json", "--fail-below", "0.01", "--allow", "cores"
    )
    assert code == 0, said


def test_a_batch_beyond_the_engine_is_refused_with_what_it_takes(home: Path) -> None:
    code, said = run("net", "--batch", "1,8")
    assert (code, "takes up to 2 items" in said) == (2, True)


def test_the_group_says_what_it_can(home: Path) -> None:
    code, said = run("--help")
    assert code == 0
    assert all(word in said for word in ("run", "compare", "130 interrupted"))


def test_a_module_of_other_weights_is_refused(home: Path) -> None:
    (home / "darker.py").write_text(FACTORY.format(gain=0.25))
    code, said = run("net", *FAST, "--against", "pytorch", "--module", "darker:net")
    assert code == 2
    assert "has other weights or arguments" in said


def test_an_engine_that_is_there_is_measured_and_another_is_built_where_it_is_not(
    home: Path,
) -> None:
    engines = home / "engines" / "net"
    before = {path.name for path in engines.iterdir() if path.is_dir()}
    code, said = run("net.onnx", *FAST)
    assert (code, {path.name for path in engines.iterdir() if path.is_dir()}) == (0, before), said
    code, said = run("net.onnx", "--batch", "4", "--repeats", "3", "--seconds", "0.01")
    assert code == 2
    assert "leaves its height and width open" in said
    code, said = run("net.onnx", *FAST, "--batch", "4", "--size", "8x8")
    assert code == 0, said
    (made,) = {path.name for path in engines.iterdir() if path.is_dir()} - before
    code, said = run("net", *FAST)
    assert code == 2
    assert "--engine" in said
    code, said = run("net", *FAST, "--engine", made)
    assert code == 0, said
    assert "x 3x8x8" in said
    shutil.rmtree(engines / made)


def test_the_names_of_paths_are_whole_in_eighty_columns(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, said = run("net", *FAST, "--against", "naive,ort")
    assert code == 0, said
    for path in ("pool", "device", "naive", "ort"):
        assert re.search(rf"^ {path} +1 ", said, re.MULTILINE), said
