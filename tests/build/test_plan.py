from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.build import samples
from trtfuse.build import plan
from trtfuse.cli.build import parse_batch, parse_shapes, parse_sizes
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import ModelSpec, Precision, ShapeRange, TensorSpec, TrtSettings

FIXED = samples.model("batch", 3, 8, 8)
OPEN = samples.model("batch", 3, "height", "width")
SIZES = ((64, 32), (128, 64), (256, 128))


def options(**changes: object) -> BuildOptions:
    return replace(BuildOptions(model=Path("face.onnx")), **changes)  # type: ignore[arg-type]


def only(options: BuildOptions, spec: ModelSpec) -> ShapeRange:
    ((name, shapes),) = plan.profile(options, spec)
    assert name == "x"
    return shapes


def test_a_fixed_size_leaves_the_batch_alone_to_vary() -> None:
    assert only(options(batch=(1, 2, 16)), FIXED) == ShapeRange(
        min=(1, 3, 8, 8), opt=(2, 3, 8, 8), max=(16, 3, 8, 8)
    )


def test_what_has_its_default_is_not_in_the_fingerprint() -> None:
    request = samples.build(FIXED).request
    assert plan.fingerprint(replace(request, keep=())) == plan.fingerprint(request)
    assert plan.fingerprint(replace(request, keep=("a",))) != plan.fingerprint(request)
    assert plan.fingerprint(replace(request, ranges="f" * 64)) != plan.fingerprint(request)


def test_a_command_names_the_precision_and_what_was_kept(tmp_path: Path) -> None:
    manifest = samples.publish(tmp_path, FIXED, samples.build(FIXED)).manifest
    request = replace(manifest.request, precision=Precision.INT8, keep=("conv 1", "head"))
    line = plan.command(replace(manifest, request=request))
    assert shlex.split(line)[-6:] == [
        "--precision", "int8", "--calib-data", "FOLDER", "--keep", "conv 1,head",
    ]  # fmt: skip
    assert plan.fp32(request) == samples.build(FIXED).request


def test_sizes_fill_the_open_axes_height_first() -> None:
    assert only(options(sizes=SIZES), OPEN) == ShapeRange(
        min=(1, 3, 64, 32), opt=(4, 3, 128, 64), max=(8, 3, 256, 128)
    )
    last = samples.model("batch", "height", "width", 3)
    assert only(options(sizes=SIZES), last).max == (8, 256, 128, 3)


def test_open_sizes_need_the_flag_and_the_message_can_be_pasted() -> None:
    with pytest.raises(UsageError, match=r"\[batch, 3, height, width\] leaves its height and") as e:
        only(options(), OPEN)
    command = shlex.split(str(e.value).partition("for example: ")[2])
    assert command[:4] == ["trtfuse", "build", "face.onnx", "--size"]
    only(options(sizes=parse_sizes(command[4])), OPEN)


def test_the_example_keeps_to_the_cards_multiple() -> None:
    spec = samples.model("batch", 3, "h", "w", of=samples.card(multiple=48))
    with pytest.raises(UsageError, match=r"--size 288x288:528x528:1056x1056$"):
        only(options(), spec)


def test_sizes_that_the_card_cannot_fill_are_refused() -> None:
    spec = samples.model("batch", 3, "h", "w", of=samples.card(multiple=48))
    with pytest.raises(UsageError, match="height 64:128:256 needs multiples of 48"):
        only(options(sizes=SIZES), spec)


def test_a_card_with_a_size_settles_it() -> None:
    spec = samples.model("batch", 3, "h", "w", of=samples.card(size=(24, 40)))
    assert only(options(), spec).min == (1, 3, 24, 40)
    with pytest.raises(UsageError, match="the card fixes the size at 24x40"):
        only(options(sizes=SIZES), spec)


def test_sizes_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(UsageError, match="width 64:32:128 needs 0 < min <= opt <= max"):
        only(options(sizes=((64, 64), (128, 32), (256, 128))), OPEN)


