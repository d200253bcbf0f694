"""What a proof feeds: sizes for the axes that a graph leaves open, and random items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import prod

import numpy as np

from trtfuse.core.card import InputCard
from trtfuse.core.errors import UsageError
from trtfuse.core.options import Sizes
from trtfuse.core.specs import BATCH, Array, Arrays, TensorSpec
from trtfuse.graph.card import AXES

# Multiples of 32, as the strides of detectors need them; unequal, so that height and width cannot
# pass for each other.
_OPEN_SIZES = (64, 96)

# A second choice: what answers at two sizes does not hold one of them as a number.
_OTHER_SIZES = (96, 160)

# Of one run's inputs. The largest picture that a person would export for, 8K, is 100 MB an item.
_MOST_BYTES = 2 << 30

# Both signs, so that a ReLU does not hide half of a graph.
_RANGE_WITHOUT_CARD = (-1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Items:
    """Inputs of a proof. `batched` arrays have one row per item, `shared` ones go with each run."""

    count: int
    batched: Arrays
    shared: Arrays
    whole: bool = False
    """A row is all of an input, its batch included: items cannot be run together."""

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """The inputs of one run on the items from `start` to before `stop`."""
        rows = slice(start, stop)
        taken = {
            # An input without axes would come out as a bare number.
            name: np.asarray(array[start]) if self.whole else array[rows]
            for name, array in self.batched.items()
        }
        return {**taken, **self.shared}


def random_items(
    tensors: Sequence[TensorSpec], *, count: int, seed: int, card: InputCard | None = None
) -> Items:
    """`count` distinct items for `tensors`, whose sizes are numbers but for a first axis `BATCH`.

    Floats are uniform in the card's value range; uint8 covers its own, other integers 0 to 9, so
    that they are valid as indices. Inputs without a batch axis are shared by all runs. Raises
    `UsageError` for inputs that would not fit into memory.
    """
    rng = np.random.default_rng(seed)
    batched: dict[str, Array] = {}
    shared: dict[str, Array] = {}
    for tensor in tensors:
        has_batch = tensor.shape[:1] == (BATCH,)
        shape = tuple(int(n) for n in ((count, *tensor.shape[1:]) if has_batch else tensor.shape))
        require_room(tensor, shape)
        (batched if has_batch else shared)[tensor.name] = _random(rng, tensor, shape, card)
    return Items(count, batched, shared)


def whole_items(
    tensors: Sequence[TensorSpec], *, count: int, seed: int, card: InputCard | None = None
) -> Items:
    """`count` distinct sets of all of `tensors`, each as it is: for a graph of a fixed batch."""
    rows = tuple(replace(one, shape=(BATCH, *one.shape)) for one in tensors)
    return replace(random_items(rows, count=count, seed=seed, card=card), whole=True)


def sized(
    tensors: Sequence[TensorSpec],
    *,
    card: InputCard | None,
    shapes: Sequence[Sizes] = (),
    other: bool = False,
) -> tuple[TensorSpec, ...]:
    """`tensors` with a number for every axis but `BATCH`: from `shapes`, the card, or our choice.

    `shapes` has one an input, without the batch. `other` makes another choice where it is ours.
    Raises `UsageError` if they do not fit.
    """
    if shapes:
        tensors = _filled(tensors, shapes)
    sizes: dict[str, int] = {}
    fresh = cycle(_OTHER_SIZES if other else _OPEN_SIZES)
    for tensor in tensors:
        if card and tensor.name == card.name:
            for axis, size in zip(AXES[card.layout][1:], _card_size(card, other), strict=True):
                sizes[str(tensor.shape[axis])] = size
    for name in (n for tensor in tensors for n in tensor.shape if isinstance(n, str)):
        if name not in sizes and name != BATCH:
            sizes[name] = next(fresh)
    return tuple(
        _shaped(one, (sizes.get(n, n) if isinstance(n, str) else n for n in one.shape))
        for one in tensors
    )


def pictures(card: InputCard) -> tuple[tuple[int, int], ...]:
    """(height, width) of pictures that a graph brings to the card's size, the smallest first.

    Each side grows, shrinks and stays, together with the other and alone.
    """
    height, width = _card_size(card, other=False)
    if card.size == "dynamic":
        other = _card_size(card, other=True)
        return (height - 1, width - card.multiple + 1), (other[0], other[1] - 1)
    return (
        (height // 3 + 1, width // 2 + 1),
        (height + height // 2 + 1, 2 * width + 1),
        (2 * height, width // 2 + 1),
        (height, 2 * width),
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


def _filled(tensors: Sequence[TensorSpec], shapes: Sequence[Sizes]) -> tuple[TensorSpec, ...]:
    """`tensors` with the sizes that `shapes` states as numbers."""
    if len(shapes) != len(tensors):
        raise UsageError(
            f"--shape: got {len(shapes)}, needs one for each input: "
            f"{', '.join(f'{one.name} {list(one.shape)}' for one in tensors)}."
        )
    filled = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        full: Sizes = (BATCH, *shape) if tensor.shape[:1] == (BATCH,) else shape
        if len(full) != len(tensor.shape) or any(
            isinstance(own, int) and own != n for own, n in zip(tensor.shape, full, strict=True)
        ):
            raise UsageError(
                f"--shape {','.join(map(str, shape))}: input {tensor.name!r} is "
                f"{list(tensor.shape)}; give its sizes without the batch."
            )
        sizes = zip(tensor.shape, full, strict=True)
        filled.append(_shaped(tensor, (own if isinstance(n, str) else n for own, n in sizes)))
    return tuple(filled)


def _card_size(card: InputCard, other: bool) -> tuple[int, int]:
    if card.size != "dynamic":
        return card.size
    choice = _OTHER_SIZES if other else _OPEN_SIZES
    height, width = (-(-size // card.multiple) * card.multiple for size in choice)
    return height, max(width, height + card.multiple)


def require_room(tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raise `UsageError` if `tensor`, fed in `shape`, would not fit into memory."""
    if (size := prod(shape) * np.dtype(tensor.dtype).itemsize) > _MOST_BYTES:
        raise UsageError(
            f"input {tensor.name!r}: {list(tensor.shape)} takes {size / 2**30:.1f} GB for the "
            f"{shape[0] if shape else 1} items of a proof, needs to be below 2. "
            f"Give smaller sizes with --shape or a card, or change the graph."
        )


def _random(
    rng: np.random.Generator, tensor: TensorSpec, shape: tuple[int, ...], card: InputCard | None
) -> Array:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        return rng.uniform(*_value_range(card), shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, {"uint8": 256, "bool": 2}.get(dtype.name, 10), shape).astype(dtype)
    kind = "text" if dtype.kind == "O" else dtype
    raise UsageError(f"input {tensor.name!r}: is {kind}, needs to be a float, integer or bool.")


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
