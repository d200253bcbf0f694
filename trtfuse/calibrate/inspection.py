"""Inputs looked at before minutes are spent on them: what is wrong with them, and what it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trtfuse.calibrate.recipe import Example
from trtfuse.core.card import InputCard, Layout
from trtfuse.core.errors import CalibrationError, ItemError
from trtfuse.core.specs import Array, Arrays

# Correlation of a pixel with its right neighbour. Of 14 photographs that packages ship, the least
# has 0.87; independent noise has 0 with a spread of 0.01 at 64 x 64.
_NOISE = 0.1
# Below this many pixels a side the correlation says little; beyond so many it says no more.
_SMALLEST_SIDE, _LARGEST_SIDE = 16, 256
# So many are looked at for noise: a recipe shuffles, and a stored picture is decoded once more.
_LOOKED_AT = 64
# float16 inputs round the card's limits by this much.
_SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found. `left_out` are keys that teach nothing, each with the reason."""

    left_out: dict[str, str]

    @property
    def notes(self) -> tuple[str, ...]:
        """One line a reason, with the first names."""
        keys: dict[str, list[str]] = {}
        for key, reason in self.left_out.items():
            keys.setdefault(reason, []).append(key)
        return tuple(f"left out, {reason}: {_some(names)}" for reason, names in keys.items())


def inspect(
    examples: Sequence[Example], card: InputCard | None, progress: Callable[[int], None]
) -> Inspection:
    """Load every example once. `progress` gets how many were looked at.

    Constant inputs, copies of others and what cannot be read are left out. Raises CalibrationError
    for values that are not finite or not what the card allows, and for noise: a model calibrated on
    it is calibrated for nothing else.
    """
    left_out: dict[str, str] = {}
    seen: set[bytes] = set()
    noisy: list[bool] = []
    for done, example in enumerate(examples, 1):
        progress(done)
        try:
            inputs = example.load()
        except ItemError as error:
            left_out[example.key] = str(error).rstrip(".")
            continue
        _require_finite(example.key, inputs)
        if card:
            _require_in_range(example.key, inputs[card.name], card)
        digest = _digest(inputs)
        if all(array.min() == array.max() for array in inputs.values()):
            left_out[example.key] = "the same value everywhere"
        elif digest in seen:
            left_out[example.key] = "a copy of another input"
        seen.add(digest)
        if len(noisy) < _LOOKED_AT:
            noisy.append(_is_noise(example, inputs, card))
    # One in two: a folder may hold a test pattern.
    if 2 * sum(noisy) > len(noisy):
        raise CalibrationError(
            f"calibration: {sum(noisy)} of {len(noisy)} inputs looked at are random noise: "
            f"neighbouring pixels have nothing in common. Ranges of noise are not those of "
            f"pictures. Give real inputs."
        )
    return Inspection(left_out)


def _is_noise(example: Example, inputs: Arrays, card: InputCard | None) -> bool:
    """Noise that was made larger has neighbours in common; as it is stored it has none."""
    if example.pixels is not None:
        return is_noise(example.pixels(), layout="NHWC")
    layouts = {card.name: card.layout} if card else {}
    return any(is_noise(array, layout=layouts.get(name, "NCHW")) for name, array in inputs.items())


def is_noise(array: Array, *, layout: Layout = "NCHW") -> bool:
    """Whether the axes that may be height and width hold independent values, in their middle.

    The batch may be missing.
    """
    if array.ndim < 3 or array.dtype.kind not in "fu":
        return False
    if layout == "NHWC":
        array = np.moveaxis(array, -1, -3)
    if min(array.shape[-2:]) < _SMALLEST_SIDE:
        return False
    top, left = (max(0, side - _LARGEST_SIDE) // 2 for side in array.shape[-2:])
    array = array[..., top : top + _LARGEST_SIDE, left : left + _LARGEST_SIDE]
    ones, nexts = (part.astype(np.float64).ravel() for part in (array[..., :-1], array[..., 1:]))
    if ones.std() == 0 or nexts.std() == 0:
        return False
    return bool(abs(np.corrcoef(ones, nexts)[0, 1]) < _NOISE)


def _require_finite(key: str, inputs: Arrays) -> None:
    for name, array in inputs.items():
        if array.dtype.kind == "f" and (bad := array.size - int(np.isfinite(array).sum())):
            raise CalibrationError(
                f"calibration: {key}: input {name!r} holds NaN or infinity in {bad} of "
                f"{array.size} values. Leave it out, or mend what makes it."
            )


def _require_in_range(key: str, array: Array, card: InputCard) -> None:
    """Raise CalibrationError where values lie outside what the card makes of pixels."""
    low, high = _limits(card)
    found = _extremes(array, card)
    if _inside(found, low, high):
        return
    lows, highs = (", ".join(f"{value:.4g}" for value in ends) for ends in found)
    raise CalibrationError(
        f"calibration: {key}: input {card.name!r} reaches from [{lows}] to [{highs}] by channel; "
        f"the card allows [{_numbers(low)}] to [{_numbers(high)}].{_hint(found, card)}"
    )


def _hint(found: tuple[Array, Array], card: InputCard) -> str:
    """What common mistake would explain the values."""
    low, high = _limits(card)
    if card.channels == 3 and _inside((found[0][::-1], found[1][::-1]), low, high):
        other = "BGR" if card.colour == "RGB" else "RGB"
        return f" With its channels swapped it would fit: is it {other}, not {card.colour}?"
    plain = np.zeros(card.channels), np.full(card.channels, 255.0)
    if _inside(found, *plain) and found[1].max() > 1:
        return " It looks like bytes, 0 to 255, not brought to the card's range, mean and std."
    if _inside(found, np.zeros(card.channels), np.ones(card.channels)):
        return " It looks like values of 0 to 1: divided by 255, but not as the card says."
    return " Prepare it as the card says, or correct the card."


def _limits(card: InputCard) -> tuple[Array, Array]:
    """Lowest and highest value a channel, as the card normalises bytes."""
    mean = np.array(card.mean or (0.0,) * card.channels)
    std = np.array(card.std or (1.0,) * card.channels)
    low, high = card.range
    return (low - mean) / std, (high - mean) / std


def _extremes(array: Array, card: InputCard) -> tuple[Array, Array]:
    axis = 1 if card.layout == "NCHW" else array.ndim - 1
    others = tuple(n for n in range(array.ndim) if n != axis)
    return array.min(others).astype(np.float64), array.max(others).astype(np.float64)


def _inside(found: tuple[Array, Array], low: Array, high: Array) -> bool:
    slack = _SLACK * (high - low)
    return bool((found[0] >= low - slack).all() and (found[1] <= high + slack).all())


def _digest(inputs: Arrays) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(inputs):
        digest.update(np.ascontiguousarray(inputs[name]).data)
    return digest.digest()


def _numbers(values: Array) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