def test_sizes_for_a_graph_that_has_its_own_are_refused() -> None:
    with pytest.raises(UsageError, match="fixes its own sizes"):
        only(options(sizes=SIZES), FIXED)


def test_more_than_two_open_sizes_cannot_be_settled() -> None:
    with pytest.raises(UsageError, match=r"leaves 3 sizes open"):
        only(options(sizes=SIZES), samples.model("batch", "c", "h", "w"))


def test_a_graph_without_a_batch_axis_is_sent_to_export() -> None:
    with pytest.raises(UsageError, match=r"\[n, 3, 8, 8\].*trtfuse export face.onnx -o"):
        only(options(), samples.model("n", 3, 8, 8))


def test_a_batch_that_the_graph_fixes_is_all_of_the_profile() -> None:
    shape = (5, 3, 8, 8)
    spec = samples.model(*shape)
    assert only(options(), spec) == ShapeRange(min=shape, opt=shape, max=shape)
    assert only(options(batch=(5, 5, 5)), spec).max == shape
    with pytest.raises(UsageError, match=r"fixes its batch at 5.*export face\.onnx -o"):
        only(options(batch=(1, 4, 8)), spec)
    scores = TensorSpec(name="scores", dtype="float32", shape=("n", 6))
    with pytest.raises(UsageError, match=r"output 'scores' \[n, 6\] needs 5 as its first axis"):
        only(options(), replace(spec, outputs=(*spec.outputs, scores)))


def test_equal_devices_share_one_engine_and_unequal_ones_do_not() -> None:
    second = replace(samples.H200, device=replace(samples.H200.device, index=1, uuid="GPU-2"))
    builds = plan.plan(options(), FIXED, [samples.XEON, samples.H200, second])
    assert [one.device for one in builds] == [samples.XEON.device, samples.H200.device]
    assert [one.count for one in builds] == [1, 2]


def test_gpus_are_built_for_as_the_settings_say_and_cpus_have_none() -> None:
    settings = TrtSettings(optimization_level=5)
    (gpu,) = plan.plan(options(settings=settings), FIXED, [samples.H200])
    assert gpu.request.settings == settings
    assert gpu.fingerprint != samples.build(FIXED, samples.H200).fingerprint
    assert samples.build(FIXED).request.settings is None
    with pytest.raises(UsageError, match=r"--optimization-level is for GPUs.*Intel"):
        plan.plan(options(settings=settings), FIXED, [samples.XEON])


def test_the_command_of_a_gpus_engine_repeats_its_settings(tmp_path: Path) -> None:
    settings = TrtSettings(
        workspace_bytes=4 << 30,
        optimization_level=5,
        hardware="ampere+",
        version_compatible=True,
    )
    (one,) = plan.plan(options(settings=settings), FIXED, [samples.H200])
    line = plan.command(samples.publish(tmp_path, FIXED, one).manifest)
    assert line.endswith(
        f"--batch 1:4:8 --gpus all --workspace {4 << 30} --optimization-level 5 "
        f"--hardware ampere+ --version-compatible"
    )


def test_a_folder_says_device_runtime_precision_and_fingerprint() -> None:
    cpu, gpu = (samples.build(FIXED, target) for target in (samples.XEON, samples.H200))
    assert cpu.folder == f"cpu-onnxruntime-fp32-{cpu.fingerprint[:8]}"
    assert gpu.folder == f"nvidia-h200-tensorrt-fp32-{gpu.fingerprint[:8]}"


def test_the_fingerprint_is_of_the_request_and_nothing_else() -> None:
    one = samples.build(FIXED)
    moved = samples.build(replace(FIXED, path=Path("elsewhere/face.onnx")))
    assert one.fingerprint == moved.fingerprint
    # Written down: a change of the manifest's form must not pass for a change of the engine.
    assert one.fingerprint[:8] == "e4b9c6ae"


