from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.build import samples
from tests.build.samples import XEON
from tests.cpu import graphs
from trtfuse.build import plan, store
from trtfuse.core.errors import EngineMismatch, EngineNotFound, UnknownName, UsageError
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import Hardware, TrtSettings
from trtfuse.graph.model import describe

FACE = samples.model("batch", 3, 8, 8)
CAR = replace(FACE, path=Path("car.onnx"))


def test_the_only_engine_of_the_only_model_is_found(tmp_path: Path) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    assert store.find(tmp_path, model=None, engine=None, target=XEON) == engine
    assert engine.path.read_text() == engine.manifest.fingerprint
    store.verify(engine)


def test_what_publishing_leaves_is_the_engine_and_its_manifest(tmp_path: Path) -> None:
    one = samples.build(FACE)
    for _ in range(2):
        engine = samples.publish(tmp_path, FACE, one)
    assert sorted(path.name for path in engine.folder.iterdir()) == ["engine.onnx", "manifest.json"]


@pytest.mark.parametrize("there", [False, True])
def test_without_any_engine_the_build_command_is_named(tmp_path: Path, there: bool) -> None:
    root = tmp_path / "engines"
    if there:
        root.mkdir()
        (root / "README.md").write_text("Engines live here.")
        (root / "face").mkdir()
    with pytest.raises(EngineNotFound, match=r"holds no engine.*trtfuse build face\.onnx"):
        store.find(root, model="face", engine=None, target=XEON)


def test_several_models_are_listed_with_the_flag(tmp_path: Path) -> None:
    for spec in (FACE, CAR):
        samples.publish(tmp_path, spec, samples.build(spec))
    with pytest.raises(UsageError, match=r"2 models: car, face\..*--model car"):
        store.find(tmp_path, model=None, engine=None, target=XEON)
    found = store.find(tmp_path, model="face", engine=None, target=XEON)
    assert found.manifest.model == "face"


def test_an_unknown_model_or_engine_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    with pytest.raises(UnknownName, match=r"--model 'fase': not known\. Did you mean face"):
        store.find(tmp_path, model="fase", engine=None, target=XEON)
    with pytest.raises(UnknownName, match=rf"--engine.*'x'.*Known: {engine.folder.name}"):
        store.find(tmp_path, model=None, engine="x", target=XEON)


def test_several_engines_that_fit_are_listed_with_the_flag(tmp_path: Path) -> None:
    small, large = (
        samples.publish(tmp_path, FACE, samples.build(FACE, batch=batch))
        for batch in ((1, 1, 1), (1, 8, 64))
    )
    with pytest.raises(UsageError, match="2 engines fit") as raised:
        store.find(tmp_path, model=None, engine=None, target=XEON)
    assert f"--engine {large.folder.name}  (fp32, x 1x3x8x8 to 64x3x8x8)" in str(raised.value)
    name = small.folder.name
    assert store.find(tmp_path, model=None, engine=name, target=XEON) == small


