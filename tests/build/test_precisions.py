"""Precisions from options to published engines, on a small net and pictures made here."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.calibrate.examples import noise, smooth
from tests.contracts.runner import NO_RING, run
from tests.graph import precisions as nets
from tests.graph.graphs import weights
from trtfuse.build import backends, store
from trtfuse.build.build import BuildReport, build
from trtfuse.build.store import Engine
from trtfuse.calibrate import cache, ranges
from trtfuse.cli import build as command
from trtfuse.core.card import Card, EmbedTask, InputCard, TensorTask
from trtfuse.core.errors import BuildFailed, CalibrationError, CardError, UnknownName, UsageError
from trtfuse.core.options import BuildOptions, CalibrationOptions
from trtfuse.core.specs import Array, Precision
from trtfuse.graph import precision
from trtfuse.graph.model import load, put_card

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
INPUT = InputCard(
    name="x", layout="NCHW", colour="RGB", range=(-1.0, 1.0), size=(16, 16), resize="stretch"
)


def save(model: onnx.ModelProto, path: Path, card: Card | None = None) -> Path:
    put_card(
        model, card or Card(input=INPUT, task=EmbedTask(name="embed", output="y", normalize=False))
    )
    onnx.save(model, str(path))
    return path


def pictures(folder: Path, count: int = 40) -> Path:
    folder.mkdir()
    for number in range(count):
        pixels = (smooth(number, size=20)[0].transpose(1, 2, 0) * 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, pictures and what an INT8 build made of them; to be copied."""
    folder = tmp_path_factory.mktemp("kept")
    save(nets.residual_net(), folder / "net.onnx")
    pictures(folder / "pictures")
    build(options(folder, INT8), quiet)
    return folder


@pytest.fixture
def work(kept: Path, tmp_path: Path) -> Path:
    """A copy of `kept`."""
    return Path(shutil.copytree(kept, tmp_path / "work"))


def options(folder: Path, wanted: Any = INT8, **calibration: Any) -> BuildOptions:
    given = {"data": folder / "pictures", "ranges": folder / "calibration", **calibration}
    return BuildOptions(
        model=folder / "net.onnx",
        precision=wanted,
        batch=(1, 2, 3),
        engines=folder / "engines",
        calibration=CalibrationOptions(**given),
    )


def quiet(line: str) -> None:
    pass


def only(report: BuildReport) -> Engine:
    (outcome,) = report.outcomes
    return outcome.engine


def answers(engine: Engine, x: Array) -> Array:
    store.verify(engine)
    opener = backends.BACKENDS["onnxruntime"].opener(engine.path, engine.manifest, 1)
    with opener("cpu:0", NO_RING) as runner:
        return run(runner, x)


def test_an_int8_engine_is_published_with_its_ranges_and_its_numbers(kept: Path) -> None:
    (folder,) = (kept / "engines/net").glob("cpu-onnxruntime-int8-*")
    engine = store.read(folder)
    request = engine.manifest.request
    assert (request.precision, request.rest, request.keep) == (INT8, FP32, ())
    assert len(request.ranges) == 64
    names = [gate.name for gate in engine.manifest.gates]
    assert names[0] == "y: difference"
    assert {"y: cosine", "y: SQNR in dB", "least cosine of a vector"} <= set(names)
    assert all(gate.passed for gate in engine.manifest.gates)
    assert "8 held-out inputs" in engine.manifest.gates[-1].conditions
    assert engine.manifest.batch_ms > 0
    model = load(kept / "net.onnx")
    x = np.concatenate([smooth(n, size=16) * 2 - 1 for n in range(90, 93)])
    assert 25 < nets.sqnr_db(nets.answer(model, x), answers(engine, x)) < 70


