"""trtfuse as a library: modules in, arrays through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import trtfuse
from tests.models import brighter
from trtfuse.core.errors import EngineNotFound, ShapeMismatch, UnknownName, UsageError
from trtfuse.core.specs import Array


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an engine that halves what it gets."""
    folder = tmp_path_factory.mktemp("api")
    options = trtfuse.BuildOptions(
        model=brighter(folder / "half.onnx"),
        devices="cpu",
        batch=(1, 2, 4),
        sizes=((4, 4), (6, 6), (8, 8)),
        engines=folder / "engines",
    )
    (made,) = trtfuse.build(options).engines
    return made.folder


def pictures(count: int, value: float) -> Array:
    return np.full((count, 3, 6, 8), value, np.float32)


def test_a_module_is_exported_as_it_is_and_left_as_it_was(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Conv2d(3, 2, 1)).train()
    options = trtfuse.ExportOptions(
        model=module,
        output=str(tmp_path / "net.onnx"),  # type: ignore[arg-type] # of callers without types
        shapes=((3, 4, 4),),
    )
    report = trtfuse.export(options)
    assert report.model.path == tmp_path / "net.onnx"
    assert report.largest_difference < 1e-5
    assert module.training


def test_a_module_whose_weights_are_elsewhere_is_refused(tmp_path: Path) -> None:
    options = trtfuse.ExportOptions(
        model=torch.nn.Linear(2, 2, device="meta"), output=tmp_path / "net.onnx", shapes=((2,),)
    )
    with pytest.raises(UsageError, match=r"Linear: its weights are on meta.*module\.cpu\(\)"):
        trtfuse.export(options)


def test_an_engine_is_opened_by_its_own_folder_or_its_models(engine: Path) -> None:
    for folder in (engine, engine.parent, str(engine.parent)):
        with trtfuse.open_engine(folder, devices="cpu") as half:
            assert half({"x": pictures(3, 5)})["y"][2, 1, 3, 3] == 2.5


def test_an_engine_that_is_not_there_is_named(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineNotFound), trtfuse.open_engine(tmp_path / "none", devices="cpu"):
        pass
    with (
        pytest.raises(UnknownName, match="half"),
        trtfuse.open_engine(engine.parents[1] / "hal", devices="cpu"),
    ):
        pass


def test_outputs_belong_to_the_caller_and_inputs_may_be_views(engine: Path) -> None:
    whole = np.arange(2 * 3 * 8 * 6, dtype=np.float32).reshape(2, 3, 8, 6)
    with trtfuse.open_engine(engine, devices="cpu") as half:
        first = half({"x": whole.swapaxes(2, 3)})["y"]
        half({"x": pictures(2, 100)})
    np.testing.assert_array_equal(first, whole.swapaxes(2, 3) / 2)


def test_arrays_go_through_a_pool_in_order(engine: Path) -> None:
    batches = [{"x": pictures(1 + n % 4, n)} for n in range(20)]
    with trtfuse.Pool(engine, devices="cpu", workers=2) as pool:
        got = [y["y"] for y in pool.map(batches)]
    assert [len(y) for y in got] == [1 + n % 4 for n in range(20)]
    assert [float(y[0, 0, 0, 0]) for y in got] == [n / 2 for n in range(20)]


def test_a_pool_goes_on_after_a_caller_that_stopped_and_a_batch_it_refused(engine: Path) -> None:
    with trtfuse.Pool(engine, devices="cpu") as pool:
        for y in pool.map({"x": pictures(2, n)} for n in range(10)):
            assert y["y"].max() == 0
            break
        with pytest.raises(ShapeMismatch, match="got float64"):
            list(pool.map([{"x": pictures(1, 1).astype(np.float64)}]))
        with pytest.raises(ShapeMismatch, match="needs float32"):
            list(pool.map([{"x": pictures(5, 1)}]))
        assert [y["y"].max() for y in pool.map([{"x": pictures(2, 8)}])] == [4]


@pytest.mark.parametrize("call", ["export", "build", "infer", "Pool"])
def test_a_program_without_a_guard_is_told_so_and_does_not_wait_for_itself(
    engine: Path, tmp_path: Path, call: str
) -> None:
    """A child that imports it would take the folder of the build that its parent holds."""
    (tmp_path / "in").mkdir()
    Image.new("RGB", (8, 6)).save(tmp_path / "in/a.png")
    model = engine.parents[2] / "half.onnx"
    calls = {
        "export": f"export(trtfuse.ExportOptions(model={str(model)!r}, output='new.onnx'))",
        "build": f"build(trtfuse.BuildOptions(model={str(model)!r}, devices='cpu', sizes=SIZES))",
        "infer": f"infer(trtfuse.InferOptions(source='in', engines={str(engine.parents[1])!r}))",
        "Pool": f"Pool({str(engine)!r}, devices='cpu').__enter__()",
    }
    script = tmp_path / "program.py"
    script.write_text(f"import trtfuse\nSIZES = ((4, 4), (6, 6), (8, 8))\ntrtfuse.{calls[call]}\n")
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert 'Put what the file does below `if __name__ == "__main__":`' in done.stderr
    assert done.stderr.count("Traceback") <= 2  # the error, and the one that it came from
    assert not (tmp_path / "new.onnx").exists()


def test_texts_and_mappings_are_taken_for_what_they_say() -> None:
    picture = {"name": "x", "layout": "NCHW", "colour": "RGB", "range": [0, 1], "size": [8, 8]}
    card = {"input": {**picture, "resize": "stretch"}, "task": {"name": "tensor"}}
    given: dict[str, Any] = {"card": card, "output": "n.onnx", "arguments": {"strength": 0.4}}
    export = trtfuse.ExportOptions(model="net:Net", **given)
    assert isinstance(export.card, trtfuse.Card)
    assert export.arguments == (("strength", "0.4"),)
    words: dict[str, Any] = {"source": "photos", "precision": "int8"}
    assert trtfuse.InferOptions(**words).precision is trtfuse.Precision.INT8


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ("BuildOptions", {"model": "n.onnx", "precision": "fp8"}, "precision 'fp8': not known"),
        ("BuildOptions", {"model": "n.onnx", "batch": 4}, "batch=4: needs the least, best and lar"),
        ("BuildOptions", {"model": "n.onnx", "sizes": (320, 320)}, r"sizes=\(320, 320\): needs"),
        ("InferOptions", {"source": "in", "workers": "2"}, "workers 2: needs a whole number"),
    ],
)
def test_a_wrong_type_is_a_sentence(options: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        getattr(trtfuse, options)(**given)