def test_engines_of_other_devices_are_passed_over(tmp_path: Path) -> None:
    samples.publish(tmp_path, FACE, samples.build(FACE, samples.H200))
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    assert store.find(tmp_path, model=None, engine=None, target=XEON) == engine


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runtime_version": "1.31.0"}, "version: built for '1.31.0', found here '1.32.0'"),
        ({"device_name": "EPYC"}, "device: built for 'EPYC', found here 'Intel"),
        ({"device_features": "avx2"}, "features: built for 'avx2', found here 'x86_64 avx512f'"),
        ({"runtime": "tensorrt"}, "runtime: built for 'tensorrt', found here 'onnxruntime'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("named", [False, True])
def test_an_engine_of_another_place_says_what_differs_and_the_command(
    tmp_path: Path, changes: dict[str, object], words: str, named: bool
) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    samples.edit(engine, **changes)
    name = engine.folder.name if named else None
    with pytest.raises(EngineMismatch) as raised:
        store.find(tmp_path, model=None, engine=name, target=XEON)
    assert f"{engine.folder}: " in str(raised.value)
    assert words in str(raised.value)
    command = f"trtfuse build {FACE.path.absolute()} --batch 1:4:8 --devices cpu"
    assert str(raised.value).endswith(command)


@pytest.mark.parametrize(
    ("hardware", "features", "words"),
    [
        ("exact", "sm90 141GiB driver580", "device: built for 'NVIDIA H200'"),
        ("same-capability", "sm90 80GiB driver575", ""),
        ("same-capability", "sm89 22GiB driver580", "capability: built for 'sm90', found here"),
        ("ampere+", "sm120 32GiB driver580", ""),
        ("ampere+", "sm75 16GiB driver580", "capability: built for 'sm80+', found here 'sm75'"),
    ],
)
def test_an_engine_runs_on_the_other_gpus_that_it_was_built_for(
    tmp_path: Path, hardware: Hardware, features: str, words: str
) -> None:
    asked = BuildOptions(model=FACE.path, settings=TrtSettings(hardware=hardware))
    (one,) = plan.plan(asked, FACE, [samples.H200])
    engine = samples.publish(tmp_path, FACE, one)
    other = replace(samples.H200.device, name="NVIDIA X", features=features)
    found = store.differences(engine.manifest, replace(samples.H200, device=other))
    assert bool(found) is bool(words)
    assert words in "; ".join(found)


def test_the_command_is_for_the_device_that_has_no_engine(tmp_path: Path) -> None:
    samples.publish(tmp_path, FACE, samples.build(FACE))
    with pytest.raises(EngineMismatch, match=r"(?s)No engine fits NVIDIA H200.* --gpus all$"):
        store.find(tmp_path, model=None, engine=None, target=samples.H200)


def test_an_altered_engine_is_refused(tmp_path: Path) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    engine.path.write_bytes(engine.path.read_bytes()[:-1] + b"!")
    with pytest.raises(EngineMismatch, match=r"engine\.onnx: was altered.*--rebuild"):
        store.verify(engine)


def test_a_missing_engine_is_refused(tmp_path: Path) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    engine.path.unlink()
    with pytest.raises(EngineMismatch, match=r"engine\.onnx: is missing"):
        store.verify(engine)


def test_an_edited_request_is_refused_by_its_fingerprint(tmp_path: Path) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    samples.edit(engine, profile=samples.build(FACE, batch=(1, 4, 64)).request.profile)
    with pytest.raises(EngineMismatch, match=r"manifest\.json: was edited"):
        store.verify(store.find(tmp_path, model=None, engine=None, target=XEON))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "needs an object"),
        ('{"schema": 2}', "schema: needs 1, got 2"),
        ('{"schema": 1}', "missing model"),
    ],
)
def test_a_malformed_manifest_is_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    (engine.folder / "manifest.json").write_text(text)
    with pytest.raises(EngineMismatch, match=rf"manifest\.json: .*{reason}.*Remove .*face\.onnx$"):
        store.find(tmp_path, model=None, engine=None, target=XEON)


@pytest.mark.parametrize("text", ["no JSON", '{"schema": 0}'])
def test_an_engine_that_cannot_be_read_is_in_no_other_ones_way(tmp_path: Path, text: str) -> None:
    broken, other, good = (
        samples.publish(tmp_path, FACE, samples.build(FACE, target, batch=batch))
        for target, batch in ((XEON, (1, 1, 1)), (samples.H200, (1, 4, 8)), (XEON, (1, 4, 8)))
    )
    (broken.folder / "manifest.json").write_text(text)
    assert store.find(tmp_path, model=None, engine=None, target=XEON) == good
    assert store.remove_superseded(tmp_path / "face", FACE.sha256) == ()
    with pytest.raises(EngineMismatch, match="not a manifest that can be read"):
        store.find(tmp_path, model=None, engine=broken.folder.name, target=XEON)
    (good.folder / "manifest.json").unlink()
    with pytest.raises(EngineMismatch) as raised:
        store.find(tmp_path, model=None, engine=None, target=XEON)
    assert f"{other.folder}: runtime: built for 'tensorrt'" in str(raised.value)
    assert f"{broken.folder}/manifest.json: not a manifest" in str(raised.value)