def test_nothing_is_measured_or_built_twice(work: Path) -> None:
    said: list[str] = []
    steps: list[str] = []
    started = time.monotonic()
    report = build(options(work), said.append, lambda what, *_: steps.append(what))
    assert (report.outcomes[0].built, said, steps) == (False, [], [])
    assert time.monotonic() - started < 30  # seconds: it runs nothing


def test_another_choice_of_inputs_is_measured_and_the_difference_told(work: Path) -> None:
    said: list[str] = []
    report = build(options(work, seed=1, held_out=0.3), said.append)
    assert report.outcomes[0].built
    (told,) = [line for line in said if line.startswith("not reused: ")]
    assert "recipe.seed: 0 in the file, 1 now" in told
    assert "recipe.held_out: 0.2 in the file, 0.3 now" in told
    assert len(list((work / "calibration/net").glob("ranges-*.json"))) == 2


def test_a_changed_picture_is_noticed_by_its_bytes(work: Path) -> None:
    picture = work / "pictures/07.png"
    Image.open(picture).rotate(90).save(picture)
    said: list[str] = []
    build(options(work), said.append)
    assert any("inputs: 1 changed (07.png)" in line for line in said)


def test_a_range_file_that_was_edited_is_refused(work: Path) -> None:
    (path,) = (work / "calibration/net").glob("ranges-*.json")
    path.write_text(path.read_text().replace('"method": "entropy"', '"method": "minmax"'))
    with pytest.raises(CalibrationError, match='method: "minmax" in the file, "entropy" now'):
        build(options(work), quiet)


def test_new_weights_under_the_same_names_are_calibrated_anew(work: Path) -> None:
    model = load(work / "net.onnx")
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[::-1]
    doubled = nets.residual_net()
    for tensor in doubled.graph.initializer:
        if tensor.name == "w1":
            values = onnx.numpy_helper.to_array(tensor) * 2
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, "w1"))
    save(doubled, work / "net.onnx")
    said: list[str] = []
    report = build(options(work), said.append)
    assert report.outcomes[0].built
    assert any("model_sha256" in line for line in said)


def test_too_few_pictures_are_refused_unless_few_is_said(work: Path) -> None:
    for path in sorted((work / "pictures").iterdir())[5:]:
        path.unlink()
    with pytest.raises(CalibrationError, match=r"5 useful inputs, needs at least 32.*--few"):
        build(options(work), quiet)
    report = build(options(work, few=True), quiet)
    assert "1 held-out inputs" in only(report).manifest.gates[-1].conditions


def test_unreadable_constant_and_double_pictures_are_left_out_and_told(work: Path) -> None:
    folder = work / "pictures"
    (folder / "cut.png").write_bytes((folder / "00.png").read_bytes()[:200])
    shutil.copy(folder / "01.png", folder / "copy.png")
    Image.new("RGB", (20, 20), "grey").save(folder / "flat.png")
    said: list[str] = []
    build(options(work), said.append)
    assert "calibration: left out, the same value everywhere: flat.png" in said
    assert any("left out, a copy of another input: " in line for line in said)
    assert any(line.startswith("calibration: left out, cannot be ") for line in said)


def test_random_arrays_are_refused_and_real_ones_calibrate_without_a_card(work: Path) -> None:
    model = load(work / "net.onnx")
    del model.metadata_props[:]
    onnx.save(model, str(work / "net.onnx"))
    with pytest.raises(CardError, match="has no card"):
        build(options(work), quiet)
    np.save(work / "noise.npy", np.concatenate([noise(n, size=16) for n in range(40)]))
    with pytest.raises(CalibrationError, match="40 of 40 inputs looked at are random noise"):
        build(options(work, data=work / "noise.npy"), quiet)
    np.save(work / "real.npy", np.concatenate([smooth(n, size=16) for n in range(40)]))
    report = build(options(work, data=work / "real.npy"), quiet)
    assert report.outcomes[0].built


