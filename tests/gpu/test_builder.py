"""Real builds with TensorRT-RTX, which needs no GPU; in a child each, as `trtfuse build` does."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import models
from tests.gpu import graphs
from tests.gpu.samples import LINE, PICTURE, PIXELS, request
from trtfuse.core.errors import BuildFailed, DeviceError, EngineMismatch, OutOfMemory, UsageError
from trtfuse.core.specs import BuildRequest, DeviceSpec, Precision, ShapeRange, TrtSettings
from trtfuse.gpu import builder
from trtfuse.gpu.builder import check_profile, check_settings, timing_file
from trtfuse.gpu.tensorrt import (
    Abilities,
    door,
    has_bfloat16,
    installed,
    permissions,
    refusal,
    typed,
)
from trtfuse.gpu.words import Words
from trtfuse.pool.spawn import run_in_child

ROOT = Path(__file__).parents[2]
HEAD = b"vtrt"  # how every plan of TensorRT-RTX begins


def built(
    model: Path, accepted: ShapeRange, *, settings: TrtSettings | None = None, name: str = "x"
) -> bytes:
    """The plan of `model`, whose one input is `name`."""
    plan = model.with_suffix(".plan")
    asked = rtx(accepted, settings=settings, name=name)
    run_in_child(builder.build, model, asked, plan, "", name="builder")
    return plan.read_bytes()


def rtx(
    accepted: ShapeRange, *, settings: TrtSettings | None = None, name: str = "x"
) -> BuildRequest:
    asked = request(accepted, runtime="tensorrt_rtx", settings=settings)
    return BuildRequest(
        model_sha256="",
        precision=asked.precision,
        profile=((name, accepted),),
        device_name="",
        device_features="",
        runtime=asked.runtime,
        runtime_version="",
        settings=settings,
    )


@pytest.mark.parametrize(
    ("graph", "accepted"),
    [
        (graphs.line, LINE),
        (graphs.picture, PICTURE),
        (graphs.half, PICTURE),
        (graphs.quantized, PICTURE),
        (graphs.pixels, PIXELS),
        (models.brighter, PICTURE),
    ],
)
def test_a_graph_becomes_an_engine(
    tmp_path: Path, graph: Callable[[Path], Path], accepted: ShapeRange
) -> None:
    plan = built(graph(tmp_path / "model.onnx"), accepted)
    assert plan.startswith(HEAD)
    assert len(plan) > 10_000


def test_the_face_detector_of_the_examples_becomes_an_engine(tmp_path: Path) -> None:
    from trtfuse.core.options import ExportOptions
    from trtfuse.graph.export import export

    face = tmp_path / "face.onnx"
    card = ROOT / "examples" / "faces" / "card.json"
    export(ExportOptions(model=str(models.centerface()), output=face, card=card), lambda _: None)
    sizes = ShapeRange(min=(1, 3, 512, 512), opt=(4, 3, 512, 512), max=(8, 3, 512, 512))
    plan = built(face, sizes, name="input.1")
    assert plan.startswith(HEAD)
    assert len(plan) > 1_000_000


def test_an_engine_for_fewer_gpus_is_smaller_and_the_same_each_time(tmp_path: Path) -> None:
    model = graphs.picture(tmp_path / "model.onnx")
    one = built(model, PICTURE, settings=TrtSettings(compute_capabilities=("8.9",)))
    again = built(model, PICTURE, settings=TrtSettings(compute_capabilities=("8.9",)))
    more = built(model, PICTURE, settings=TrtSettings(compute_capabilities=("7.5", "8.6", "8.9")))
    assert one == again
    assert len(one) < len(more)


def test_a_gpu_that_rtx_does_not_know_is_named_with_those_it_does(tmp_path: Path) -> None:
    model = graphs.line(tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=r"--compute-capability 9\.0: .* 8\.6, 8\.9, 12\.0"):
        built(model, LINE, settings=TrtSettings(compute_capabilities=("9.0",)))


def test_an_operator_that_tensorrt_lacks_is_told_in_its_own_words(tmp_path: Path) -> None:
    model = graphs.random_number(tmp_path / "model.onnx")
    words = r"model\.onnx: TensorRT .* cannot read it: node 'dice' \(Multinomial\): .*onnxOp"
    with pytest.raises(BuildFailed, match=words):
        built(model, LINE)
    assert not model.with_suffix(".plan").exists()


def test_a_builder_that_gives_up_is_quoted(tmp_path: Path) -> None:
    model = graphs.picture(tmp_path / "model.onnx")
    with pytest.raises(BuildFailed, match=r"cannot build it: .*within workspace limit"):
        built(model, PICTURE, settings=TrtSettings(workspace_bytes=1 << 20))


def test_nothing_is_written_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    built(graphs.picture(tmp_path / "model.onnx"), PICTURE)
    assert capfd.readouterr() == ("", "")


def test_the_share_that_is_done_grows(tmp_path: Path) -> None:
    shares = run_in_child(watched, graphs.picture(tmp_path / "model.onnx"), name="builder")
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1


def watched(model: Path) -> list[float]:
    shares: list[float] = []
    builder.build(model, rtx(PICTURE), model.with_suffix(".plan"), "", watch=shares.append)
    return shares


def test_rtx_is_known_by_what_it_has() -> None:
    assert run_in_child(rtx_abilities, name="asking") == Abilities(
        weakly_typed=False,
        portable=True,
        progress=True,
        profile_sharing=False,
        same_capability=True,
    )
    assert typed("tensorrt_rtx", "1.5.0")
    assert has_bfloat16("tensorrt_rtx", "1.5.0")


def test_a_runtime_tells_its_version_without_being_loaded() -> None:
    assert run_in_child(told, name="telling") == (run_in_child(rtx_version, name="asking"), False)


def told() -> tuple[str | None, bool]:
    """What is told of the version, and whether that loaded it."""
    return installed("tensorrt_rtx"), "tensorrt_rtx" in sys.modules


def rtx_version() -> str:
    return door("tensorrt_rtx").version


def test_what_would_have_polygraphy_run_pip_is_taken_out_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("AUTOINSTALL_DEPS", "INTERNAL_CORRECTNESS_CHECKS")
    for name in names:
        monkeypatch.setenv(f"POLYGRAPHY_{name}", "1")
    assert run_in_child(polygraphy_settings, names, name="asking") == [False, False]


def polygraphy_settings(names: Sequence[str]) -> list[bool]:
    """Polygraphy's settings, once a door is open."""
    door("tensorrt_rtx")
    from polygraphy import config

    return [bool(getattr(config, name)) for name in names]


