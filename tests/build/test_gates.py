from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.build import samples
from tests.cpu import graphs
from trtfuse.build import backends, gates, store
from trtfuse.build.build import make
from trtfuse.core.errors import BuildFailed, DeviceError
from trtfuse.core.flow import Claim, Pending
from trtfuse.core.specs import Array, Arrays, EngineManifest, ShapeRange
from trtfuse.cpu.builder import build
from trtfuse.cpu.runner import OpenOrt
from trtfuse.graph.check import Reference
from trtfuse.graph.model import describe
from trtfuse.testing import FakeRunner

WORDS = "as the gate was told"


@dataclass(frozen=True)
class WrongAtTwo(FakeRunner):
    """Right in batches of every size but two."""

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        x = inputs["x"]
        return super().launch({"x": x + 1 if len(x) == 2 else x}, claim)


def draft(model: Path, tmp_path: Path, batch: tuple[int, int, int] = (1, 2, 3)) -> EngineManifest:
    spec = describe(model)
    return samples.publish(tmp_path / "drafts", spec, samples.build(spec, batch=batch)).manifest


def gate(engine_of: Path, reference: Path, tmp_path: Path) -> gates.Passed:
    """Build `engine_of` and hold it against `reference`."""
    engine = tmp_path / "engine.onnx"
    build(engine_of, engine)
    manifest = draft(reference, tmp_path)
    open_runner = OpenOrt(engine, manifest, threads=1)
    return gates.pass_gates(open_runner, "cpu:0", Reference(onnx.load(reference)), manifest)


def test_an_engine_that_answers_as_its_graph_does_passes_with_its_numbers(tmp_path: Path) -> None:
    model = graphs.picture(tmp_path / "model.onnx", size=[8, 8])
    passed = gate(model, model, tmp_path)
    (result,) = passed.gates
    assert result.name == "y: difference"
    assert 0 <= result.value < result.limit / 10
    assert passed.output_max == ((3, 3, 8, 8),)


def test_an_engine_of_another_graph_is_refused_with_the_numbers(tmp_path: Path) -> None:
    wrong = graphs.line(tmp_path / "wrong.onnx", slope=2.01)
    right = graphs.line(tmp_path / "right.onnx", slope=2)
    with pytest.raises(BuildFailed, match=r"right\.onnx: .*nothing was published.*\n") as raised:
        gate(wrong, right, tmp_path)
    assert "y: difference 0.00" in str(raised.value)
    assert "limit 0.0005 (random items, x 3x4, against" in str(raised.value)


def test_an_engine_that_runs_only_one_item_at_a_time_is_refused(tmp_path: Path) -> None:
    right = graphs.line(tmp_path / "right.onnx")
    wrong = graphs.line_for_one_item(tmp_path / "wrong.onnx")
    with pytest.raises(BuildFailed, match=r"the engine: does not run at batch 2: .*reshape"):
        gate(wrong, right, tmp_path)


def test_an_engine_that_is_wrong_at_one_batch_size_alone_is_refused(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "line.onnx")
    with pytest.raises(BuildFailed, match=r"y: difference .* \(random items, x 2x4, against"):
        gates.pass_gates(WrongAtTwo(), "cpu:0", Reference(onnx.load(model)), draft(model, tmp_path))


def test_an_engine_whose_items_depend_on_their_batch_is_refused(tmp_path: Path) -> None:
    model = graphs.mixing(tmp_path / "mixing.onnx")
    with pytest.raises(BuildFailed, match=r"y: difference"):
        gate(model, model, tmp_path)


def test_a_graph_whose_answers_are_no_numbers_is_refused(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "model.onnx", slope=float("nan"))
    with pytest.raises(BuildFailed, match="the graph itself: output 'y' holds NaN"):
        gate(model, model, tmp_path)


def test_an_engine_that_cannot_be_opened_is_an_error_of_the_device(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "model.onnx")
    manifest = draft(model, tmp_path)
    open_runner = OpenOrt(tmp_path / "gone.onnx", manifest, threads=1)
    with pytest.raises(DeviceError, match=r"gone\.onnx"):
        gates.pass_gates(open_runner, "cpu:0", Reference(onnx.load(model)), manifest)


def test_one_item_then_the_best_batch_then_the_largest_are_tried() -> None:
    shapes = ShapeRange(min=(2, 3, 8, 8), opt=(4, 3, 16, 8), max=(8, 3, 32, 8))
    assert gates.corners((("x", shapes),)) == (
        {"x": (1, 3, 8, 8)},
        {"x": (4, 3, 16, 8)},
        {"x": (8, 3, 32, 8)},
    )
    one = ShapeRange(min=(1, 4), opt=(1, 4), max=(1, 4))
    assert gates.corners((("x", one),)) == ({"x": (1, 4)},)


def floats(*values: float) -> Array:
    return np.array([values], np.float32)


def whole(*values: int) -> Array:
    return np.array([values], np.uint8)


@pytest.mark.parametrize(
    ("expected", "got", "value", "passes"),
    [
        (floats(1, -100), floats(1, -100), 0, True),
        (floats(1, -100), floats(1.01, -100), 1e-4, True),
        (floats(1, -100), floats(1.1, -100), 1e-3, False),
        (floats(0, 0), floats(0, 1e-30), np.inf, False),
        (whole(*[7] * 2000), whole(*[8] * 2000), 0, True),
        (whole(*[0] * 2000), whole(255, *[0] * 1999), 5e-4, True),
        (whole(0, 255), whole(255, 0), 1, False),
    ],
)
def test_floats_are_judged_by_their_largest_and_whole_numbers_by_their_share(
    expected: Array, got: Array, value: float, passes: bool
) -> None:
    (result,) = gates.judge({"y": expected}, {"y": got}, conditions=WORDS)
    assert result.value == pytest.approx(value, rel=1e-2)
    assert (result.value <= result.limit) is passes
    assert result.conditions == WORDS


def test_outputs_are_judged_one_by_one() -> None:
    expected, got = {"a": floats(1e6), "b": floats(1)}, {"a": floats(1e6), "b": floats(2)}
    a, b = gates.judge(expected, got, conditions=WORDS)
    assert (a.name, a.value) == ("a: difference", 0)
    assert (b.name, b.value) == ("b: difference", 1)


def test_the_candidate_is_made_whole_although_its_weights_lie_in_a_side_file(
    tmp_path: Path,
) -> None:
    source = graphs.line_with_side_file(tmp_path / "line.onnx")
    spec = describe(source)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    unfinished = replace(draft(source, tmp_path), engine_sha256="", output_max=())
    manifest = make(unfinished, "cpu:0", scratch)
    alone = tmp_path / "alone/engine.onnx"
    alone.parent.mkdir()
    (scratch / manifest.engine).rename(alone)
    opener = backends.BACKENDS["onnxruntime"].opener(alone, manifest, 1)
    with opener("cpu:0", np.empty(0, np.uint8)) as runner:
        assert runner.inputs == spec.inputs
    assert manifest.output_max == ((3, 64),)
    assert len(manifest.gates) == 1
    assert manifest.build_s > 0
    assert manifest.schema == store.SCHEMA
