"""The quality half of the gate: a precision against FP32, on inputs that did not calibrate it.

Every output is judged as numbers, by groups of channels: a detector whose scores are all 0 has a
cosine of 0.99999 over the whole output, because its boxes are large. Then the answers are judged
by what the card says they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np

from trtfuse.build import metrics
from trtfuse.build.metrics import ChannelSums
from trtfuse.core.card import Card, ClassifyTask, DetectTask, EmbedTask, ImageTask
from trtfuse.core.errors import ItemError, UnknownName, UsageError
from trtfuse.core.flow import Codec, Geometry
from trtfuse.core.specs import Array, Arrays, GateResult, Precision
from trtfuse.tasks.table import codec


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a limit is set on."""

    name: str
    words: str
    scale: Literal["share", "db", "error"]
    """share: 1 is best. db: more is better. error: 0 is best."""
    int8: float
    """The limit for INT8."""
    half: float
    """The limit for FP16 and BF16."""

    def pressure(self, value: float, limit: float) -> float:
        """The noise of `value` over the noise that `limit` allows: above 1 it fails."""
        if np.isnan(value):
            return float("inf")
        match self.scale:
            case "share":  # a limit of 0 asks for nothing
                return (1 - value) / max(1 - limit, 1e-12) if limit > 0 else 0.0
            case "db":
                return float(10 ** (np.clip(limit - value, -300, 300) / 10))
            case "error":
                return value / max(limit, 1e-12)


# What well calibrated INT8 keeps on the models of benchmarks/results/precision.json, with room; a
# layer under a scale that is not its own fails each by far.
METRICS = {
    one.name: one
    for one in (
        Metric("cosine", "cosine", "share", 0.95, 0.999),
        Metric("sqnr", "SQNR in dB", "db", 10.0, 30.0),
        Metric("error", "largest error, of the largest value", "error", 0.5, 0.1),
        Metric("off", "share of values off by more than 1", "error", 0.05, 0.01),
        Metric("psnr", "PSNR in dB", "db", 30.0, 45.0),
        Metric("ssim", "SSIM", "share", 0.9, 0.99),
        Metric("top1", "same first class", "share", 0.9, 0.98),
        Metric("boxes", "boxes found again", "share", 0.95, 0.99),
        # Of one box alone: how far it may go is for whoever asks, as --limit overlap=0.93.
        Metric("overlap", "least overlap of a box", "share", 0.0, 0.5),
        Metric("drift", "largest drift of a score", "error", 0.05, 0.01),
        Metric("row", "least cosine of a vector", "share", 0.98, 0.999),
    )
}
# A box is found again if it overlaps this much.
IOU = 0.9

# Maps of a detector mean something at its boxes and nothing elsewhere. Where boxes were compared
# they decide, and numbers only tell that a part of an output is not there any more.
_BESIDE_BOXES = {"cosine": 0.5, "sqnr": 0.0, "error": 2.0}


@dataclass(frozen=True, slots=True)
class Limits:
    """Where each metric fails."""

    precision: Precision
    asked: Mapping[str, float]
    """What `--limit` says, by metric."""

    def of(self, metric: Metric, *, beside_boxes: bool = False) -> float:
        """What was asked for, else the default of the precision."""
        if metric.name in self.asked:
            return self.asked[metric.name]
        if beside_boxes and metric.name in _BESIDE_BOXES:
            return _BESIDE_BOXES[metric.name]
        return metric.int8 if self.precision is Precision.INT8 else metric.half


@dataclass(frozen=True, slots=True)
class Case:
    """A held-out input and what FP32 answers to it; one item, with its batch axis of 1."""

    feeds: Arrays
    expected: Arrays


@dataclass(frozen=True, slots=True)
class Finding:
    """One number and its limit."""

    metric: Metric
    where: str
    """Output and channels; empty for the answer as a whole."""
    value: float
    limit: float

    @property
    def pressure(self) -> float:
        """Above 1 it fails."""
        return self.metric.pressure(self.value, self.limit)

    def result(self, conditions: str) -> GateResult:
        """For the manifest."""
        return GateResult(
            name=f"{self.where}: {self.metric.words}" if self.where else self.metric.words,
            value=self.value,
            limit=self.limit,
            conditions=conditions,
            least=self.metric.scale != "error",
        )


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """`--limit psnr=35`, as often as it is given. Raises UnknownName, UsageError."""
    limits = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in METRICS:
            raise UnknownName.among("--limit", name, METRICS)
        if not equals or not re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
            raise UsageError(f"--limit {text}: needs a number, for example --limit {name}=0.9")
        limits[name] = float(value)
    return limits


def judge(
    cases: Sequence[Case], got: Sequence[Arrays], card: Card | None, limits: Limits
) -> list[Finding]:
    """All findings on `got`, what was answered to each of `cases`."""
    names = (card.output_names() if card else ()) or tuple(cases[0].expected)
    numbers = [
        (metric, where, value)
        for name in names
        for metric, where, value in _by_channels(
            name, [one.expected[name] for one in cases], [one[name] for one in got], card
        )
    ]
    answers = [(metric, "", value) for metric, value in _by_task(cases, got, card)]
    boxes = any(metric == "boxes" for metric, *_ in answers)
    return [
        Finding(METRICS[metric], where, value, limits.of(METRICS[metric], beside_boxes=boxes))
        for metric, where, value in (*numbers, *answers)
    ]