def rtx_abilities() -> Abilities:
    return door("tensorrt_rtx").abilities


def heard(severity: str, text: str) -> Words:
    words = Words()
    words.hear(severity, text)
    return words


FOREIGN = heard("WARNING", "Using an engine plan file across different models of devices is not …")


@pytest.mark.parametrize(
    ("words", "loaded", "anywhere", "said"),
    [
        (Words(), True, False, None),
        (FOREIGN, True, False, "of another GPU: Using an engine plan file across different"),
        (FOREIGN, True, True, None),
        (heard("ERROR", "expecting compute 8.9 got compute 9.0"), False, True, "does not load it:"),
        (heard("ERROR", "Error Code 2: OutOfMemory"), False, False, "does not load it: Error Code"),
    ],
)
def test_a_plan_is_refused_for_what_tensorrt_said_of_it(
    words: Words, loaded: bool, anywhere: bool, said: str | None
) -> None:
    error = refusal(words, loaded=loaded, anywhere=anywhere)
    assert (error is None) is (said is None)
    assert said is None or said in str(error)
    assert isinstance(error, OutOfMemory) is ("OutOfMemory" in str(error))


def test_a_plan_that_is_none_is_refused_in_a_sentence(tmp_path: Path) -> None:
    plan = tmp_path / "engine.plan"
    plan.write_bytes(b"no plan")
    with pytest.raises(EngineMismatch, match=r"engine\.plan: TensorRT 1\..* does not load it: .+"):
        run_in_child(load, plan, name="probe")


def load(plan: Path) -> None:
    door("tensorrt_rtx").load(plan, anywhere=False)


def test_tensorrt_needs_a_gpu_that_is_there(tmp_path: Path) -> None:
    model, plan = graphs.line(tmp_path / "model.onnx"), tmp_path / "model.plan"
    with pytest.raises(DeviceError, match=re.escape("cuda:99: is not there.")):
        run_in_child(builder.build, model, request(LINE), plan, "cuda:99", name="builder")


@pytest.mark.parametrize(
    ("accepted", "inputs", "words"),
    [
        pytest.param(LINE, {"image": (-1, 4)}, "the profile is of x, .* inputs image", id="name"),
        pytest.param(LINE, {"x": (-1, 5)}, r"finds the shape \(-1, 5\)", id="size"),
        pytest.param(LINE, {"x": (4, 4)}, r"finds the shape \(4, 4\)", id="fixed-batch"),
        pytest.param(LINE, {"x": (-1, 4, 4)}, r"finds the shape \(-1, 4, 4\)", id="rank"),
        pytest.param(LINE, {"x": (-1, 4), "y": (1,)}, "inputs x, y", id="one-too-few"),
    ],
)
def test_a_profile_that_does_not_fit_the_network_is_told_before_the_build(
    accepted: ShapeRange, inputs: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(BuildFailed, match=rf"^m\.onnx: .*{words}"):
        check_profile((("x", accepted),), inputs, source="m.onnx")


@pytest.mark.parametrize("shape", [(-1, 4), (-1, -1)])
def test_open_sizes_take_any_profile(shape: tuple[int, ...]) -> None:
    check_profile((("x", LINE),), {"x": shape}, source="m.onnx")


@pytest.mark.parametrize(
    ("runtime", "settings", "words"),
    [
        ("tensorrt", TrtSettings(compute_capabilities=("8.9",)), "is for --runtime rtx"),
        ("tensorrt_rtx", TrtSettings(hardware="ampere+"), "are not for --runtime rtx"),
        ("tensorrt_rtx", TrtSettings(version_compatible=True), "are not for --runtime rtx"),
    ],
)
def test_a_setting_of_the_other_runtime_is_an_error(
    runtime: str, settings: TrtSettings, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        check_settings(settings, runtime, ("8.9",))


def test_timings_are_kept_apart_by_tensorrt_gpu_and_driver() -> None:
    gpu = DeviceSpec(name="NVIDIA H200", kind="cuda", features="sm90 140GiB driver580")
    assert timing_file("8.6.0", gpu) == "timings-8.6.0-nvidia-h200-sm90-140gib-driver580.cache"


@pytest.mark.parametrize(
    ("precision", "types", "quantized", "flags"),
    [
        (Precision.FP32, {"float32"}, False, set()),
        (Precision.FP16, {"float32"}, False, {"fp16"}),
        (Precision.FP32, {"float32", "float16"}, False, {"fp16"}),
        (Precision.INT8, {"float32"}, True, {"int8", "fp16"}),
        (Precision.BF16, {"float32"}, False, {"bf16"}),
    ],
)
def test_a_weakly_typed_builder_is_permitted_what_the_engine_is_to_compute_in(
    precision: Precision, types: set[str], quantized: bool, flags: set[str]
) -> None:
    assert set(permissions(precision, types=types, quantized=quantized)) == flags
