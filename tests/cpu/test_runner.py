from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.runner import NO_RING, RunnerContract, rows, run
from tests.cpu import graphs
from trtfuse.core.errors import DeviceError, ShapeMismatch
from trtfuse.core.flow import OpenRunner
from trtfuse.core.specs import (
    BuildRequest,
    EngineManifest,
    Precision,
    ShapeRange,
    TensorSpec,
)
from trtfuse.cpu.builder import build
from trtfuse.cpu.runner import OpenOrt

Axes = tuple[int | str, ...]


def manifest(source: Path, shape: Axes, accepted: ShapeRange) -> EngineManifest:
    """Of a graph with one input `x` and one output `y` of one shape."""
    return EngineManifest(
        schema=1,
        model=source.stem,
        source=source,
        engine="engine.onnx",
        engine_sha256="",
        request=BuildRequest(
            model_sha256="",
            precision=Precision.FP32,
            profile=(("x", accepted),),
            device_name="",
            device_features="",
            runtime="onnxruntime",
            runtime_version="",
        ),
        fingerprint="",
        inputs=(TensorSpec(name="x", dtype="float32", shape=shape),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=shape),),
        output_max=(accepted.max,),
        card=None,
        gates=(),
        build_s=0.0,
        trtfuse="",
    )


def opener(model: Path, shape: Axes, accepted: ShapeRange, *, threads: int = 2) -> OpenOrt:
    engine = model.parent / "engine.onnx"
    build(model, engine)
    return OpenOrt(engine, manifest(model, shape, accepted), threads)


LINE = ShapeRange(min=(1, 4), opt=(4, 4), max=(8, 4))
PICTURE = ShapeRange(min=(1, 3, 16, 16), opt=(2, 3, 32, 32), max=(4, 3, 64, 48))


class TestOrtRunner(RunnerContract):
    @pytest.fixture
    def open_runner(self, tmp_path: Path) -> OpenRunner:
        return opener(graphs.line(tmp_path / "line.onnx"), ("batch", 4), LINE)


def test_a_batch_that_is_too_large_names_the_command_that_allows_it(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "my line.onnx")
    with opener(model, ("batch", 4), LINE)("cpu:0", NO_RING) as runner:
        command = re.escape(f"trtfuse build '{model}' --batch 1:4:9")
        with pytest.raises(ShapeMismatch, match=rf"needs float32 \(1 to 8, 4\)\. .*: {command}$"):
            run(runner, rows(9))


def test_another_size_is_no_matter_of_the_batch(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "line.onnx")
    with (
        opener(model, ("batch", 4), LINE)("cpu:0", NO_RING) as runner,
        pytest.raises(ShapeMismatch, match=r"needs float32 \(1 to 8, 4\)\.$"),
    ):
        run(runner, np.zeros((9, 5), np.float32))


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "line.onnx")
    with (
        opener(model, ("batch", 4), LINE)("cpu:0", NO_RING) as runner,
        pytest.raises(ShapeMismatch, match="input 'x': is missing, got 'image'"),
    ):
        runner.launch({"image": rows(1)}, lambda _, shape: np.empty(shape))


def test_the_last_batch_may_be_smaller_than_the_profile_says(tmp_path: Path) -> None:
    four = ShapeRange(min=(4, 4), opt=(4, 4), max=(4, 4))
    model = graphs.line(tmp_path / "line.onnx")
    with opener(model, ("batch", 4), four)("cpu:0", NO_RING) as runner:
        np.testing.assert_array_equal(run(runner, rows(1)), 2 * rows(1) + 1)


def test_sizes_inside_the_profile_may_change_from_batch_to_batch(tmp_path: Path) -> None:
    model = graphs.picture(tmp_path / "picture.onnx", size=["height", "width"])
    x = np.random.default_rng(0).random((4, 3, 64, 48), np.float32)
    shape = ("batch", 3, "height", "width")
    with opener(model, shape, PICTURE)("cpu:0", NO_RING) as runner:
        before = run(runner, x)
        assert run(runner, x[:1, :, :16, :16].copy()).shape == (1, 3, 16, 16)
        np.testing.assert_array_equal(run(runner, x), before)
        with pytest.raises(ShapeMismatch, match=r"\(1 to 4, 3, 16 to 64, 16 to 48\)\.$"):
            run(runner, x.transpose(0, 1, 3, 2).copy())


def test_the_same_bytes_come_back_with_any_number_of_threads(tmp_path: Path) -> None:
    model = graphs.picture(tmp_path / "picture.onnx", size=["height", "width"])
    x = np.random.default_rng(0).random((3, 3, 64, 48), np.float32)
    answers = []
    for threads in (1, 2, 3):
        open_runner = opener(model, ("batch", 3, "height", "width"), PICTURE, threads=threads)
        with open_runner("cpu:0", NO_RING) as runner:
            answers.append(run(runner, x).tobytes())
    assert len(set(answers)) == 1


def test_an_engine_that_cannot_be_loaded_is_an_error_of_the_device(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    open_runner = opener(graphs.line(tmp_path / "line.onnx"), ("batch", 4), LINE)
    open_runner.engine.write_bytes(b"not an engine")
    with (
        pytest.raises(DeviceError, match=r"cpu:0: cannot run .*engine\.onnx: .*Protobuf parsing"),
        open_runner("cpu:0", NO_RING),
    ):
        pass
    assert capfd.readouterr() == ("", "")
