"""Which few layers to keep out of INT8: ranked by the harm each does alone, fewest first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

Pressure = Callable[[Collection[str]], float]
"""How near the worst check comes to its limit with these layers in INT8: above 1 it fails."""

# The engine's kernels round otherwise than the graph that is searched.
_ENOUGH = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitive:
    """One layer's part in the search."""

    layer: str
    alone: float
    """The noise that this layer makes by itself, over what is allowed for all."""
    left: float | None = None
    """Pressure with it and all before it kept out; None: not tried."""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The result of a search, worst layer first."""

    layers: tuple[Sensitive, ...]
    passed: bool
    """Whether keeping the kept layers brought every check below its limit."""
    ended: str
    """Why the search ended."""

    @property
    def keep(self) -> tuple[str, ...]:
        """The layers to keep out of INT8."""
        return tuple(one.layer for one in self.layers if one.kept)


def search(
    layers: Sequence[str],
    alone: Callable[[str], float],
    pressure: Pressure,
    *,
    expired: Callable[[], bool],
    progress: Callable[[int, int], None],
) -> Sensitivity:
    """Find the fewest of the worst layers, one at least, without which `pressure` is below 1.

    `alone`, the noise of one layer, ranks them, and may be judged on less than `pressure`, which
    decides. The number to keep is halved in on, taking more layers out never to do harm. `expired`
    tells that the time is up: what was not ranked by then counts as harmless, and the smallest
    number that passed so far is taken.
    """
    harm: dict[str, float] = {}
    for done, name in enumerate(layers, 1):
        if expired():
            break
        harm[name] = alone(name)
        progress(done, len(layers))
    ranked = sorted(harm, key=lambda name: harm[name], reverse=True)
    tried: dict[int, float] = {}
    low, high = 0, len(ranked)  # `low` fails, and 0 did; `high` is the least that may pass
    while high - low > 1 and not expired():
        middle = _next(low, high, tried)
        tried[middle] = pressure([name for name in layers if name not in ranked[:middle]])
        low, high = (low, middle) if tried[middle] <= _ENOUGH else (middle, high)
    if high not in tried:
        tried[high] = pressure([name for name in layers if name not in ranked[:high]])
    return Sensitivity(
        layers=tuple(
            Sensitive(layer=name, alone=harm[name], left=tried.get(n), kept=n <= high)
            for n, name in enumerate(ranked, 1)
        ),
        passed=tried[high] <= 1,
        ended="out of time" if expired() else "found",
    )


def _next(low: int, high: int, tried: Collection[int]) -> int:
    """Few first: 1, 2, 4, … until one passes, then the middle."""
    if high not in tried:
        return min(max(2 * low, 1), high - 1)
    return (low + high) // 2
