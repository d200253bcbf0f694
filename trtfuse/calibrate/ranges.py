"""Activation ranges: measured in one FP32 pass, kept as JSON, refused where they do not belong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtfuse.calibrate.histogram import Histogram
from trtfuse.calibrate.recipe import Example, Recipe
from trtfuse.calibrate.thresholds import Method, threshold
from trtfuse.core.card import InputCard
from trtfuse.core.errors import CalibrationError
from trtfuse.core.files import replacing
from trtfuse.core.record import Malformed, from_json, to_json
from trtfuse.core.specs import Array
from trtfuse.graph.check import NotRunnable
from trtfuse.graph.equalize import exponents
from trtfuse.graph.precision import Measured, Needs
from trtfuse.graph.tap import Tap
from trtfuse.graph.wiring import Graph, sizes

SCHEMA = 1

# Inputs that tell how large channels are beside one another: to a factor of 2, and capped.
_EQUALIZING = 16

Progress = Callable[[int, int], None]
"""(runs done, runs in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a measurement may use."""

    threads: int
    pass_bytes: int = 512 << 20
    """Most that the tensors brought out of one run take; more are measured in further passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Everything that ranges follow from."""

    model_sha256: str
    card: InputCard | None
    recipe: Recipe
    method: str

    @property
    def key(self) -> str:
        """Hex SHA-256 of all of it."""
        return _digest(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What one tensor was seen to hold in FP32."""

    low: float
    high: float
    amax: float | None = None
    """The magnitude that becomes INT8's level 127; None where it was not asked for."""

    @property
    def reach(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """A range file. Its fingerprint is part of every engine built with it."""

    schema: int
    origin: Origin
    left_out: Mapping[str, str]
    """Chosen inputs that taught nothing, with the reason."""
    tensors: Mapping[str, Range]
    exponents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The channels that were equalized before, as `graph.equalize` says them."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the whole record."""
        return _digest(self)

    @property
    def measured(self) -> Measured:
        """For `graph.precision.write`."""
        return Measured(
            amax={name: one.amax for name, one in self.tensors.items() if one.amax},
            reach={name: one.reach for name, one in self.tensors.items()},
            exponents=self.exponents,
        )

    @property
    def still(self) -> tuple[str, ...]:
        """Tensors that held nothing but 0 throughout."""
        return tuple(name for name, one in self.tensors.items() if one.low == one.high == 0)

    def covers(self, needs: Needs) -> bool:
        """Whether all that `needs` names was measured."""
        counted = {name for name, one in self.tensors.items() if one.amax is not None}
        return (
            self.tensors.keys() >= set(needs.reach)
            and counted >= set(needs.amax)
            and self.exponents.keys() >= set(needs.channels)
        )


def measure(
    graph: Graph,
    examples: Sequence[Example],
    needs: Needs,
    method: Method,
    limits: Limits,
    progress: Progress,
) -> dict[str, Range]:
    """Run the FP32 graph over `examples`, one at a time; ranges of all tensors in `needs`.

    Memory does not grow with the number of examples. Raises CalibrationError where the graph does
    not run, or where a tensor holds NaN or infinity, with its name and the input's.
    """
    counted = set(needs.amax)
    watched = {
        name: _Watched(name, Histogram() if name in counted else None)
        for name in (*needs.amax, *needs.reach)
    }
    shapes = {name: array.shape for name, array in examples[0].load().items()}
    passes = _packed(watched, sizes(graph, shapes), limits.pass_bytes)
    total, done = len(passes) * len(examples), 0
    try:
        for group in passes:
            tap = Tap(graph, group, threads=limits.threads)
            for example in examples:
                for name, array in tap(example.load()).items():
                    watched[name].add(array, example.key)
                done += 1
                progress(done, total)
    except NotRunnable as error:
        raise CalibrationError(f"calibration: the graph does not run in FP32: {error}") from error
    return {name: one.range(method) for name, one in watched.items()}


def channel_exponents(
    graph: Graph, examples: Sequence[Example], names: Sequence[str], limits: Limits
) -> dict[str, tuple[int, ...]]:
    """How the channels of the tensors `names` are to be equalized, from a few of `examples`.

    Raises CalibrationError where the graph does not run.
    """
    reach: dict[str, Array] = {}
    try:
        tap = Tap(graph, names, threads=limits.threads)
        for example in examples[:_EQUALIZING]:
            for name, array in tap(example.load()).items():
                largest = np.abs(array).max(tuple(n for n in range(array.ndim) if n != 1))
                reach[name] = np.maximum(reach.get(name, 0), largest)
    except NotRunnable as error:
        raise CalibrationError(f"calibration: the graph does not run in FP32: {error}") from error
    return {name: exponents(one) for name, one in reach.items()}


def file_of(folder: Path, origin: Origin) -> Path:
    """Where the ranges of `origin` lie, in the folder of its model."""
    return folder / f"ranges-{origin.key[:8]}.json"


def save(ranges: Ranges, path: Path) -> None:
    """Write the file, atomically."""
    with replacing(path) as part:
        part.write_text(json.dumps(to_json(ranges), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Ranges:
    """Read a range file. Raises CalibrationError if it is missing or malformed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and data.get("schema") != SCHEMA:
            raise Malformed(f"schema: needs {SCHEMA}, got {data.get('schema')!r}")
        return from_json(Ranges, data, at="ranges")
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"{path}: not a range file that can be read ({error}). Remove it and calibrate again."
        ) from error


def require(ranges: Ranges, origin: Origin, path: Path) -> None:
    """Raise CalibrationError, naming every difference, unless `ranges` came from `origin`."""
    if found := differences(ranges.origin, origin):
        lines = "".join(f"\n  {one}" for one in found)
        raise CalibrationError(
            f"{path}: these ranges are not of this model and these inputs:{lines}\n"
            f"Calibrate again with --calib-data, or build from what they belong to."
        )


def differences(found: Origin, wanted: Origin) -> tuple[str, ...]:
    """What differs, in words: "recipe.seed: 0 in the file, 1 now"."""
    one, other = to_json(found), to_json(wanted)
    inputs = _changed_inputs(one["recipe"].pop("chosen"), other["recipe"].pop("chosen"))
    return (*_changed(one, other, ""), *inputs)


def _changed(found: Any, wanted: Any, at: str) -> list[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        return [
            line
            for key in found
            for line in _changed(found[key], wanted[key], f"{at}.{key}" if at else key)
        ]
    return [] if found == wanted else [f"{at}: {_short(found)} in the file, {_short(wanted)} now"]


def _changed_inputs(found: list[Any], wanted: list[Any]) -> list[str]:
    before, after = ({one["key"]: one["sha256"] for one in side} for side in (found, wanted))
    groups = {
        "new": [key for key in after if key not in before],
        "gone": [key for key in before if key not in after],
        "changed": [key for key in after if key in before and before[key] != after[key]],
    }
    lines = [f"inputs: {len(keys)} {how} ({_some(keys)})" for how, keys in groups.items() if keys]
    return lines or ([] if found == wanted else ["inputs: in another order"])


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:9]}…{text[-1]}"


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")


def _digest(record: Any) -> str:
    text = json.dumps(to_json(record), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _packed(names: Iterable[str], elements: Mapping[str, int], pass_bytes: int) -> list[list[str]]:
    """Names in their order, in groups whose float32 values fit into one pass.

    A tensor of unknown size is taken for as large as the largest.
    """
    largest = max(elements.values(), default=0)
    groups: list[list[str]] = [[]]
    room = pass_bytes
    for name in names:
        nbytes = 4 * elements.get(name, largest)
        if groups[-1] and nbytes > room:
            groups.append([])
            room = pass_bytes
        groups[-1].append(name)
        room -= nbytes
    return groups


@dataclass
class _Watched:
    """One tensor over all runs."""

    name: str
    histogram: Histogram | None
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, array: Array, key: str) -> None:
        low, high = float(array.min()), float(array.max())
        if not abs(low) + abs(high) < float("inf"):
            raise CalibrationError(
                f"calibration: {key}: tensor {self.name!r} holds NaN or infinity in FP32. "
                f"Leave the input out, or mend the model."
            )
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.histogram:
            self.histogram.add(array)

    def range(self, method: Method) -> Range:
        reach = max(-self.low, self.high)
        amax = None
        if self.histogram:
            amax = threshold(self.histogram, reach, method) if reach > 0 else 0.0
        return Range(low=self.low, high=self.high, amax=amax)
