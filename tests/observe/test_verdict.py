"""From where the time went to what held the run up, and what would help."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from trtfuse.core.specs import Precision
from trtfuse.observe.verdict import Load, judge

EASY = Load(
    seconds=10.0,
    stages={"decode": 4, "prepare": 1, "compute": 3, "answer": 1, "store": 1, "commit": 0.5},
    busy_s=(3.0,),
    feeders=2,
    writers=2,
    cores=2,
    batch=4,
    on_gpu=True,
    precision=Precision.FP16,
)


_FIELDS = {field.name for field in fields(Load)}


def load(**changes: Any) -> Load:
    """EASY with other stages, or other fields."""
    others: dict[str, Any] = {name: changes.pop(name) for name in _FIELDS & set(changes)}
    return replace(EASY, stages={**EASY.stages, **changes}, **others)


@pytest.mark.parametrize(
    ("load", "bound", "share", "advice"),
    [
        (load(decode=17), "decode", 0.9, "another GPU will not help; more cores would"),
        (load(decode=17, on_gpu=False), "decode", 0.9, "a faster device will not help"),
        (load(decode=17, cores=8), "decode", 0.9, "try --feeders 8, it is 2"),
        (load(decode=2, prepare=15), "decode", 0.85, "--fuse pre,resize"),
        (load(read=9.5), "decode", 0.95, "clips decoded, in order"),
        (load(busy_s=(9.0,)), "compute", 0.9, "another GPU would help"),
        (load(busy_s=(9.0,), on_gpu=False), "compute", 0.9, "a GPU, or more cores, would"),
        (load(busy_s=(9.0, 8.0, 10.0)), "compute", 0.9, "another GPU would help"),
        # Two lanes: the copies of one lie under the other's computing, and count by proportion.
        (load(busy_s=(9.0,), compute=6, copy_in=8, copy_out=4), "copy", 0.6, "--fuse pre,post"),
        (load(busy_s=(2.0,), handover=7), "dispatch", 0.7, "larger --batch, it is 4"),
        (load(commit=7.1), "encode", 0.71, "another GPU will not help; try --codec"),
        (load(store=18), "encode", 0.95, "more cores would, or a cheaper --format"),
        (load(store=18, cores=16), "encode", 0.95, "try --writers 16, it is 2"),
    ],
)
def test_what_is_busy_is_named_with_its_share_and_what_helps(
    load: Load, bound: str, share: float, advice: str
) -> None:
    verdict = judge(load)
    assert verdict.bound == bound
    assert verdict.share == pytest.approx(share)
    assert verdict.text.startswith(f"{bound}-bound at {share:.0%}: ")
    assert advice in verdict.text
    assert set(verdict.shares) == {"decode", "copy", "compute", "encode", "dispatch"}


def test_waiting_is_no_work() -> None:
    waits = dict.fromkeys(("room", "slot", "queue", "order"), 1000.0)
    assert judge(load(**waits)) == judge(EASY)


def test_where_nothing_is_busy_nothing_is_blamed() -> None:
    verdict = judge(EASY)
    assert (verdict.bound, verdict.share) == (None, 0.0)
    assert "nothing is busy half of the time (compute most)" in verdict.text
    # A run of no items at all.
    assert judge(replace(EASY, seconds=0.0)).bound is None
    assert judge(replace(EASY, stages={}, busy_s=(0.0,))).bound is None


@pytest.mark.parametrize(
    ("precision", "on_gpu", "advice"),
    [
        (Precision.FP32, True, "another GPU would help; so would an engine of --precision fp16 or"),
        (Precision.BF16, True, "another GPU would help; so would an engine of --precision int8."),
        (Precision.INT8, True, "another GPU would help."),
        (Precision.FP32, False, "cores, would help; so may an engine of --precision int8."),
        (Precision.INT8, False, "a GPU, or more cores, would help."),
    ],
)
def test_a_smaller_precision_is_advised_where_there_is_one(
    precision: Precision, on_gpu: bool, advice: str
) -> None:
    assert advice in judge(load(busy_s=(9.0,), precision=precision, on_gpu=on_gpu)).text
