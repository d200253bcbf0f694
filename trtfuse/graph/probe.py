"""What a proof feeds: sizes for the axes that a graph leaves open, and random items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from trtfuse.core.card import InputCard
from trtfuse.core.errors import UsageError
from trtfuse.core.specs import BATCH, Array, Arrays, TensorSpec
from trtfuse.graph.card import AXES

# Multiples of 32, as the strides of detectors need them; unequal, so that height and width cannot
# pass for each other.
_OPEN_SIZES = (64, 96)

# Both signs, so that a ReLU does not hide half of a graph.
_RANGE_WITHOUT_CARD = (-1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Items:
    """Inputs of a proof. `batched` arrays have one row per item, `shared` ones go with each run."""

    count: int
    batched: Arrays
    shared: Arrays

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """The inputs of one run on the items from `start` to before `stop`."""
        return {
            **{name: array[start:stop] for name, array in self.batched.items()},
            **self.shared,
        }


def random_items(
    tensors: Sequence[TensorSpec], *, count: int, seed: int, card: InputCard | None = None
) -> Items:
    """`count` distinct items for `tensors`, whose sizes are numbers but for a first axis `BATCH`.

    Floats are uniform in the card's value range; uint8 covers its own, other integers 0 to 9, so
    that they are valid as indices. Inputs without a batch axis are shared by all runs.
    """
    rng = np.random.default_rng(seed)
    batched: dict[str, Array] = {}
    shared: dict[str, Array] = {}
    for tensor in tensors:
        has_batch = tensor.shape[:1] == (BATCH,)
        shape = tuple(int(n) for n in ((count, *tensor.shape[1:]) if has_batch else tensor.shape))
        (batched if has_batch else shared)[tensor.name] = _random(rng, tensor, shape, card)
    return Items(count, batched, shared)


def sized(
    tensors: Sequence[TensorSpec], *, card: InputCard | None, shapes: Sequence[tuple[int, ...]] = ()
) -> tuple[TensorSpec, ...]:
    """`tensors` with a number for every axis but `BATCH`: from `shapes`, the card, or our choice.

    `shapes` has one an input, without the batch. Raises `UsageError` if they do not fit.
    """
    if shapes:
        return _filled(tensors, shapes)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if card and tensor.name == card.name:
            for axis, size in zip(AXES[card.layout][1:], _card_size(card), strict=True):
                sizes[str(tensor.shape[axis])] = size
    fresh = cycle(_OPEN_SIZES)
    for name in (n for tensor in tensors for n in tensor.shape if isinstance(n, str)):
        if name not in sizes and name != BATCH:
            sizes[name] = next(fresh)
    return tuple(
        _shaped(one, (sizes.get(n, n) if isinstance(n, str) else n for n in one.shape))
        for one in tensors
    )


def taken(tensors: Sequence[TensorSpec], sizes: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """`sizes`, but with the numbers that `tensors` insist on. The batch axis stays `BATCH`."""
    return tuple(
        _shaped(
            size,
            (
                own if isinstance(own, int) and n != BATCH else n
                for own, n in zip(tensor.shape, size.shape, strict=True)
            ),
        )
        for tensor, size in zip(tensors, sizes, strict=True)
    )


def relaxed(planned: Sequence[TensorSpec], sizes: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """`planned`, but with a name for every number that is another one in `sizes`."""
    return tuple(
        _shaped(
            plan,
            (
                p if isinstance(p, str) or p == n else f"{plan.name}_{axis}"
                for axis, (p, n) in enumerate(zip(plan.shape, size.shape, strict=True))
            ),
        )
        for plan, size in zip(planned, sizes, strict=True)
    )


def _shaped(tensor: TensorSpec, shape: Iterable[int | str]) -> TensorSpec:
    return replace(tensor, shape=tuple(shape))


def _filled(
    tensors: Sequence[TensorSpec], shapes: Sequence[tuple[int, ...]]
) -> tuple[TensorSpec, ...]:
    if len(shapes) != len(tensors):
        raise UsageError(
            f"--shape: got {len(shapes)}, needs one for each input: "
            f"{', '.join(f'{one.name} {list(one.shape)}' for one in tensors)}."
        )
    filled = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        full: tuple[int | str, ...] = (BATCH, *shape) if tensor.shape[:1] == (BATCH,) else shape
        if len(full) != len(tensor.shape) or any(
            isinstance(own, int) and own != n for own, n in zip(tensor.shape, full, strict=True)
        ):
            raise UsageError(
                f"--shape {','.join(map(str, shape))}: input {tensor.name!r} is "
                f"{list(tensor.shape)}; give its sizes without the batch."
            )
        filled.append(_shaped(tensor, full))
    return tuple(filled)


def _card_size(card: InputCard) -> tuple[int, int]:
    if card.size != "dynamic":
        return card.size
    height, width = (-(-size // card.multiple) * card.multiple for size in _OPEN_SIZES)
    return height, max(width, height + card.multiple)


def _random(
    rng: np.random.Generator, tensor: TensorSpec, shape: tuple[int, ...], card: InputCard | None
) -> Array:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        return rng.uniform(*_value_range(card), shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, {"uint8": 256, "bool": 2}.get(dtype.name, 10), shape).astype(dtype)
    raise UsageError(f"input {tensor.name!r}: is {dtype}, needs to be a float, integer or bool.")


def _value_range(card: InputCard | None) -> tuple[float, float]:
    """Lowest and highest value that a picture can have, as the card normalises it."""
    if card is None:
        return _RANGE_WITHOUT_CARD
    mean, std = card.mean or (0.0,) * card.channels, card.std or (1.0,) * card.channels
    low, high = card.range
    return (
        min((low - m) / s for m, s in zip(mean, std, strict=True)),
        max((high - m) / s for m, s in zip(mean, std, strict=True)),
    )
