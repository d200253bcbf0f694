from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.calibrate.examples import Floats, example, examples, smooth
from tests.graph import precisions as nets
from tests.graph.graphs import graph
from trtfuse.calibrate import ranges
from trtfuse.calibrate.ranges import Limits, Origin, Range, Ranges
from trtfuse.calibrate.recipe import Example, choose
from trtfuse.calibrate.thresholds import parse_method
from trtfuse.core.card import InputCard
from trtfuse.core.errors import CalibrationError
from trtfuse.core.specs import Precision
from trtfuse.graph import precision, wiring
from trtfuse.graph.precision import Needs
from trtfuse.graph.tap import Tap

INPUTS = examples([smooth(n, size=16) for n in range(6)])
CARD = InputCard(
    name="x", layout="NCHW", colour="RGB", range=(0.0, 1.0), size="dynamic", resize="none"
)
MINMAX = parse_method("minmax")
ONE_THREAD = Limits(threads=1)


def quiet(done: int, total: int) -> None:
    pass


def needs(model: onnx.ModelProto) -> Needs:
    return precision.needs(model, Precision.INT8, rest=Precision.FP16)


def measure(
    model: onnx.ModelProto, inputs: list[Example] = INPUTS, method: str = "minmax"
) -> dict[str, Range]:
    return ranges.measure(model, inputs, needs(model), parse_method(method), ONE_THREAD, quiet)


def origin() -> Origin:
    return Origin(model_sha256="a" * 64, card=CARD, recipe=choose(INPUTS), method="entropy")


def record() -> Ranges:
    tensors = {"x": Range(low=-1.5, high=2.0, amax=1.75), "y": Range(low=0.0, high=3.0)}
    return Ranges(schema=1, origin=origin(), left_out={"00.png": "a copy"}, tensors=tensors)


def test_extremes_are_those_of_all_inputs() -> None:
    model = nets.residual_net()
    found = measure(model)
    tap = Tap(model, list(found), threads=1)
    answers = [tap(one.load()) for one in INPUTS]
    for name, one in found.items():
        assert one.low == min(float(answer[name].min()) for answer in answers)
        assert one.high == max(float(answer[name].max()) for answer in answers)
    assert found["x"].amax == max(float(np.abs(one.load()["x"]).max()) for one in INPUTS)


def test_only_what_int8_needs_has_a_threshold() -> None:
    model = nets.residual_net()
    found = measure(model)
    wanted = needs(model)
    assert {name for name, one in found.items() if one.amax is not None} == set(wanted.amax)
    assert set(found) == set(wanted.amax) | set(wanted.reach)


def test_methods_differ_where_the_distribution_says_so() -> None:
    model = nets.residual_net()
    largest, clipped = measure(model), measure(model, method="percentile:99")
    assert clipped["r2"].amax
    assert largest["r2"].amax
    assert clipped["r2"].amax < 0.9 * largest["r2"].amax


def test_progress_counts_every_run() -> None:
    model = nets.residual_net()
    told: list[tuple[int, int]] = []
    ranges.measure(model, INPUTS, needs(model), MINMAX, ONE_THREAD, lambda *n: told.append(n))
    assert told == [(n, 6) for n in range(1, 7)]


def test_tensors_that_do_not_fit_into_one_pass_are_measured_in_several() -> None:
    model = nets.residual_net()
    at_once = measure(model)
    # x is 3 KiB and r1 is 8 KiB: room for one or two of them.
    small = Limits(threads=1, pass_bytes=12 << 10)
    told: list[tuple[int, int]] = []
    in_parts = ranges.measure(model, INPUTS, needs(model), MINMAX, small, lambda *n: told.append(n))
    assert told[-1][1] > 3 * len(INPUTS)
    assert told[-1][0] == told[-1][1]
    assert in_parts.keys() == at_once.keys()
    for name, one in in_parts.items():
        assert one.high == pytest.approx(at_once[name].high, rel=1e-5, abs=1e-6)


def test_a_tensor_that_is_not_finite_is_named_with_its_input() -> None:
    model = graph(
        [
            helper.make_node("ReduceMax", ["x"], ["m"], name="max", axes=[1, 2, 3]),
            helper.make_node("Div", ["x", "m"], ["d"], name="div"),
            helper.make_node("Relu", ["d"], ["y"], name="relu"),
        ],
        {"x": ["batch", 3, 16, 16]},
        {"y": ["batch", 3, 16, 16]},
        {},
    )
    black = example("black.png", np.zeros((1, 3, 16, 16), np.float32))
    wanted = Needs(reach=wiring.float_activations(model))
    with pytest.raises(CalibrationError, match=r"black\.png: tensor 'd' holds NaN or infinity"):
        ranges.measure(model, [*INPUTS, black], wanted, MINMAX, ONE_THREAD, quiet)


