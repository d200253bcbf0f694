"""Engines on disk: which run here, and what differs where one does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.build import samples
from tests.build.samples import H200, XEON
from trtfuse.build import store
from trtfuse.build.inspect import EngineInspection, here, inspect
from trtfuse.build.plan import Target
from trtfuse.cli.inspect import inspect as command
from trtfuse.core.errors import EngineNotFound, UsageError

FACE = samples.model("batch", 3, 8, 8)
CAR = replace(FACE, path=Path("car.onnx"))
SECOND = replace(H200, device=replace(H200.device, index=1, uuid="GPU-2"))


def machine(*targets: Target) -> object:
    def here(runtime: str) -> Sequence[Target]:
        return [one for one in targets if one.runtime == runtime]

    return here


def one(path: Path, *targets: Target) -> EngineInspection:
    (found,) = inspect(path, machine(*targets))  # type: ignore[arg-type]
    return found


def test_an_engine_runs_on_every_device_that_it_fits(tmp_path: Path) -> None:
    samples.publish(tmp_path, FACE, samples.build(FACE, H200))
    found = one(tmp_path, XEON, H200, SECOND)
    assert (found.runs_on, found.faults) == (("cuda:0", "cuda:1"), ())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "NVIDIA A100"}, "device: built for 'NVIDIA H200', found here 'NVIDIA A100'"),
        ({"features": "sm80"}, "device features: built for 'sm90', found here 'sm80'"),
    ],
)
def test_an_engine_of_another_gpu_says_which_value_differs_once(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    samples.publish(tmp_path, FACE, samples.build(FACE, H200))
    others = [replace(gpu, device=replace(gpu.device, **changes)) for gpu in (H200, SECOND)]  # type: ignore[arg-type]
    found = one(tmp_path, *others)
    assert (found.runs_on, found.faults) == ((), (said,))
    assert found.command.endswith("--batch 1:4:8 --gpus all")


def test_an_engine_of_another_tensorrt_says_both_versions(tmp_path: Path) -> None:
    samples.publish(tmp_path, FACE, samples.build(FACE, H200))
    found = one(tmp_path, replace(H200, runtime_version="10.13.3"))
    assert found.faults == ("tensorrt version: built for '10.16.1', found here '10.13.3'",)


def test_an_engine_of_a_device_that_is_not_here_says_so(tmp_path: Path) -> None:
    samples.publish(tmp_path, FACE, samples.build(FACE, H200))
    (said,) = one(tmp_path, XEON).faults
    assert said.startswith("device: built for 'NVIDIA H200' with tensorrt 10.16.1; here it ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is cut short: 0 of 64 bytes"),
        ("x" * 64, "was altered after it was built: its SHA-256"),
    ],
)
def test_a_truncated_or_altered_engine_is_told_with_the_command(
    tmp_path: Path, content: str, said: str
) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    engine.path.write_text(content)
    found = one(tmp_path, XEON)
    assert found.runs_on == ()
    assert said in found.faults[0]
    assert found.command.endswith("--devices cpu --rebuild")


def test_an_engine_that_cannot_be_read_is_told_beside_the_others(tmp_path: Path) -> None:
    good = samples.publish(tmp_path, FACE, samples.build(FACE))
    bad = samples.publish(tmp_path, CAR, samples.build(CAR))
    (bad.folder / "manifest.json").write_text('{"schema": 0}')
    first, second = inspect(tmp_path, machine(XEON))  # type: ignore[arg-type]
    assert (first.folder, first.manifest) == (bad.folder, None)
    assert "schema: needs 1, got 0" in first.faults[0]
    assert (second.folder, second.runs_on) == (good.folder, ("cpu:0",))


def test_all_engines_those_of_a_model_one_and_its_file_are_found(tmp_path: Path) -> None:
    face = samples.publish(tmp_path, FACE, samples.build(FACE))
    car = samples.publish(tmp_path, CAR, samples.build(CAR))
    assert store.folders(tmp_path) == (car.folder, face.folder)
    for path in (tmp_path / "face", face.folder, face.path):
        assert store.folders(path) == (face.folder,)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineNotFound, match="empty: holds no engine"):
        store.folders(tmp_path / "empty")


def test_the_runtimes_of_this_machine_are_asked_and_an_unknown_one_has_no_device() -> None:
    assert [target.device.kind for target in here("onnxruntime")] == ["cpu"]
    assert here("of another trtfuse") == ()


def test_the_command_shows_what_runs_and_how_to_mend_what_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cpu,) = here("onnxruntime")
    samples.publish(tmp_path, FACE, samples.build(FACE, cpu))
    epyc = replace(XEON, device=replace(XEON.device, name="EPYC"))
    other = samples.publish(tmp_path, FACE, samples.build(FACE, epyc))
    command(tmp_path)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "trtfuse inspect: 1 of 2 engines run here"
    at = shown.index(str(other.folder))
    assert shown[at + 1].startswith("  device: built for 'EPYC'")
    assert shown[at + 2].startswith("  Build it again with: trtfuse build ")
    command(tmp_path, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert {tuple(first["runs_on"]), tuple(second["runs_on"])} == {("cpu:0",), ()}
    with pytest.raises(UsageError, match=r"--batch, --size and --explain are for \.onnx"):
        command(tmp_path, batch=2)