def worst(findings: Sequence[Finding]) -> float:
    """The largest pressure: above 1 the gate fails."""
    return max(one.pressure for one in findings)


def noise(findings: Sequence[Finding]) -> float:
    """The largest noise over what its SQNR limit allows; of outputs without one, the pressure.

    Unlike other checks it is a sum over what makes it: of layers, say. A box that jumps to the next
    cell of a map tells little of the layer that was the last straw.
    """
    shares = [one.pressure for one in findings if one.metric.name == "sqnr"]
    return max(shares) if shares else worst(findings)


def _by_channels(
    name: str, expected: Sequence[Array], got: Sequence[Array], card: Card | None
) -> list[tuple[str, str, float]]:
    pairs = list(zip(expected, got, strict=True))
    if expected[0].dtype.kind != "f":
        off = np.mean([np.mean(np.abs(a.astype(np.float64) - b) > 1) for a, b in pairs])
        return [("off", name, float(off))]
    axis = _channel_axis(expected[0], card)
    sums = reduce(add, (ChannelSums.of(a, b, axis) for a, b in pairs))
    groups = metrics.channel_groups(sums)
    found = []
    for channels in groups:
        where = name if len(groups) == 1 else f"{name} channels {_span(channels)}"
        found += [
            ("cosine", where, sums.cosine(channels)),
            ("sqnr", where, sums.sqnr_db(channels)),
            ("error", where, sums.error(channels)),
        ]
    return found


def _channel_axis(output: Array, card: Card | None) -> int:
    """Axis 1; but the last of pictures in NHWC, and the shorter one of (batch, a, b)."""
    if output.ndim < 2:
        return 0
    if card and isinstance(card.task, ImageTask) and card.task.layout == "NHWC":
        return output.ndim - 1
    return 2 if output.ndim == 3 and output.shape[2] < output.shape[1] else 1


def _span(channels: Array) -> str:
    """ "0-3,8": runs of channels, at most three."""
    runs = np.split(channels, np.flatnonzero(np.diff(channels) > 1) + 1)
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ",".join(texts[:3]) + (",…" if len(texts) > 3 else "")


def _by_task(
    cases: Sequence[Case], got: Sequence[Arrays], card: Card | None
) -> list[tuple[str, float]]:
    if card is None:
        return []
    pairs = [(case.expected, answer) for case, answer in zip(cases, got, strict=True)]
    match card.task:
        case ImageTask():
            return _pictures(card.task, pairs)
        case ClassifyTask(output=name):
            same = [int(a[name].argmax()) == int(b[name].argmax()) for a, b in pairs]
            return [("top1", float(np.mean(same)))]
        case EmbedTask(output=name):
            rows = [ChannelSums.of(a[name], b[name], 0).cosine(np.array([0])) for a, b in pairs]
            return [("row", min(rows))]
        case DetectTask():
            return _detections(card, cases, got)
        case _:
            return []


_Pairs = Sequence[tuple[Arrays, Arrays]]


def _pictures(task: ImageTask, pairs: _Pairs) -> list[tuple[str, float]]:
    span = task.range[1] - task.range[0]
    pictures = [
        tuple(
            np.moveaxis(one[task.output][0], 0 if task.layout == "NCHW" else -1, 0) for one in pair
        )
        for pair in pairs
    ]
    return [
        (name, float(np.mean([measure(a, b, span) for a, b in pictures])))
        for name, measure in (("psnr", metrics.psnr_db), ("ssim", metrics.ssim))
    ]


def _detections(
    card: Card, cases: Sequence[Case], got: Sequence[Arrays]
) -> list[tuple[str, float]]:
    """Where FP32 finds nothing in any item, there is nothing to be judged."""
    decoder = codec(card)
    wanted, found = 0, []
    for case, answer in zip(cases, got, strict=True):
        rows, columns = (1, 2) if card.input.layout == "NHWC" else (2, 3)
        shape = case.feeds[card.input.name].shape
        size = shape[rows], shape[columns]
        expected = _decoded(decoder, case.expected, size)
        wanted += len(expected)
        found.append(metrics.found_again(expected, _decoded(decoder, answer, size), iou=IOU))
    if not wanted:
        return []
    return [
        ("boxes", sum(one.pairs for one in found) / wanted),
        ("overlap", min(one.overlap for one in found)),
        ("drift", max(one.drift for one in found)),
    ]


def _decoded(decoder: Codec, outputs: Arrays, size: tuple[int, int]) -> Any:
    """Detections in pixels of the input; none where the outputs are not finite."""
    geometry = Geometry(picture=size, input=size, scale_x=1, scale_y=1, left=0, top=0)
    try:
        answer = decoder.decode({name: one[0] for name, one in outputs.items()}, geometry)
    except ItemError:
        return []
    return answer.fields["detections"]
