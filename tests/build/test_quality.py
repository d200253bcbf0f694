from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graph import precisions as nets
from trtfuse.build import quality
from trtfuse.build.quality import METRICS, Case, Finding, Limits
from trtfuse.core.card import (
    Card,
    ClassifyTask,
    DetectTask,
    EmbedTask,
    ImageTask,
    InputCard,
    TaskCard,
)
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.specs import Array, Precision
from trtfuse.graph import precision

INT8 = Limits(Precision.INT8, {})
INPUT = InputCard(
    name="x", layout="NCHW", colour="RGB", range=(0.0, 1.0), size="dynamic", resize="none"
)
RANDOM = np.random.default_rng(0)


def card(task: TaskCard) -> Card:
    return Card(input=INPUT, task=task)


def judged(
    expected: list[Array], got: list[Array], of: Card | None = None, limits: Limits = INT8
) -> dict[str, Finding]:
    cases = [Case({"x": np.zeros((1, 3, 8, 8), np.float32)}, {"y": one}) for one in expected]
    found = quality.judge(cases, [{"y": one} for one in got], of, limits)
    return {f"{one.where} {one.metric.name}".strip(): one for one in found}


def failed(found: dict[str, Finding]) -> list[str]:
    return [name for name, one in found.items() if one.pressure > 1]


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal((1, *shape)).astype(np.float32)


def test_a_detector_whose_scores_vanished_is_caught_although_the_whole_looks_right() -> None:
    model = nets.shared_scale_head()
    x = nets.items(model, 4)
    written = precision.write(model, Precision.INT8, nets.measured(model, x)).model
    expected, got = nets.answer(model, x), nets.answer(written, x)
    size = np.sqrt(np.square(expected).sum() * np.square(got).sum())
    assert (expected * got).sum() / size > 0.9999
    assert expected[:, 4:].max() > 0.1
    assert not got[:, 4:].any()
    rows = [expected[n : n + 1] for n in range(4)], [got[n : n + 1] for n in range(4)]
    found = judged(*rows)
    assert "y channels 4-254 cosine" in failed(found)
    assert not any("channels 0-3" in name for name in failed(found))


def test_one_group_is_named_by_its_output_alone() -> None:
    y = normal(4, 8, 8)
    assert set(judged([y], [y])) == {"y cosine", "y sqnr", "y error"}


def test_whole_numbers_are_judged_by_the_share_that_is_off() -> None:
    y = np.zeros((1, 3, 8, 8), np.uint8)
    off = y.copy()
    off[0, 0, 0, :4] = 2
    found = judged([y], [off])
    assert found["y off"].value == pytest.approx(4 / 192)
    assert not failed(found)
    assert failed(judged([y], [y + 2])) == ["y off"]


def test_pictures_are_judged_by_psnr_and_ssim() -> None:
    task = ImageTask(name="image", output="y", layout="NCHW", colour="RGB", range=(0.0, 1.0))
    picture = RANDOM.random((1, 3, 16, 16)).astype(np.float32)
    noisy = picture + np.float32(0.1) * normal(3, 16, 16)
    found = judged([picture], [noisy], card(task))
    assert found["psnr"].value == pytest.approx(20, abs=1)
    assert "psnr" in failed(found)
    assert not failed(judged([picture], [picture + np.float32(0.01)], card(task)))


def test_classes_are_judged_by_the_first() -> None:
    task = ClassifyTask(name="classify", output="y", labels=("a", "b"), scores="logits")
    expected = [np.array([[1, 2]], np.float32), np.array([[3, 1]], np.float32)]
    found = judged(expected, [expected[0], expected[1][:, ::-1]], card(task))
    assert found["top1"].value == 0.5
    assert "top1" in failed(found)


def test_vectors_are_judged_by_the_worst_row() -> None:
    task = EmbedTask(name="embed", output="y", normalize=True)
    rows = [normal(64), normal(64)]
    found = judged(rows, [rows[0], normal(64)], card(task))
    assert found["row"].value < 0.5
    assert "row" in failed(found)
    assert judged(rows, rows, card(task))["row"].value == pytest.approx(1)


YOLO = DetectTask(
    name="detect",
    decoder="yolov8",
    outputs={"boxes": "y"},
    labels=("cat", "dog"),
    score=0.5,
    iou=0.5,
)


def boxes(*centres: float, score: float = 0.9, side: float = 4.0) -> Array:
    """[1, 4 + classes, anchors]"""
    rows = [[c, c, side, side, score, 0.1] for c in centres]
    return np.asarray(np.array(rows, np.float32).T[None])