@pytest.mark.parametrize(
    "changes",
    [
        {"model_sha256": "b" * 64},
        {"device_name": "another"},
        {"device_features": "x86_64 avx2"},
        {"runtime_version": "1.31.0"},
        {"profile": (("x", ShapeRange(min=(1, 4), opt=(1, 4), max=(1, 4))),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_fingerprint_changes_with_every_part_of_the_request(changes: dict[str, object]) -> None:
    request = samples.build(FIXED).request
    changed = replace(request, **changes)  # type: ignore[arg-type]
    assert plan.fingerprint(changed) != plan.fingerprint(request)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [(FIXED, options(batch=(2, 3, 4))), (OPEN, options(sizes=SIZES))],
    ids=["fixed", "open"],
)
def test_the_command_of_an_engine_builds_the_same_profile_again(
    tmp_path: Path, spec: ModelSpec, wanted: BuildOptions
) -> None:
    (one,) = plan.plan(wanted, spec, [samples.XEON])
    words = shlex.split(plan.command(samples.publish(tmp_path, spec, one).manifest))
    assert words[:3] == ["trtfuse", "build", str(spec.path.absolute())]
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    sizes = parse_sizes(flags["--size"]) if "--size" in flags else None
    again = replace(wanted, batch=parse_batch(flags["--batch"]), sizes=sizes)
    assert plan.profile(again, spec) == one.request.profile


WIDE = ShapeRange(min=(1, 3, 64, 32), opt=(2, 3, 96, 32), max=(6, 3, 96, 64))
TOKENS = ShapeRange(min=(1, 8), opt=(2, 16), max=(6, 32))
TWO = replace(
    OPEN, inputs=(*OPEN.inputs, TensorSpec(name="t", dtype="int64", shape=("batch", "length")))
)


def test_stated_shapes_are_the_profile() -> None:
    assert only(options(shapes=(("x", WIDE),)), OPEN) == WIDE
    stated = options(shapes=(("t", TOKENS), ("x", WIDE)))
    assert plan.profile(stated, TWO) == (("x", WIDE), ("t", TOKENS))


@pytest.mark.parametrize(
    ("shapes", "spec", "said"),
    [
        ((("y", WIDE),), OPEN, "input 'y': not known. Known: x"),
        ((("x", WIDE),), TWO, r"says nothing of input 't' \[batch, length\]"),
        ((("x", WIDE),), FIXED, r"x:\(1, 3, 64, 32\) is not \[batch, 3, 8, 8\]"),
        ((("x", TOKENS),), OPEN, r"x:\(1, 8\) is not \[batch, 3, height, width\]"),
        ((("x", WIDE),), samples.model("n", 3, "h", "w"), "needs 'batch' as its first axis"),
        (
            (("x", WIDE), ("t", replace(TOKENS, max=(8, 32)))),
            TWO,
            "all inputs of a batch need the same number of items",
        ),
        (
            (("x", WIDE),),
            samples.model("batch", 3, "h", "w", of=samples.card(multiple=48)),
            "--optShapes: height 64:96:96 needs multiples of 48",
        ),
    ],
)
def test_stated_shapes_keep_to_graph_and_card(
    shapes: tuple[tuple[str, ShapeRange], ...], spec: ModelSpec, said: str
) -> None:
    with pytest.raises((UsageError, UnknownName), match=said):
        plan.profile(options(shapes=shapes), spec)


def test_the_command_of_an_engine_that_batch_and_size_cannot_say_states_shapes(
    tmp_path: Path,
) -> None:
    stated = options(shapes=(("x", WIDE), ("t", TOKENS)))
    (one,) = plan.plan(stated, TWO, [samples.XEON])
    words = shlex.split(plan.command(samples.publish(tmp_path, TWO, one).manifest))
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    given = (flags[f"--{name}Shapes"] for name in ("min", "opt", "max"))
    again = options(shapes=parse_shapes(*given, beside=(None, None)))
    assert plan.profile(again, TWO) == one.request.profile
