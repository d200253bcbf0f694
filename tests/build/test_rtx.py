"""`trtfuse build --runtime rtx`: real engines of TensorRT-RTX, for GPUs that are not here."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu import graphs
from trtfuse.build import plan, store
from trtfuse.build.build import build
from trtfuse.cli import build as command
from trtfuse.core.errors import UsageError
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import Precision

HEAD = b"vtrt"  # how every plan of TensorRT-RTX begins


def test_an_engine_for_other_gpus_is_built_and_says_that_it_was_not_gated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, engines = graphs.line(tmp_path / "line.onnx"), tmp_path / "engines"
    flags = {"runtime": "rtx", "compute_capability": "8.9,8.6", "batch": "1:2:4"}
    command.build(model, engines=engines, **flags)  # type: ignore[arg-type]
    said = capsys.readouterr()
    (folder,) = (engines / "line").glob("rtx-8-6-8-9-tensorrt_rtx-fp32-*")
    assert said.out.splitlines()[-1].startswith(f"trtfuse build: OK {folder} (built in ")
    note = "not gated: no RTX 8.6 8.9 is here to run it"
    assert said.err.splitlines()[-1] == f"line.onnx: {note}"

    engine = store.read(folder)
    store.verify(engine)
    assert engine.path.read_bytes().startswith(HEAD)
    manifest = engine.manifest
    assert (manifest.gates, manifest.notes, manifest.batch_ms) == ((), (note,), 0.0)
    assert manifest.output_max == ((4, 4),)
    assert manifest.request.device_features == "sm86 sm89"
    assert json.loads((folder / "manifest.json").read_text())["request"]["settings"][
        "compute_capabilities"
    ] == ["8.6", "8.9"]

    words = shlex.split(plan.command(manifest))
    assert words[-4:] == ["--runtime", "rtx", "--compute-capability", "8.6,8.9"]
    command.build(model, engines=engines, **flags)  # type: ignore[arg-type]
    assert "(up to date: " in capsys.readouterr().out


def test_a_precision_goes_into_it_and_its_reference_is_the_graph_as_it_came(
    tmp_path: Path,
) -> None:
    model, engines = graphs.line(tmp_path / "line.onnx"), tmp_path / "engines"
    command.build(model, engines=engines, runtime="rtx", precision="bf16", few=True)
    (folder,) = (engines / "line").glob("rtx-tensorrt_rtx-bf16-*")
    request = store.read(folder).manifest.request
    assert request.precision is Precision.BF16
    assert request.settings
    assert request.settings.compute_capabilities == ()


def test_how_far_the_builder_is_is_told(tmp_path: Path) -> None:
    model, heard = graphs.line(tmp_path / "line.onnx"), []
    asked = BuildOptions(model=model, runtime="rtx", engines=tmp_path / "engines")
    build(asked, lambda _: None, lambda *step: heard.append(step))
    assert heard[0] == ("builder of line for RTX", 0, 0)
    assert heard[-1] == ("builder of line for RTX", 1, 1)
    percents = [done for _, done, total in heard if total == 100]
    assert percents
    assert percents == sorted(set(percents))


def test_ctrl_c_ends_the_builder_and_leaves_nothing(tmp_path: Path) -> None:
    model, engines = graphs.line(tmp_path / "line.onnx"), tmp_path / "engines"
    words = [sys.executable, "-m", "trtfuse", "build", model, "--runtime", "rtx"]
    with subprocess.Popen(
        [*map(str, words), "--engines", str(engines)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        assert command.stderr
        first = command.stderr.readline()
        assert first == "line.onnx: building for RTX (fp32)\n"
        os.killpg(command.pid, signal.SIGINT)
        last = command.stderr.read()  # to its end: when the last of its processes is gone
        assert command.wait() == 130
    assert last == "trtfuse build: interrupted\n"
    assert [path.name for path in (engines / "line").iterdir()] == [".lock"]


def test_nothing_can_be_the_best_of_what_cannot_be_timed(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "line.onnx")
    with pytest.raises(UsageError, match="--precision best: nothing can be timed for RTX here"):
        command.build(model, engines=tmp_path / "engines", runtime="rtx", precision="best")


def test_a_gpu_that_it_does_not_build_for_is_named_with_those_it_does(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "line.onnx")
    with pytest.raises(UsageError, match=r"--compute-capability 7\.0: .*It builds for 7\.5, "):
        command.build(model, engines=tmp_path / "engines", runtime="rtx", compute_capability="7.0")
    assert store.described(tmp_path / "engines" / "line", model) is None
