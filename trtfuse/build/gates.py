"""The gate of a new engine: before it is kept it must answer as the graph does, on random items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from trtfuse.build.plan import Profile
from trtfuse.core.errors import BuildFailed, DeviceError
from trtfuse.core.flow import OpenRunner, Runner
from trtfuse.core.specs import BATCH, Array, Arrays, EngineManifest, GateResult
from trtfuse.graph import check, probe

# Of an output's largest value. Fused and blocked kernels round otherwise than plain ones: 2.4e-5 on
# CenterFace (60 convolutions, AVX-512, ONNX Runtime 1.32), so that deeper graphs have room below
# this, and half precision (5e-4 a step, more after a few) has not.
_FLOAT_LIMIT = 5e-4
# Share of a whole-numbered output's values that are off by more than 1. Rounding moves a pixel by
# 1; an argmax moves further, but only where two scores agree to six digits.
_WHOLE_LIMIT = 1e-3


@dataclass(frozen=True, slots=True)
class Passed:
    """What the gate measured, for the manifest."""

    gates: tuple[GateResult, ...]
    output_max: tuple[tuple[int, ...], ...]


def pass_gates(
    open_runner: OpenRunner, device: str, reference: check.Run, draft: EngineManifest
) -> Passed:
    """Run the engine in batches, `reference` item by item, at every corner of the profile.

    `open_runner` is what the pool will use. Raises BuildFailed with the numbers where the two
    disagree or either gives no answer, DeviceError where the engine cannot be opened.
    """
    results: list[GateResult] = []
    shapes: tuple[tuple[int, ...], ...] = ()
    with open_runner(device, np.empty(0, np.uint8)) as runner:
        for seed, corner in enumerate(corners(draft.request.profile)):
            tensors = [replace(t, shape=(BATCH, *corner[t.name][1:])) for t in draft.inputs]
            count = max(shape[0] for shape in corner.values())
            card = draft.card.input if draft.card else None
            items = probe.random_items(tensors, count=count, seed=seed, card=card)
            expected = _answers(reference, items, 1, who=f"{draft.source}: the graph itself")
            got = _answers(_running(runner), items, count, who=f"{draft.source}: the engine")
            results += judge(expected, got, conditions=_conditions(corner))
            shapes = tuple(got[tensor.name].shape for tensor in draft.outputs)
    if failed := [one for one in results if not one.value <= one.limit]:
        raise BuildFailed(refusal(draft, failed))
    return Passed(_worst(results), shapes)


def corners(profile: Profile) -> tuple[Mapping[str, tuple[int, ...]], ...]:
    """Input shapes to try: one item at the smallest size, then the profile's opt, then its max."""
    tried = (
        {name: (1, *shape.min[1:]) for name, shape in profile},
        {name: shape.opt for name, shape in profile},
        {name: shape.max for name, shape in profile},
    )
    return tuple(one for i, one in enumerate(tried) if one not in tried[:i])


def judge(expected: Arrays, got: Arrays, *, conditions: str) -> list[GateResult]:
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
                limit=_WHOLE_LIMIT if whole else _FLOAT_LIMIT,
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
    return (
        f"{draft.source}: the engine does not answer as the graph does; nothing was published:"
        f"{lines}\n{request.runtime} {request.runtime_version} has changed the graph's meaning on "
        f"this device. Install another release of it and build again."
    )


def _answers(run: check.Run, items: probe.Items, batch: int, *, who: str) -> Arrays:
    """Outputs for all items, run in batches of `batch`. Raises BuildFailed where there are none."""
    seen = check.observe(run, items, [batch])
    if seen.faults:
        raise BuildFailed(f"{who}: {'; '.join(seen.faults)}. Nothing was published.")
    return seen.outputs[batch]


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


def _share_off(expected: Array, got: Array) -> float:
    return float(np.mean(np.abs(expected.astype(np.float64) - got) > 1)) if expected.size else 0.0


def _conditions(corner: Mapping[str, tuple[int, ...]]) -> str:
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in corner.items())
    return f"random items, {shapes}, against ONNX Runtime without optimizations, item by item"


def _worst(results: list[GateResult]) -> tuple[GateResult, ...]:
    """The result with the largest value of each name, in the order of names."""
    worst: dict[str, GateResult] = {}
    for one in results:
        if one.name not in worst or one.value > worst[one.name].value:
            worst[one.name] = one
    return tuple(worst.values())
