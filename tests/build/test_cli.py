from __future__ import annotations

from pathlib import Path

import pytest

from tests.cpu import graphs
from trtfuse.cli import build as command
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.specs import Precision, ShapeRange


def test_a_build_ends_with_a_line_to_search_for_and_so_does_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, engines = graphs.line(tmp_path / "line.onnx"), tmp_path / "engines"
    command.build(model, engines=engines, batch="1:2:4")
    first = capsys.readouterr()
    (folder,) = (engines / "line").glob("cpu-*")
    assert first.out.splitlines()[-1].startswith(f"trtfuse build: OK {folder} (built in ")
    assert first.err.startswith("line.onnx: building for ")
    command.build(model, engines=engines, batch="1:2:4")
    second = capsys.readouterr()
    last = second.out.splitlines()[-1]
    assert last.startswith(f"trtfuse build: OK {folder} (up to date: model ")
    assert last.endswith(", batch 1:2:4)")
    assert second.err == ""


def test_a_missing_card_and_removed_engines_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, engines = graphs.line(tmp_path / "line.onnx"), tmp_path / "engines"
    command.build(model, engines=engines)
    (old,) = (engines / "line").glob("cpu-*")
    assert "The model has no card" in capsys.readouterr().out
    graphs.line(model, slope=3)
    command.build(model, engines=engines)
    assert f"\nRemoved {old}: built from other weights" in capsys.readouterr().out


def test_an_unknown_precision_is_answered_with_those_that_exist() -> None:
    assert command.parse_precision("fp32") is Precision.FP32
    with pytest.raises(UnknownName, match=r"--precision 'fp23'.*Did you mean fp32"):
        command.parse_precision("fp23")


def test_a_batch_is_three_numbers() -> None:
    assert command.parse_batch("1:4:16") == (1, 4, 16)


@pytest.mark.parametrize("text", ["", "8", "1:2", "1:2:3:4", "1:-2:3", "a:b:c", "1:2:\u0663"])
def test_anything_else_is_no_batch(text: str) -> None:
    with pytest.raises(UsageError, match="needs min:opt:max"):
        command.parse_batch(text)


def test_sizes_are_three_or_one_for_all() -> None:
    assert command.parse_sizes("8x16:32x64:64x64") == ((8, 16), (32, 64), (64, 64))
    assert command.parse_sizes("8x16") == ((8, 16), (8, 16), (8, 16))


@pytest.mark.parametrize("text", ["", "8", "8x8:9x9", "8x8:9x9:", "8*8", "8x8x8"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="needs HEIGHTxWIDTH"):
        command.parse_sizes(text)


def shapes(
    least: str | None, best: str | None, most: str | None
) -> tuple[tuple[str, ShapeRange], ...]:
    return command.parse_shapes(least, best, most, beside=(None, None))


def test_shapes_are_trtexecs_three_or_the_best_for_all() -> None:
    assert shapes("x:1x3x8x8,a:b:1x4", "'x':2x3x8x8,a:b:2x4", "x:4x3x8x16,a:b:4x4") == (
        ("x", ShapeRange(min=(1, 3, 8, 8), opt=(2, 3, 8, 8), max=(4, 3, 8, 16))),
        ("a:b", ShapeRange(min=(1, 4), opt=(2, 4), max=(4, 4))),
    )
    assert shapes(None, "x:2x4", None) == (("x", ShapeRange(min=(2, 4), opt=(2, 4), max=(2, 4))),)
    assert shapes(None, None, None) == ()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("x:1x4", None, "x:2x4"), "give all three, or --optShapes"),
        (("x:1x4", "x:1x4", None), "give all three, or --optShapes"),
        (("x:1x4", "y:1x4", "x:2x4"), "need the same inputs"),
        (("x:4x4", "x:2x4", "x:8x4"), "x: needs 0 < min <= opt <= max"),
        (("x:1x4", "x:1x4x4", "x:8x4"), "x: ranks differ"),
        ((None, "x=1x4", None), "--optShapes x=1x4: needs NAME:SIZES"),
        ((None, "x:1x4,", None), "needs NAME:SIZES"),
    ],
)
def test_anything_else_is_no_profile(texts: tuple[str | None, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shapes(*texts)


@pytest.mark.parametrize("beside", [("1:2:8", None), (None, "8x8")])
def test_shapes_leave_no_room_for_batch_and_size(beside: tuple[str | None, str | None]) -> None:
    with pytest.raises(UsageError, match="leave --batch and --size out"):
        command.parse_shapes(None, "x:1x4", None, beside=beside)
