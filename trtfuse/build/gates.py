"""The gate of a new engine: before it is kept it must answer as the graph does, on random items."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from trtfuse.build import quality
from trtfuse.build.calibration import load_cases
from trtfuse.build.plan import Profile
from trtfuse.build.quality import Limits
from trtfuse.build.recast import Recast
from trtfuse.core.errors import BuildFailed, DeviceError, GateFailed
from trtfuse.core.flow import OpenRunner, Runner
from trtfuse.core.inputs import filled, fixed_batch
from trtfuse.core.specs import BATCH, Array, Arrays, EngineManifest, GateResult, Precision
from trtfuse.graph import check, probe

# Of an output's largest value. Fused and blocked kernels round otherwise than plain ones: 2.4e-5 on
# CenterFace (60 convolutions, AVX-512, ONNX Runtime 1.32), so that deeper graphs have room below
# this, and half precision (5e-4 a step, more after a few) has not.
_FLOAT_LIMIT = 5e-4
# An engine in another precision is held against itself, one item at a time: kernels are chosen by
# batch size and round otherwise, by 5e-4 or 4e-3 of a value in halves, or by a step of INT8. What
# the precision costs is the quality gate's question.
_LIMITS = {Precision.FP16: 2e-2, Precision.BF16: 1e-1, Precision.INT8: 1e-1}
# Share of a whole-numbered output's values that are off by more than 1. Rounding moves a pixel by
# 1; an argmax moves further, but only where two scores agree to six digits.
_WHOLE_LIMIT = 1e-3

# The first is a warm-up, and the median does not see it.
_TIMED_RUNS = 5


@dataclass(frozen=True, slots=True)
class Passed:
    """What the gate measured, for the manifest."""

    gates: tuple[GateResult, ...]
    output_max: tuple[tuple[int, ...], ...]
    batch_ms: float
    """Median time of a batch of the profile's opt shape."""
    lane_bytes: int = 0
    """What the runner says of the device memory of one lane; 0: it does not."""


def pass_gates(
    open_runner: OpenRunner, device: str, reference: check.Run, draft: EngineManifest
) -> Passed:
    """Run the engine in batches, `reference` item by item, at every corner of the profile.

    In FP32 `reference` is the graph; an engine in another precision is its own.

    `open_runner` is what the pool will use. Raises BuildFailed with the numbers where the two
    disagree or either gives no answer, DeviceError where the engine cannot be opened.
    """
    results: list[GateResult] = []
    shapes: tuple[tuple[int, ...], ...] = ()
    with open_runner(device, np.empty(0, np.uint8)) as runner:
        precise = draft.request.precision is Precision.FP32
        alone, who = _running(runner), "the engine"
        if precise:
            alone, who = _in_batches(reference, draft), "the graph"
        for seed, corner in enumerate(corners(draft.request.profile)):
            tensors = [replace(t, shape=(BATCH, *corner[t.name][1:])) for t in draft.inputs]
            count = max(shape[0] for shape in corner.values())
            card = draft.card.input if draft.card else None
            items = probe.random_items(tensors, count=count, seed=seed, card=card)
            expected = _answers(alone, items, 1, who=f"{draft.source}: {who} itself")
            got = _answers(_running(runner), items, count, who=f"{draft.source}: the engine")
            results += judge(
                expected,
                got,
                conditions=_conditions(corner, who),
                limit=_LIMITS.get(draft.request.precision, _FLOAT_LIMIT),
            )
            shapes = tuple(got[tensor.name].shape for tensor in draft.outputs)
        batch_ms = _batch_ms(runner, draft)
        lane_bytes = getattr(runner, "lane_bytes", 0)  # of GPUs alone
    if failed := [one for one in results if not one.value <= one.limit]:
        raise BuildFailed(refusal(draft, failed))
    return Passed(_worst(results), shapes, batch_ms, lane_bytes)


def unseen(reference: check.Run, draft: EngineManifest) -> Passed:
    """For an engine whose device is not here: what `reference`, the graph, tells of its shapes.

    Raises BuildFailed where the graph gives no answer.
    """
    largest = corners(draft.request.profile)[-1]
    tensors = [replace(t, shape=(BATCH, *largest[t.name][1:])) for t in draft.inputs]
    card = draft.card.input if draft.card else None
    item = probe.random_items(tensors, count=1, seed=0, card=card)
    run = _in_batches(reference, draft)
    answer = _answers(run, item, 1, who=f"{draft.source}: the graph itself")
    count = max(shape[0] for shape in largest.values())
    shapes = tuple((count, *answer[tensor.name].shape[1:]) for tensor in draft.outputs)
    return Passed((), shapes, batch_ms=0.0)


def pass_quality(
    open_runner: OpenRunner, device: str, draft: EngineManifest, recast: Recast
) -> tuple[GateResult, ...]:
    """Run the engine on the held-out cases, item by item, and judge it against FP32.

    Raises GateFailed with every number that misses its limit, and the ways out. Without cases
    nothing is judged.
    """
    if recast.cases is None:
        return ()
    cases = load_cases(recast.cases)
    with open_runner(device, np.empty(0, np.uint8)) as runner:
        run = _running(runner)
        got = [run(case.feeds) for case in cases]
    limits = Limits(draft.request.precision, recast.limits)
    conditions = f"{len(cases)} held-out inputs, against FP32 without optimizations"
    results = [one.result(conditions) for one in quality.judge(cases, got, draft.card, limits)]
    if failed := [one for one in results if not one.passed]:
        raise GateFailed(quality_refusal(draft, failed))
    return tuple(results)


