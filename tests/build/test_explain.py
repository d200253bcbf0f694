"""The numbers that a model is given for a picture, in the order and units of its card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from tests.models import BRIGHTER_CARD, brighter
from trtfuse.build.explain import Explanation, explain
from trtfuse.cli.inspect import inspect as command
from trtfuse.core.errors import CardError, UsageError
from trtfuse.graph.model import put_card

app = typer.Typer()
app.command()(command)


def model(folder: Path, **changes: Any) -> Path:
    """`brighter` with a card whose input is changed."""
    path = brighter(folder / "net.onnx")
    graph = onnx.load(str(path))
    put_card(graph, replace(BRIGHTER_CARD, input=replace(BRIGHTER_CARD.input, **changes)))
    onnx.save(graph, str(path))
    return path


def picture(folder: Path) -> Path:
    path = folder / "one.png"
    Image.new("RGB", (40, 20), (200, 100, 50)).save(path)
    return path


def seen(folder: Path, **changes: Any) -> Explanation:
    return explain(model(folder, **changes), picture(folder))


def test_the_first_values_are_those_of_red_green_and_blue(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert found.pixel == (200, 100, 50)
    assert list(found.first) == [200, 100, 50]
    assert found.shape == (1, 3, 20, 40)
    assert found.dtype == "float32"


def test_order_mean_and_std_are_the_cards(tmp_path: Path) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 1.0)
    found = seen(tmp_path, colour="BGR", range=(0.0, 1.0), mean=mean, std=std)
    wanted = [(v / 255 - m) / s for v, m, s in zip((50, 100, 200), mean, std, strict=True)]
    assert found.first == pytest.approx(wanted)


def test_the_first_values_are_of_the_picture_and_not_of_what_pads_it(tmp_path: Path) -> None:
    found = seen(tmp_path, size=(40, 40), resize="letterbox", pad=7)
    assert (found.geometry.top, found.geometry.left) == (10, 0)
    assert list(found.first) == [200, 100, 50]
    assert found.extremes == ((7, 200), (7, 100), (7, 50))


def test_a_cut_picture_begins_at_the_edge(tmp_path: Path) -> None:
    assert seen(tmp_path, size=(20, 20), resize="crop").first[0] == 200


def test_the_command_says_rule_and_values(tmp_path: Path) -> None:
    path = model(tmp_path, range=(0.0, 1.0), mean=(0.5,) * 3, std=(0.25,) * 3)
    words = [str(path), "--explain", str(picture(tmp_path))]
    said = CliRunner().invoke(app, words).output
    assert "R 1.13725, G -0.431373, B -1.21569" in said
    assert "0 to 255 become 0 to 1, then (value - [0.5, 0.5, 0.5])" in said
    data = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert data["first"] == pytest.approx([1.13725, -0.431373, -1.21569], rel=1e-5)


def test_what_cannot_be_explained_says_why(tmp_path: Path) -> None:
    path = model(tmp_path)
    with pytest.raises(UsageError, match=r"--explain .*: needs a picture's file"):
        explain(path, tmp_path / "none.png")
    (tmp_path / "half.png").write_bytes(picture(tmp_path).read_bytes()[:60])
    with pytest.raises(UsageError, match=r"--explain .*half\.png: "):
        explain(path, tmp_path / "half.png")
    with pytest.raises(CardError, match="has no card"):
        explain(brighter(tmp_path / "plain.onnx", card=False), picture(tmp_path))