def test_detections_are_judged_by_their_boxes_and_scores() -> None:
    expected = [boxes(3, 6)]
    found = judged(expected, [boxes(3, 6, score=0.8)], card(YOLO))
    assert found["boxes"].value == 1
    assert found["drift"].value == pytest.approx(0.1, abs=1e-5)
    assert "drift" in failed(found)
    moved = [boxes(3, 7)]
    assert judged(expected, moved, card(YOLO))["boxes"].value == 0.5
    overlap = judged(expected, moved, card(YOLO))["overlap"]
    assert overlap.value == pytest.approx(9 / 16)  # one picture ends where the other box does
    assert overlap.pressure == 0
    asked = Limits(Precision.INT8, {"overlap": 0.9})
    assert judged(expected, moved, card(YOLO), asked)["overlap"].pressure > 1
    assert judged(expected, [boxes(3, 6, score=0)], card(YOLO))["boxes"].value == 0


def test_noise_adds_up_where_boxes_jump() -> None:
    expected = boxes(3, 6)
    noise = [np.float32(scale) * RANDOM.standard_normal(expected.shape) for scale in (0.1, 0.2)]

    def made(*parts: Array) -> float:
        answer = (expected + np.sum(parts, axis=0)).astype(np.float32)
        return quality.noise(list(judged([expected], [answer], card(YOLO)).values()))

    assert made(*noise) == pytest.approx(made(noise[0]) + made(noise[1]), rel=0.5)
    assert made(noise[1]) > 2 * made(noise[0])


def test_where_nothing_has_an_sqnr_the_worst_check_stands_for_noise() -> None:
    whole = np.full((1, 3, 8, 8), 100, np.uint8)
    found = list(judged([whole], [whole + np.uint8(2)]).values())
    assert quality.noise(found) == quality.worst(found) > 1


def test_maps_beside_boxes_only_fail_where_they_are_gone() -> None:
    expected = boxes(3, 6)

    def cosine_limits(limits: Limits) -> set[float]:
        found = judged([expected], [expected], card(YOLO), limits)
        return {one.limit for name, one in found.items() if "cosine" in name}

    assert cosine_limits(INT8) == {0.5}
    assert cosine_limits(Limits(Precision.INT8, {"cosine": 0.999})) == {0.999}


def test_without_a_box_the_numbers_decide() -> None:
    nothing = boxes(3, score=0.1)
    found = judged([nothing], [nothing * 0], card(YOLO))
    assert "boxes" not in found
    assert failed(found)


def test_outputs_that_are_not_finite_fail() -> None:
    y = normal(4, 8, 8)
    assert failed(judged([y], [y * np.float32(np.nan)]))


def test_halves_have_stricter_limits_and_what_is_asked_for_wins() -> None:
    half = Limits(Precision.FP16, {})
    for metric in METRICS.values():
        if metric.scale == "error":
            assert half.of(metric) < INT8.of(metric)
        else:
            assert half.of(metric) > INT8.of(metric)
    assert Limits(Precision.FP16, {"psnr": 20.0}).of(METRICS["psnr"]) == 20


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_pressure_is_1_at_the_limit_and_falls_with_quality(metric: quality.Metric) -> None:
    limit = metric.half
    better = limit / 2 if metric.scale == "error" else (limit + 1) / 2
    better = limit + 3 if metric.scale == "db" else better
    assert metric.pressure(limit, limit) == pytest.approx(1)
    assert metric.pressure(better, limit) == pytest.approx(0.5, rel=0.01)
    assert metric.pressure(float("nan"), limit) == np.inf


def test_findings_become_gates_with_their_direction() -> None:
    finding = Finding(METRICS["psnr"], "", 41.2, 30.0)
    result = finding.result("16 inputs")
    assert (result.name, result.value, result.limit) == ("PSNR in dB", 41.2, 30.0)
    assert result.least
    assert result.passed
    assert not Finding(METRICS["drift"], "", 0.1, 0.05).result("").passed


def test_limits_are_named_numbers() -> None:
    assert quality.parse_limits(["psnr=35", "cosine=0.99"]) == {"psnr": 35, "cosine": 0.99}
    with pytest.raises(UnknownName, match="Did you mean psnr"):
        quality.parse_limits(["pnsr=35"])
    for text in ("psnr", "psnr=", "psnr=high"):
        with pytest.raises(UsageError, match="needs a number"):
            quality.parse_limits([text])


def spans(*channels: Any) -> str:
    return quality._span(np.array(channels))


def test_channels_are_named_by_their_runs() -> None:
    assert spans(0, 1, 2, 3) == "0-3"
    assert spans(4) == "4"
    assert spans(0, 2, 4, 6, 8) == "0,2,4,…"