def test_a_tensor_that_never_moved_is_named_and_not_quantized() -> None:
    model = nets.residual_net()
    (w1,) = (one for one in model.graph.initializer if one.name == "w1")
    (b1,) = (one for one in model.graph.initializer if one.name == "b1")
    w1.raw_data = bytes(len(w1.raw_data))
    b1.raw_data = bytes(len(b1.raw_data))
    found = replace(record(), tensors=measure(model))
    assert set(found.still) >= {"c1", "r1", "r2"}
    assert "r1" not in found.measured.amax
    written = precision.write(model, Precision.INT8, found.measured)
    assert written.quantized == ("stem",)


def test_a_range_file_reads_back_as_it_was(tmp_path: Path) -> None:
    path = ranges.file_of(tmp_path, origin())
    assert path.name == f"ranges-{origin().key[:8]}.json"
    ranges.save(record(), path)
    assert ranges.load(path) == record()
    assert ranges.load(path).fingerprint == record().fingerprint


def test_the_fingerprint_follows_every_number() -> None:
    other = {**record().tensors, "x": Range(low=-1.5, high=2.0, amax=1.76)}
    assert replace(record(), tensors=other).fingerprint != record().fingerprint


def test_what_is_measured_is_what_is_written() -> None:
    measured = record().measured
    assert measured.amax == {"x": 1.75}
    assert measured.reach == {"x": 2.0, "y": 3.0}


def test_ranges_cover_what_they_have() -> None:
    assert record().covers(Needs(amax=("x",), reach=("y",)))
    assert not record().covers(Needs(amax=("y",)))
    assert not record().covers(Needs(reach=("z",)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_sha256": "b" * 64}, 'model_sha256: "aaaaaaaa….* in the file, "bbbbbbbb….* now'),
        ({"method": "minmax"}, 'method: "entropy" in the file, "minmax" now'),
        ({"card": replace(CARD, colour="BGR")}, 'card.colour: "RGB" in the file, "BGR" now'),
        ({"card": None}, "card: .* in the file, null now"),
        ({"recipe": choose(INPUTS, seed=1)}, "recipe.seed: 0 in the file, 1 now"),
        ({"recipe": choose(INPUTS[:5])}, r"inputs: 1 gone \(05.png\)"),
    ],
)
def test_ranges_of_something_else_are_refused_with_the_difference(
    change: dict[str, Any], words: str
) -> None:
    other = replace(origin(), **change)
    assert other.key != origin().key
    with pytest.raises(CalibrationError, match=words):
        ranges.require(record(), other, Path("ranges.json"))
    ranges.require(record(), origin(), Path("ranges.json"))


def test_a_changed_input_is_named(tmp_path: Path) -> None:
    edited = [example("00.png", smooth(99, size=16)), *INPUTS[1:]]
    (words,) = ranges.differences(origin(), replace(origin(), recipe=choose(edited)))
    assert words == "inputs: 1 changed (00.png)"


def test_the_same_names_with_new_weights_are_another_model(tmp_path: Path) -> None:
    first, second = nets.residual_net(), nets.residual_net()
    second.graph.initializer[1].raw_data = second.graph.initializer[1].raw_data[::-1]
    made = replace(record(), tensors=measure(first))
    assert needs(first) == needs(second)
    with pytest.raises(CalibrationError, match="not of this model"):
        ranges.require(made, replace(origin(), model_sha256="c" * 64), Path("ranges.json"))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema": 2}', '{"schema": 1, "tensors": {}}', "\xff"]
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ranges.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CalibrationError, match=r"ranges\.json: not a range file"):
        ranges.load(path)


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    ranges.save(record(), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    with pytest.raises(CalibrationError, match="unknown more"):
        ranges.load(path)


def test_an_interrupted_measurement_leaves_no_file(tmp_path: Path) -> None:
    def interrupt() -> dict[str, Floats]:
        raise KeyboardInterrupt

    stopped = [*INPUTS, Example(key="late", sha256="", load=interrupt)]
    path = tmp_path / "ranges.json"
    with pytest.raises(KeyboardInterrupt):
        ranges.save(replace(record(), tensors=measure(nets.residual_net(), stopped)), path)
    assert list(tmp_path.iterdir()) == []
