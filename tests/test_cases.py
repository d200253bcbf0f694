"""Failures that people have met in public, met again as a user would: at the command line.

What is right is said in a test's own words; more of the same cases, from the inside, are in
tests/graph/test_cases.py.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from typer.testing import CliRunner, Result

from tests.calibrate.examples import smooth
from tests.graph.fusing import picture_card
from tests.graph.graphs import graph, ints, weights
from trtfuse.cli.main import app
from trtfuse.core import card as cards
from trtfuse.core.card import Card, InputCard, TensorTask
from trtfuse.graph.model import save

DATA = Path(__file__).parent / "data" / "cases"


def trtfuse(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file()}


def test_e01_a_batch_that_cannot_be_opened_is_refused_with_the_node_that_holds_it() -> None:
    """The items are laid end to end: no shape of the second Reshape could part them again."""
    model = graph(
        [
            helper.make_node("Reshape", ["x", "line"], ["flat"], name="flatten"),
            helper.make_node("MatMul", ["flat", "w"], ["row"], name="fc"),
            helper.make_node("Reshape", ["row", "one"], ["y"], name="unflatten"),
        ],
        {"x": [1, 3, 8]},
        {"y": [1, 4]},
        {"line": ints(24), "w": weights(24, 4), "one": ints(1, 4)},
    )
    save(model, Path("in.onnx"))
    result = trtfuse("export", "in.onnx", "-o", "out.onnx", "--batch-input", "x")
    assert result.exit_code == 3
    assert "its batch cannot be made dynamic, out.onnx was not written" in result.stderr
    held = "Nodes that hold the batch as a number: Reshape 'flatten', Reshape 'unflatten'."
    assert held in result.stderr
    assert files() == {"in.onnx"}
    assert trtfuse("export", "in.onnx", "-o", "out.onnx", "--static-batch").exit_code == 0


def test_e03_a_name_that_is_none_is_a_usage_error() -> None:
    words = ("--shape", "3,4,4", "--shape", "3", "--batch-input", "images")
    result = trtfuse("export", "tests.graph.nets:PairNet", "-o", "out.onnx", *words)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "trtfuse export: --batch-input 'images': not known. Did you mean image? "
        "Known: embedding, image."
    )
    assert files() == set()


def test_e09_a_graph_without_its_weights_is_refused_at_once() -> None:
    shutil.copy(DATA.parent / "graph" / "pair" / "m.onnx", "m.onnx")
    result = trtfuse("build", "m.onnx")
    assert result.exit_code == 2
    assert "'m.onnx.data' is missing beside it" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(Path("engines").rglob("manifest.json"))


def calibrated(model: str, *words: str) -> Result:
    """INT8 from 40 pictures of 32 x 32, of a model that takes 0 to 1 and returns an array."""
    read = InputCard(
        name="x", layout="NCHW", colour="RGB", range=(0.0, 1.0), size=(32, 32), resize="stretch"
    )
    Path("card.json").write_text(cards.dumps(Card(input=read, task=TensorTask(name="tensor"))))
    assert trtfuse("export", DATA / model, "--card", "card.json", "-o", "net.onnx").exit_code == 0
    Path("photos").mkdir(exist_ok=True)
    for number in range(40):
        pixels = (smooth(number, size=32)[0].transpose(1, 2, 0) * 255).astype(np.uint8)
        Image.fromarray(pixels).save(f"photos/{number:02d}.png")
    return trtfuse("build", "net.onnx", "--precision", "int8", "--calib-data", "photos", *words)


def test_q01_a_cache_of_other_weights_under_the_same_names_is_refused() -> None:
    words = ("--calibration-cache", "net.cache")
    assert calibrated("q01/a.onnx", *words).exit_code == 0
    kept = files()
    result = calibrated("q01/b.onnx", *words)
    assert result.exit_code == 3
    assert "net.cache" in result.stderr
    assert "model_sha256" in result.stderr
    assert files() == kept


def test_q08_scores_beside_boxes_are_judged_by_themselves() -> None:
    """One scale for boxes of 640 and scores of 1 made every score 0, at a cosine of 0.999996."""
    assert calibrated("q08/det_head.onnx").exit_code == 0
    (manifest,) = Path("engines").rglob("manifest.json")
    gates = {one["name"]: one["value"] for one in json.loads(manifest.read_text())["gates"]}
    assert gates["y channels 4-6: largest error, of the largest value"] < 0.02
    assert "y channels 0-3: largest error, of the largest value" in gates


def test_h01_what_leaves_float16_inside_stays_in_float32() -> None:
    """ONNX Runtime would show 300 either way: what counts is what the block is said to hold."""
    assert trtfuse("export", DATA / "rms.onnx", "-o", "rms.onnx").exit_code == 0
    result = trtfuse("build", "rms.onnx", "--precision", "fp16")
    assert result.exit_code == 0
    assert "Pow_1..Sqrt_3 in fp32: p reaches 8.9e+04; float16 ends at 65504" in result.stderr
    (manifest,) = Path("engines").rglob("manifest.json")
    (note,) = json.loads(manifest.read_text())["notes"]
    assert note.startswith("Pow_1..Sqrt_3 in fp32: ")


def test_h04_what_is_no_number_is_a_failed_item_and_too_large_is_white() -> None:
    """y = 1.2 x / max(x): 0/0 for black.png, 1.2 for over.png, one item in three has no file."""
    Path("card.json").write_text(cards.dumps(picture_card()))
    words = ("--card", "card.json", "-o", "norm.onnx")
    assert trtfuse("export", DATA / "norm.onnx", *words).exit_code == 0
    assert trtfuse("build", "norm.onnx", "--size", "16x16:32x32:32x32").exit_code == 0
    result = trtfuse("infer", DATA / "h04", "--output", "out")
    assert result.exit_code == 1
    assert "3 items, 1 failed" in result.stdout
    lines = [json.loads(line) for line in Path("out/results.jsonl").read_text().splitlines()]
    bad = 3 * 16 * 16
    assert [line["key"] for line in lines] == ["black.png", "ok.png", "over.png"]
    assert f"{bad} of {bad} values are NaN or infinite" in json.dumps(lines[0])
    assert {path.name for path in Path("out").glob("*.png")} == {"ok.png", "over.png"}
    assert np.asarray(Image.open("out/over.png")).min() == 255


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("net.py", r"net\.py: a module is given by its name, .*: net:Net, with"),
        ("net.py:Net", r"by its name, as `import` has it: net:Net, in its folder"),
        ("models/net:Net", r"`import` has it: net:Net, in its folder: .*/models"),
    ],
)
def test_a_python_file_is_answered_with_the_name_that_is_meant(model: str, words: str) -> None:
    Path("net.py").write_text("Net = None\n")
    result = trtfuse("export", model, "-o", "out.onnx", "--shape", "3,8,8")
    assert result.exit_code == 2
    assert re.search(words, result.stderr), result.stderr


def test_a_factory_is_exported_before_it_is_built() -> None:
    result = trtfuse("build", "net:Net", "--devices", "cpu")
    assert result.exit_code == 2
    assert "Make one first: trtfuse export net:Net -o model.onnx" in result.stderr