def test_a_loader_script_is_run_once_and_every_item_counted(work: Path) -> None:
    np.save(work / "real.npy", np.concatenate([smooth(n, size=16) for n in range(50)]) * 2 - 1)
    script = work / "loader.py"
    script.write_text(
        "from pathlib import Path\nimport numpy as np\n"
        "def load_data():\n"
        "    here = Path(__file__).parent\n"
        "    with (here / 'runs').open('a') as file:\n"
        "        file.write('x')\n"
        "    rows = np.load(here / 'real.npy')\n"
        "    for start in range(0, 50, 8):\n"
        "        yield {'x': rows[start:start + 8]}\n"
    )
    said: list[str] = []
    report = build(options(work, data=script), said.append)
    # 50 items in batches of 8, the last of 2: none is dropped.
    assert any("on 40 inputs" in line for line in said)
    assert "10 held-out inputs" in only(report).manifest.gates[-1].conditions
    assert (work / "runs").read_text() == "x"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = 1\n", r"defines no load_data\(\)"),
        ("x = 1\n1 / 0\n", r"raised ZeroDivisionError \(division by zero\) in line 2"),
        ("def load_data():\n    yield {}['x']\n", r"raised KeyError \('x'\) in line 2"),
        ("import numpy as np\ndef load_data(): yield {'z': np.ones(1)}\n", "needs the inputs"),
        ("import numpy as np\ndef load_data(): yield {'x': np.ones((1, 3))}\n", "needs float32"),
    ],
)
def test_a_script_that_does_not_fit_is_refused(work: Path, content: str, words: str) -> None:
    (work / "loader.py").write_text(content)
    with pytest.raises(UsageError, match=words):
        build(options(work, data=work / "loader.py"), quiet)


def test_int8_without_inputs_is_refused(work: Path) -> None:
    with pytest.raises(UsageError, match=r"--precision int8: .* --calib-data FOLDER"):
        build(options(work, data=None), quiet)


def test_a_cache_is_written_and_read_instead_of_measuring(work: Path) -> None:
    path = work / "net.cache"
    build(replace(options(work, cache=path, method="minmax"), engines=work / "first"), quiet)
    written = cache.read(path)
    assert written.header == "TRT-8601-MinMaxCalibration"
    assert {"x", "c1", "r1", "r2", "c3", "flat", "y"} <= set(written.amax)
    text = path.read_text().replace("r2: ", "elsewhere: ")
    path.write_text(text)
    said: list[str] = []
    report = build(options(work, cache=path, data=None, gate=False), said.append)
    assert f"{path}: nothing says what model and inputs it is of: you vouch for it" in said
    assert "calibration cache: lacks 1 tensors: r2" in said
    assert "calibration cache: has also 1 tensors: elsewhere" in said
    assert any("body2 in fp32: no range of its input" in line for line in said)
    assert only(report).manifest.request.precision is INT8
    again = build(options(work, cache=path, data=None, gate=False), quiet)
    assert not again.outcomes[0].built


def test_a_cache_of_these_very_inputs_is_written_once_and_changes_nothing(work: Path) -> None:
    path = work / "net.cache"
    asked = options(work, cache=path)
    assert only(build(asked, quiet)).manifest.request.ranges
    text = path.read_text()
    assert not build(asked, quiet).outcomes[0].built
    path.unlink()
    assert not build(asked, quiet).outcomes[0].built
    assert path.read_text() == text


def test_a_cache_of_other_weights_under_the_same_names_is_refused(work: Path) -> None:
    path = work / "net.cache"
    build(options(work, cache=path), quiet)
    model = nets.residual_net()
    model.graph.initializer[0].raw_data = weights(8, 3, 3, 3, seed=9).tobytes()
    save(model, work / "net.onnx")
    with pytest.raises(CalibrationError, match=r"(?s)net\.cache: .*model_sha256: .*Remove both"):
        build(options(work, cache=path, data=None, gate=False), quiet)


