"""Which inputs calibrate and which ones judge: decided by a recipe that can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trtfuse.core.errors import CalibrationError, UsageError
from trtfuse.core.specs import Array, Arrays

Order = Literal["shuffled", "listed"]

# Enough for ranges to settle on pictures: TensorRT's guide says about 500 for ImageNet.
COUNT = 512
HELD_OUT = 0.2
# Below this a single picture moves the ranges; with `few` it is the caller's own decision.
ENOUGH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One input, not yet loaded. `load` gives the model's inputs with a batch axis of 1."""

    key: str
    sha256: str
    """Of what it is loaded from, which may be hashed without loading it."""
    load: Callable[[], Arrays]
    pixels: Callable[[], Array] | None = None
    """The picture as it is stored, height x width x channels, before the card gives it another
    size; None where there is none. Raises ItemError as `load` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An input by name and content."""

    key: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How inputs were chosen, and the choice itself."""

    count: int
    """At most this many."""
    seed: int
    order: Order
    held_out: float
    """The share that is not calibrated with; the gate judges by it."""
    chosen: tuple[Chosen, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """The useful inputs of a recipe."""

    calibration: tuple[str, ...]
    """Keys."""
    held_out: tuple[str, ...]


def choose(
    examples: Sequence[Example],
    *,
    count: int = COUNT,
    seed: int = 0,
    order: Order = "shuffled",
    held_out: float = HELD_OUT,
) -> Recipe:
    """The recipe's choice among `examples`. Raises UsageError for numbers that make no sense."""
    if count < 1 or not 0 < held_out < 1:
        raise UsageError(
            f"calibration: {count} inputs with {held_out:g} of them held out; needs at least one "
            f"input and a share above 0 and below 1."
        )
    places = np.arange(len(examples))
    if order == "shuffled":
        places = np.random.default_rng(seed).permutation(len(examples))
    chosen = [examples[place] for place in places[:count]]
    return Recipe(
        count=count,
        seed=seed,
        order=order,
        held_out=held_out,
        chosen=tuple(Chosen(key=one.key, sha256=one.sha256) for one in chosen),
    )


def split(recipe: Recipe, left_out: Collection[str]) -> Split:
    """What calibrates and what judges, without the keys in `left_out`. Both hold at least one."""
    keys = [one.key for one in recipe.chosen if one.key not in left_out]
    judges = min(max(round(len(keys) * recipe.held_out), 1), len(keys) - 1)
    return Split(tuple(keys[: len(keys) - judges]), tuple(keys[len(keys) - judges :]))


def require_enough(recipe: Recipe, left_out: Collection[str], *, few: bool) -> None:
    """Raise CalibrationError if too few useful inputs are left: below 32, or below 2 with `few`."""
    useful = len(recipe.chosen) - len(left_out)
    if useful >= (2 if few else ENOUGH):
        return
    gone = f" ({len(left_out)} more were left out)" if left_out else ""
    way_out = "" if few or useful < 2 else " Or accept ranges that hang on a few inputs: --few"
    raise CalibrationError(
        f"calibration: {useful} useful inputs{gone}, needs at least {2 if few else ENOUGH}. "
        f"Add inputs as the model will see them.{way_out}"
    )


def by_key(examples: Sequence[Example], keys: Collection[str]) -> tuple[Example, ...]:
    """The examples with these keys, in the order of `keys`."""
    found = {one.key: one for one in examples}
    return tuple(found[key] for key in keys)
