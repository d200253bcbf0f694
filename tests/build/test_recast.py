from __future__ import annotations

from dataclasses import replace

from tests.build import samples
from trtfuse.build.recast import Candidate
from trtfuse.core.specs import KeptLayer, Precision

FIXED = samples.model("batch", 3, 8, 8)


def candidate(layers: int, kept: int) -> Candidate:
    rows = tuple(
        KeptLayer(layer=f"conv{n}", alone=1 / (n + 1), left=None, kept=n < kept)
        for n in range(layers)
    )
    one = samples.build(FIXED)
    keep = tuple(sorted(row.layer for row in rows if row.kept))
    request = replace(one.request, precision=Precision.INT8, keep=keep)
    return Candidate(build=replace(one, request=request), sensitivity=rows)


def test_more_layers_are_kept_by_their_rank_until_all_are() -> None:
    step: Candidate | None = candidate(layers=9, kept=1)
    counts = []
    while step:
        keep = step.build.request.keep
        assert set(keep) == {f"conv{n}" for n in range(len(keep))}
        assert [row.kept for row in step.sensitivity].count(True) == len(keep)
        counts.append(len(keep))
        step = step.keeping_more()
    assert counts == [1, 2, 3, 4, 6, 9]


def test_without_a_ranking_there_is_nothing_more_to_keep() -> None:
    assert candidate(layers=0, kept=0).keeping_more() is None


def test_a_candidate_is_named_by_its_precision_and_what_it_lacks() -> None:
    assert candidate(layers=3, kept=0).name == "int8"
    assert candidate(layers=3, kept=2).name == "int8 without 2 layers"