def test_channels_are_equalized_where_ranges_are_measured_and_not_for_a_cache(
    work: Path,
) -> None:
    card = Card(input=INPUT, task=TensorTask(name="tensor"))
    save(nets.depthwise_net(), work / "net.onnx", card)

    def made(folder: str, **more: Any) -> tuple[ranges.Ranges, float]:
        """The range file, and the engine's worst SQNR."""
        asked = options(work, ranges=work / folder, limits=("sqnr=0", "cosine=0"), **more)
        engine = only(build(asked, quiet))
        (file,) = (work / folder / "net").glob("ranges-*.json")
        found = [gate.value for gate in engine.manifest.gates if "SQNR" in gate.name]
        return ranges.load(file), min(found)

    found, with_them = made("equalized")
    assert max(found.exponents["r1"]) > 2
    for folder in ("written", "read"):
        found, without = made(folder, cache=work / "net.cache")
        assert found.exponents == {}
        assert without < with_them - 3


def test_a_method_that_is_unknown_is_a_question(work: Path) -> None:
    with pytest.raises(UnknownName, match="--calib-method 'entropie'"):
        build(options(work, method="entropie"), quiet)


def test_layers_asked_for_are_kept_and_in_the_request(work: Path) -> None:
    said: list[str] = []
    engine = only(build(options(work, keep=("head", "stem")), said.append))
    assert engine.manifest.request.keep == ("head", "stem")
    assert "stem in fp32: asked for" in engine.manifest.notes


def test_a_layer_that_int8_has_no_choice_about_is_refused_before_anything_is_measured(
    work: Path,
) -> None:
    said: list[str] = []
    other = next(one.name for one in load(work / "net.onnx").graph.node if one.op_type == "Relu")
    for name in ("haed", other):
        with pytest.raises(UnknownName, match=f"--keep '{name}'"):
            build(options(work, keep=(name,), seed=9), said.append)
    assert not any("measuring" in line for line in said)


SCORES_ERROR = "y channels 4-254: largest error"


def shared_scale(folder: Path) -> Path:
    task = TensorTask(name="tensor")
    save(nets.shared_scale_head(), folder / "net.onnx", Card(input=INPUT, task=task))
    pictures(folder / "pictures")
    return folder