def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    engine = samples.publish(tmp_path, FACE, samples.build(FACE))
    path = engine.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": "../engine.onnx"}))
    with pytest.raises(EngineMismatch, match=r"needs a file name, got '\.\./engine\.onnx'"):
        store.read(engine.folder)


def test_new_weights_of_the_same_size_and_time_are_noticed(tmp_path: Path) -> None:
    source = graphs.line(tmp_path / "face.onnx", slope=2)
    spec = describe(source)
    engine = samples.publish(tmp_path / "engines", spec, samples.build(spec))
    store.verify(engine)
    before = source.stat()
    graphs.line(source, slope=3)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.stat().st_size == before.st_size
    with pytest.raises(EngineMismatch, match=rf"face\.onnx: has changed.*trtfuse build {source}"):
        store.verify(engine)


def test_a_source_that_is_no_graph_any_more_has_changed(tmp_path: Path) -> None:
    source = graphs.line(tmp_path / "face.onnx")
    spec = describe(source)
    engine = samples.publish(tmp_path / "engines", spec, samples.build(spec))
    source.write_bytes(b"")
    with pytest.raises(EngineMismatch, match=r"face\.onnx: has changed"):
        store.verify(engine)


def test_an_engine_lives_without_its_source(tmp_path: Path) -> None:
    source = graphs.line(tmp_path / "face.onnx")
    spec = describe(source)
    engine = samples.publish(tmp_path / "engines", spec, samples.build(spec))
    source.unlink()
    store.verify(engine)


def test_changed_external_weights_are_noticed(tmp_path: Path) -> None:
    source = graphs.line_with_side_file(tmp_path / "face.onnx")
    spec = describe(source)
    engine = samples.publish(tmp_path / "engines", spec, samples.build(spec))
    store.verify(engine)
    side = tmp_path / "face.onnx.data"
    side.write_bytes(bytes(reversed(side.read_bytes())))
    with pytest.raises(EngineMismatch, match=r"face\.onnx: has changed"):
        store.verify(engine)


def test_engines_of_other_weights_are_removed_and_named(tmp_path: Path) -> None:
    old, new = (
        samples.publish(tmp_path, spec, samples.build(spec))
        for spec in (FACE, replace(FACE, sha256="b" * 64))
    )
    other = samples.publish(tmp_path, CAR, samples.build(CAR))
    assert store.remove_superseded(tmp_path / "face", "b" * 64) == (old.folder,)
    assert not old.folder.exists()
    assert new.path.exists()
    assert other.path.exists()


def test_what_a_killed_builder_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / "face/.building-left"
    left.mkdir(parents=True)
    (left / "engine.onnx").touch()
    with store.building(tmp_path / "face", print) as scratch:
        assert not left.exists()
        assert list(scratch.iterdir()) == []
    assert [path.name for path in (tmp_path / "face").iterdir()] == [".lock"]


@pytest.mark.parametrize("content", [b"", b'{"schema": 1, "mod', b'{"schema": 0}', b"\xff\x00\x80"])
def test_a_model_without_a_readable_engine_is_in_no_other_ones_way(
    tmp_path: Path, content: bytes
) -> None:
    good, bad = (samples.publish(tmp_path, spec, samples.build(spec)) for spec in (FACE, CAR))
    (bad.folder / "manifest.json").write_bytes(content)
    assert store.find(tmp_path, model=None, engine=None, target=XEON) == good
    with pytest.raises(EngineMismatch, match=r"car.*not a manifest that can be read"):
        store.find(tmp_path, model="car", engine=None, target=XEON)
    (good.folder / "manifest.json").write_bytes(content)
    with pytest.raises(UsageError, match="2 models: car, face"):
        store.find(tmp_path, model=None, engine=None, target=XEON)