def quality_refusal(draft: EngineManifest, failed: list[GateResult]) -> str:
    """Why the precision is not published, and what can be done."""
    precision = draft.request.precision.value
    lines = "".join(
        f"\n  {one.name}: {one.value:.4g}, needs {'at least' if one.least else 'at most'} "
        f"{one.limit:g}"
        for one in failed
    )
    auto = "--keep auto, " if draft.request.precision is Precision.INT8 else ""
    return (
        f"{draft.source}: {precision} does not answer as FP32 does on {failed[0].conditions}; "
        f"nothing was published:{lines}\nWays out: {auto}--keep LAYER,..., another --calib-method, "
        f"more like inputs, --precision best, another --limit NAME=VALUE, or --no-gate."
    )


def corners(profile: Profile) -> tuple[Mapping[str, tuple[int, ...]], ...]:
    """Input shapes to try: one item at the smallest size, then the profile's opt, then its max."""
    tried = (
        {name: (1, *shape.min[1:]) for name, shape in profile},
        {name: shape.opt for name, shape in profile},
        {name: shape.max for name, shape in profile},
    )
    return tuple(one for i, one in enumerate(tried) if one not in tried[:i])


def judge(
    expected: Arrays, got: Arrays, *, conditions: str, limit: float = _FLOAT_LIMIT
) -> list[GateResult]:
    """One result an output. Raises BuildFailed where they cannot be compared."""
    proof = check.compare(expected, got)
    if proof.faults:
        raise BuildFailed(f"{'; '.join(proof.faults)}, {conditions}. Nothing was published.")
    relative = {one.output: one.relative for one in proof.differences}
    results = []
    for name, array in expected.items():
        whole = array.dtype.kind != "f"
        results.append(
            GateResult(
                name=f"{name}: {'share off by more than 1' if whole else 'difference'}",
                value=_share_off(array, got[name]) if whole else relative[name],
                limit=_WHOLE_LIMIT if whole else limit,
                conditions=conditions,
            )
        )
    return results


def refusal(draft: EngineManifest, failed: list[GateResult]) -> str:
    """Why the engine is not published, and what can be done."""
    lines = "".join(
        f"\n  {one.name} {one.value:.3g}, limit {one.limit:g} ({one.conditions})" for one in failed
    )
    request = draft.request
    why = (
        f"{request.runtime} {request.runtime_version} has changed the graph's meaning on this "
        f"device. Install another release of it and build again."
    )
    if (batch := fixed_batch(draft.inputs)) and batch > 1:
        why = (
            f"The graph's batch is fixed at {batch}, and its items may change each other's "
            f"answers. Export it with a dynamic batch, or with one of 1."
        )
    return (
        f"{draft.source}: the engine does not answer as the graph does; nothing was published:"
        f"{lines}\n{why}"
    )


def _answers(run: check.Run, items: probe.Items, batch: int, *, who: str) -> Arrays:
    """Outputs for all items, run in batches of `batch`. Raises BuildFailed where there are none."""
    seen = check.observe(run, items, [batch])
    if seen.faults:
        raise BuildFailed(f"{who}: {'; '.join(seen.faults)}. Nothing was published.")
    return seen.outputs[batch]


def _in_batches(run: check.Run, draft: EngineManifest) -> check.Run:
    """`run` of any number of items, where a fixed batch is filled up with copies."""

    def answer(inputs: Arrays) -> Arrays:
        count = len(next(iter(inputs.values())))
        outputs = run(filled(inputs, fixed_batch(draft.inputs)))
        return {name: array[:count] for name, array in outputs.items()}

    return answer


def _running(runner: Runner) -> check.Run:
    def run(inputs: Arrays) -> Arrays:
        outputs: dict[str, Array] = {}
        dtypes = {tensor.name: tensor.dtype for tensor in runner.outputs}

        def claim(name: str, shape: tuple[int, ...]) -> Array:
            return outputs.setdefault(name, np.empty(shape, dtypes[name]))

        try:
            runner.launch(inputs, claim).result()
        except DeviceError as error:
            raise check.NotRunnable(str(error)) from error
        return outputs

    return run


def _batch_ms(runner: Runner, draft: EngineManifest) -> float:
    """Median of a few runs at the opt shape; `launch` to the last output in host memory."""
    shapes = dict(draft.request.profile)
    tensors = [replace(t, shape=(BATCH, *shapes[t.name].opt[1:])) for t in draft.inputs]
    count = max(shape.opt[0] for shape in shapes.values())
    card = draft.card.input if draft.card else None
    feeds = probe.random_items(tensors, count=count, seed=0, card=card).rows(0, count)
    run, times = _running(runner), []
    for _ in range(_TIMED_RUNS):
        started = time.perf_counter()
        run(feeds)
        times.append(1e3 * (time.perf_counter() - started))
    return median(times)


def _share_off(expected: Array, got: Array) -> float:
    return float(np.mean(np.abs(expected.astype(np.float64) - got) > 1)) if expected.size else 0.0


def _conditions(corner: Mapping[str, tuple[int, ...]], who: str) -> str:
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in corner.items())
    against = "ONNX Runtime without optimizations" if who == "the graph" else "itself"
    return f"random items, {shapes}, against {against}, item by item"


def _worst(results: list[GateResult]) -> tuple[GateResult, ...]:
    """The result with the largest value of each name, in the order of names."""
    worst: dict[str, GateResult] = {}
    for one in results:
        if one.name not in worst or one.value > worst[one.name].value:
            worst[one.name] = one
    return tuple(worst.values())