def test_vanished_scores_fail_the_gate_and_auto_mends_it(tmp_path: Path) -> None:
    work = shared_scale(tmp_path)
    with pytest.raises(
        BuildFailed, match=r"(?s)y channels 4-254: cosine: 0, .*--keep auto"
    ) as told:
        build(options(work), quiet)
    assert "channels 0-3" not in str(told.value)
    assert not list((work / "engines/net").glob("cpu-*"))
    steps: list[str] = []
    engine = only(build(options(work, keep=("auto",)), quiet, lambda what, *_: steps.append(what)))
    assert engine.manifest.request.keep == ("decode",)
    (error,) = (g.value for g in engine.manifest.gates if g.name.startswith(SCORES_ERROR))
    assert error < 0.02
    assert steps.count("sensitivity") == 4
    first = engine.manifest.sensitivity[0]
    assert (first.layer, first.kept) == ("decode", True)
    assert first.alone > 1
    assert first.left is not None
    assert first.left <= 1
    chart = ElementTree.fromstring((engine.folder / "sensitivity.svg").read_text())
    assert [text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")][1] == "decode"
    steps.clear()
    again = build(options(work, keep=("auto",)), quiet, lambda what, *_: steps.append(what))
    assert (again.outcomes[0].built, steps) == (False, [])


def test_auto_searches_nothing_where_int8_passes_as_it_is(work: Path) -> None:
    steps: list[str] = []
    report = build(options(work, keep=("auto",)), quiet, lambda what, *_: steps.append(what))
    assert not report.outcomes[0].built
    assert only(report).manifest.request.keep == ()
    assert "sensitivity" not in steps


def test_a_limit_that_is_asked_for_decides_and_no_gate_skips_it(work: Path) -> None:
    with pytest.raises(BuildFailed, match=r"y: SQNR in dB: .*needs at least 90"):
        build(options(work, limits=("sqnr=90",), seed=3), quiet)
    engine = only(build(options(work, limits=("sqnr=90",), seed=3, gate=False), quiet))
    assert [gate.name for gate in engine.manifest.gates] == ["y: difference"]


def test_int8_that_is_slower_than_fp32_here_is_told(work: Path) -> None:
    engine = only(build(options(work, FP32), quiet))
    # As a device would be on which INT8 gains nothing.
    store.write_manifest(Engine(engine.folder, replace(engine.manifest, batch_ms=1e-6)))
    said: list[str] = []
    build(replace(options(work), rebuild=True), said.append)
    assert any("int8 takes " in line and f"({engine.folder})" in line for line in said)


def test_the_command_shows_checks_layers_and_attempts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = shared_scale(tmp_path)
    command.build(
        work / "net.onnx",
        precision="int8",
        calib_data=work / "pictures",
        ranges=work / "calibration",
        engines=work / "engines",
        batch="1:2:3",
        keep=["auto"],
        limit=["sqnr=12"],
    )
    told = capsys.readouterr()
    assert "y channels 4-254: cosine" in told.out
    assert "at least 12" in told.out
    assert "sensitivity to int8" in told.out
    (folder,) = (work / "engines/net").glob("cpu-*")
    assert told.out.splitlines()[-1].startswith(f"trtfuse build: OK {folder} (built in ")
    assert "net.onnx: measuring ranges in FP32 on 32 inputs" in told.err
    command.build(
        work / "net.onnx",
        precision="best",
        calib_data=work / "pictures",
        ranges=work / "calibration",
        engines=work / "engines",
        batch="1:2:3",
    )
    assert "tried int8 without 1 layer: " in capsys.readouterr().out


def test_best_takes_the_fastest_that_passes_and_says_what_it_tried(tmp_path: Path) -> None:
    work = shared_scale(tmp_path)
    said: list[str] = []
    report = build(options(work, "best"), said.append)
    manifest = only(report).manifest
    whole, mixed, plain = manifest.choice
    assert whole.startswith("int8: ")
    assert "does not answer as FP32 does" in whole
    assert mixed.startswith("int8 without 1 layer: ")
    assert mixed.endswith("ms a batch")
    assert plain.startswith("fp32: ")
    # The others are not published: `infer` finds one engine.
    assert len(list((work / "engines/net").glob("cpu-*"))) == 1
    assert not build(options(work, "best"), quiet).outcomes[0].built


def test_fp16_runs_without_inputs_and_is_told_to_be_for_gpus(work: Path) -> None:
    said: list[str] = []
    engine = only(build(options(work, FP16, data=None), said.append))
    assert any("for GPUs" in line for line in said)
    assert "3 held-out inputs" in engine.manifest.gates[-1].conditions
    x = np.concatenate([smooth(n, size=16) * 2 - 1 for n in range(3)])
    model = load(work / "net.onnx")
    assert nets.sqnr_db(nets.answer(model, x), answers(engine, x)) > 55


def test_bf16_is_refused_where_nothing_computes_it(work: Path) -> None:
    with pytest.raises(UsageError, match=r"--precision bf16: .*for GPUs"):
        build(options(work, Precision.BF16), quiet)


def test_a_graph_with_pairs_of_its_own_needs_no_inputs(work: Path) -> None:
    model = load(work / "net.onnx")
    x = np.concatenate([smooth(n, size=16) * 2 - 1 for n in range(4)])
    quantized = precision.write(model, INT8, nets.measured(model, x)).model
    save(quantized, work / "net.onnx")
    said: list[str] = []
    engine = only(build(options(work, data=None), said.append))
    assert "the graph has its Q/DQ pairs already" in engine.manifest.notes
