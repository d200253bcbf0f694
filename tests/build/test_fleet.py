from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.build import samples
from tests.cpu import graphs
from trtfuse.build import backends, fleet
from trtfuse.build.backends import DeviceRequest
from trtfuse.core import files
from trtfuse.core.errors import DeviceError, EngineMismatch, UsageError
from trtfuse.core.options import InferOptions
from trtfuse.core.specs import DeviceSpec, EngineManifest, Precision, ShapeRange
from trtfuse.gpu.devices import scan
from trtfuse.gpu.runner import OpenTrt

FACE = samples.model("batch", 3, 8, 8)
(HERE,) = backends.targets(DeviceRequest(kind="cpu"))

without_gpus = pytest.mark.skipif(bool(scan().gpus), reason="is about machines without a GPU")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An engine for this machine's CPU, of made-up bytes."""
    spec = samples.model("batch", 3, 8, 8, path=graphs.line(tmp_path / "face.onnx"))
    spec = replace(spec, sha256=files.sha256(spec.path))
    samples.publish(tmp_path / "engines", spec, samples.build(spec, HERE))
    return tmp_path / "engines"


def options(root: Path, **changes: object) -> InferOptions:
    return InferOptions(source=Path(), engines=root, **changes)  # type: ignore[arg-type]


def manifest(root: Path, **changes: object) -> EngineManifest:
    one = samples.publish(root, FACE, samples.build(FACE, samples.H200)).manifest
    return replace(one, request=replace(one.request, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [{"devices": "cpu:3"}, {"devices": "cpu", "workers": 3}])
def test_workers_of_a_cpu_are_numbered(root: Path, asked: dict[str, object]) -> None:
    found = fleet.find(options(root, **asked))
    assert [place.device for place in found.places] == ["cpu:0", "cpu:1", "cpu:2"]
    (engine,) = found.engines
    assert engine.folder.parent.parent == root


@without_gpus
def test_without_a_gpu_the_cpu_is_taken_and_nothing_is_said_of_gpus(root: Path) -> None:
    found = fleet.find(options(root))
    assert [place.device for place in found.places] == ["cpu:0"]
    assert found.notes == ()


@without_gpus
def test_a_gpu_that_was_asked_for_is_never_replaced_by_the_cpu(root: Path) -> None:
    with pytest.raises(DeviceError, match="--gpus 0: there is no GPU here: "):
        fleet.find(options(root, gpus="0"))


def test_every_gpu_has_workers_with_the_engine_of_its_kind(tmp_path: Path) -> None:
    l4 = DeviceSpec(name="NVIDIA L4", kind="cuda", features="sm89 22GiB driver580", index=2)
    second = replace(samples.H200.device, index=1)
    targets = [samples.H200, *(replace(samples.H200, device=one) for one in (second, l4))]
    for target in (samples.H200, targets[2]):
        samples.publish(tmp_path, FACE, samples.build(FACE, target))
    found = fleet.manned(targets, options(tmp_path, workers=2, lanes=3))
    names = [place.device for place in found.places]
    assert names == ["cuda:0", "cuda:0", "cuda:1", "cuda:1", "cuda:2", "cuda:2"]
    h200, nvidia_l4 = found.engines
    openers = [place.open_runner for place in found.places]
    assert openers[:4] == [OpenTrt(h200.path, h200.manifest, 3, 3, sharing=2)] * 4
    assert openers[4:] == [OpenTrt(nvidia_l4.path, nvidia_l4.manifest, 3, 3, sharing=2)] * 2
    assert {place.batches for place in found.places} == {4}


def test_a_gpu_without_an_engine_is_named_with_the_command(tmp_path: Path) -> None:
    samples.publish(tmp_path, FACE, samples.build(FACE, samples.H200))
    l4 = replace(samples.H200, device=replace(samples.H200.device, name="NVIDIA L4"))
    with pytest.raises(EngineMismatch, match=r"(?s)No engine fits NVIDIA L4 .*--gpus all$"):
        fleet.manned([samples.H200, l4], options(tmp_path))


def test_gpus_and_devices_exclude_each_other(root: Path) -> None:
    with pytest.raises(UsageError, match="--gpus 0 and --devices cpu: both choose"):
        options(root, gpus="0", devices="cpu")


@pytest.mark.parametrize("asked", [{"lanes": 2}, {"cuda_graph": False}])
def test_what_only_gpus_have_is_refused_on_a_cpu(root: Path, asked: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="--lanes and --no-cuda-graph are for GPUs"):
        fleet.find(options(root, devices="cpu", **asked))


def test_a_cpu_has_no_room_to_be_measured(root: Path) -> None:
    with pytest.raises(UsageError, match="--instances auto: is for GPUs"):
        fleet.find(options(root, devices="cpu", workers="auto"))


def test_engines_of_another_precision_do_not_fit(root: Path) -> None:
    assert fleet.find(options(root, devices="cpu", precision=Precision.FP32)).engines
    with pytest.raises(EngineMismatch, match="built in 'fp32', asked for 'fp16'") as raised:
        fleet.find(options(root, devices="cpu", precision=Precision.FP16))
    assert "--precision fp16" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_sha256": "b" * 64}, "model: aaaaaaaa, and bbbbbbbb"),
        ({"precision": Precision.FP16}, "precision: fp32, and fp16"),
        ({"profile": (("x", ShapeRange(min=(1, 4), opt=(1, 4), max=(1, 4))),)}, "profile: "),
    ],
    ids=["model", "precision", "profile"],
)
def test_engines_of_one_run_are_of_one_kind(
    tmp_path: Path, changes: dict[str, object], what: str
) -> None:
    first = manifest(tmp_path)
    other = manifest(tmp_path, device_name="NVIDIA L4", **changes)
    with pytest.raises(UsageError, match=f"NVIDIA H200 and NVIDIA L4 differ in their {what}"):
        fleet.require_alike([first, other])


def test_cards_must_agree_too_and_devices_need_not(tmp_path: Path) -> None:
    first = manifest(tmp_path)
    other = manifest(tmp_path, device_name="NVIDIA L4", device_features="sm89")
    fleet.require_alike([first, other])
    with pytest.raises(UsageError, match="differ in their card"):
        fleet.require_alike([first, replace(other, card=samples.card())])
