"""Two results held against each other: only like with like. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trtfuse.bench.figures import Ratio, ratio
from trtfuse.bench.result import Result
from trtfuse.core.errors import UnknownName, UsageError

ABSENT = "not said"

Verdict = Literal["kept", "unclear", "slower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A condition that two results do not share."""

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One path at one batch size, in both results."""

    path: str
    batch: int
    ratio: Ratio
    """New over old, in items per second: above 1 is faster."""


def differences(old: Result, new: Result) -> tuple[Difference, ...]:
    """Conditions that differ, by name."""
    names = sorted({*old.conditions, *new.conditions})
    pairs = ((n, old.conditions.get(n, ABSENT), new.conditions.get(n, ABSENT)) for n in names)
    return tuple(Difference(name=n, old=a, new=b) for n, a, b in pairs if a != b)


def compare(old: Result, new: Result, *, allow: Sequence[str] = ()) -> tuple[Compared, ...]:
    """Every path and batch size that both have measured.

    Raises UsageError where conditions differ that are not in `allow`, or nothing is in both,
    UnknownName where `allow` names no condition.
    """
    known = {*old.conditions, *new.conditions}
    if unknown := [name for name in allow if name not in known]:
        raise UnknownName.among("--allow", unknown[0], known)
    if unlike := [one for one in differences(old, new) if one.name not in allow]:
        lines = "".join(f"\n  {one.name}: {one.old}, and now {one.new}" for one in unlike)
        flags = " ".join(f"--allow {one.name}" for one in unlike)
        raise UsageError(
            f"The results were not measured under the same conditions:{lines}\n"
            f"Measure again under one, or say that it may differ: {flags}"
        )
    before = {(cell.path, cell.batch): cell for cell in old.cells}
    found = tuple(
        Compared(
            path=cell.path,
            batch=cell.batch,
            ratio=ratio(cell.items_per_s, before[cell.path, cell.batch].items_per_s),
        )
        for cell in new.cells
        if (cell.path, cell.batch) in before
    )
    if not found:
        raise UsageError("The results have no path at the same batch size: nothing to compare.")
    return found


def verdict(one: Compared, *, fail_below: float) -> Verdict:
    """Whether a path has kept its speed; "unclear" where the spread of the repeats is too wide."""
    if one.ratio.value >= fail_below:
        return "kept"
    return "slower" if one.ratio.high < fail_below else "unclear"
