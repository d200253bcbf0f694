"""Ranges, cases and kept layers of one model: found in its folder, or made and put there.

    calibration/<model>/ranges-<key8>.json     ranges of one model, card, recipe and method
    calibration/<model>/kept-<key8>.json       the search for layers to keep, with those ranges

Both are found again by what they were made of, so that nothing is measured twice.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from trtfuse.build import quality
from trtfuse.build.inputs import Inputs
from trtfuse.build.quality import Case, Finding, Limits
from trtfuse.build.recast import Say, Steps
from trtfuse.calibrate import cache, provenance, ranges
from trtfuse.calibrate.inspection import inspect
from trtfuse.calibrate.ranges import Origin, Range, Ranges
from trtfuse.calibrate.recipe import Recipe, by_key, choose, require_enough, split
from trtfuse.calibrate.sensitivity import Sensitivity, search
from trtfuse.calibrate.thresholds import parse_method
from trtfuse.core.cores import usable_cores
from trtfuse.core.errors import CalibrationError
from trtfuse.core.files import replacing, sha256
from trtfuse.core.options import CalibrationOptions
from trtfuse.core.record import from_json, to_json
from trtfuse.core.specs import ModelSpec, Precision
from trtfuse.graph import precision, switch, wiring
from trtfuse.graph.equalize import equalize
from trtfuse.graph.model import load
from trtfuse.graph.precision import Needs
from trtfuse.graph.tap import Tap
from trtfuse.graph.wiring import Graph

# Cases that judge: more tell little and cost a run each, on every engine and on the reference.
_CASES = 32
# Of these, the cases that rank layers, by noise, which differs little among like pictures: they are
# run once a layer.
_RANKING = 4


@dataclass
class Calibration:
    """What a build knows of one model's activations, made as it is asked for."""

    options: CalibrationOptions
    model: ModelSpec
    inputs: Inputs
    say: Say
    steps: Steps

    @property
    def folder(self) -> Path:
        """Where this model's ranges lie."""
        return self.options.ranges / self.model.path.stem

    @cached_property
    def recipe(self) -> Recipe:
        """The choice among the inputs."""
        return choose(
            self.inputs.examples,
            count=self.options.count,
            seed=self.options.seed,
            order=self.inputs.order,
            held_out=self.options.held_out,
        )

    @cached_property
    def origin(self) -> Origin:
        """What the ranges follow from."""
        given = self._given
        if given:
            return self._origin_by(f"{cache.read(given).header} {sha256(given)[:8]}")
        return self._measured_origin

    @cached_property
    def graph(self) -> Graph:
        """The FP32 graph with its weights."""
        return load(self.model.path)

    def ranges(self, wanted: Precision, rest: Precision) -> Ranges:
        """Ranges that `wanted` needs: the file's if it fits, else measured now and kept.

        Raises CalibrationError for inputs that may not be calibrated with.
        """
        path, needs = ranges.file_of(self.folder, self.origin), self._needs(wanted, rest)
        found = None
        if path.is_file():
            found = ranges.load(path)
            ranges.require(found, self.origin, path)
        else:
            self._tell_stale()
        if found is None or not self._serves(found, needs):
            found = self._measured(needs)
            if self.inputs.real:
                ranges.save(found, path)
        self._write_cache(found, needs)
        return found

    def require_layers(self, wanted: Precision, keep: Collection[str]) -> None:
        """Raise UnknownName where `keep` names what `wanted` has no choice about."""
        if keep:
            precision.require_layers(self.graph, wanted, keep)

    def cases(self, found: Ranges) -> tuple[Case, ...]:
        """The held-out inputs with what FP32 answers to them, without optimizations."""
        ends = [value.name for value in self.model.outputs]
        reference = Tap(self.graph, ends, threads=usable_cores(), optimize=False)
        keys = split(self.recipe, found.left_out).held_out[:_CASES]
        made = []
        for done, example in enumerate(by_key(self.inputs.examples, keys), 1):
            feeds = example.load()
            made.append(Case(feeds, reference(feeds)))
            self.steps("FP32 answers", done, len(keys))
        return tuple(made)

    def sensitivity(
        self, found: Ranges, cases: Callable[[], Sequence[Case]], limits: Limits
    ) -> Sensitivity:
        """The search for layers to keep, from its file if it was made with the same ranges."""
        path = self._kept_file(found, limits)
        if path.is_file():
            return _read_kept(path)
        every = cases()
        graph = equalize(self.graph, found.exponents)
        board = switch.Switchboard(graph, found.measured.amax, threads=usable_cores())
        until = time.monotonic() + 60 * self.options.budget_min

        def judged(layers: Collection[str], on: Sequence[Case]) -> list[Finding]:
            got = [board(case.feeds, layers) for case in on]
            return quality.judge(on, got, self.model.card, limits)

        self.say(f"{self.model.path.name}: looking for layers to keep out of int8")
        result = search(
            board.layers,
            lambda name: quality.noise(judged([name], every[:_RANKING])),
            lambda layers: quality.worst(judged(layers, every)),
            expired=lambda: time.monotonic() >= until,
            progress=lambda done, total: self.steps("sensitivity", done, total),
        )
        with replacing(path) as part:
            part.write_text(json.dumps(to_json(result), indent=1) + "\n", encoding="utf-8")
        return result

    def has_searched(self, found: Ranges, limits: Limits) -> bool:
        """Whether `sensitivity` would read its result from a file."""
        return self._kept_file(found, limits).is_file()

    @property
    def carries_int8(self) -> bool:
        """Whether the graph was exported with its Q/DQ pairs."""
        return precision.carried(self.graph) is Precision.INT8

    @cached_property
    def _given(self) -> Path | None:
        """The cache that is read in the place of inputs; None: ranges are measured.

        One that holds what today's inputs gave is not read: their range file says more.
        """
        path = self.options.cache
        if path is None or not path.is_file():
            return None
        found = provenance.read(path)
        if found is None:
            self.say(f"{path}: nothing says what model and inputs it is of: you vouch for it")
            return path
        provenance.require(path, found, self._measured_origin)
        return None if found == self._measured_origin else path

    @property
    def _measured_origin(self) -> Origin:
        real = self.inputs.real
        return self._origin_by(str(parse_method(self.options.method)) if real else "minmax")

    def _origin_by(self, method: str) -> Origin:
        return Origin(
            model_sha256=self.model.sha256,
            card=self.model.card.input if self.model.card else None,
            recipe=self.recipe,
            method=method,
        )

    def _needs(self, wanted: Precision, rest: Precision) -> Needs:
        needs = precision.needs(self.graph, wanted, rest=rest)
        if self.options.cache is None or not needs.amax:
            return needs
        # A cache is of the graph as it is: TensorRT knows no other.
        needs = replace(needs, channels=())
        if self._given:
            return needs
        # TensorRT expects a line for every tensor of the network.
        return replace(needs, amax=wiring.float_activations(wiring.copy(self.graph)))

    def _serves(self, found: Ranges, needs: Needs) -> bool:
        return found.covers(needs) and not (self.options.cache and found.exponents)

    def _write_cache(self, found: Ranges, needs: Needs) -> None:
        """Write the cache that was asked for and is not there."""
        path = self.options.cache
        if path is None or path.is_file() or not needs.amax:
            return
        amax = {name: one.amax for name, one in found.tensors.items() if one.amax is not None}
        cache.write(path, amax, parse_method(self.options.method))
        provenance.write(path, self.origin)

    def _measured(self, needs: Needs) -> Ranges:
        left_out = self._left_out() if self.inputs.real else {}
        keys = split(self.recipe, left_out).calibration
        tensors: dict[str, Range] = {}
        if self._given and needs.amax:
            tensors = self._from_cache(cache.read(self._given), needs)
            needs = replace(needs, amax=())
        exponents = self._exponents(needs, keys)
        if needs.amax or needs.reach:
            measured = self._from_inputs(equalize(self.graph, exponents), needs, keys)
            both = measured.keys() & tensors.keys()
            tensors |= measured | {n: replace(measured[n], amax=tensors[n].amax) for n in both}
        return Ranges(
            schema=ranges.SCHEMA,
            origin=self.origin,
            left_out=left_out,
            tensors=tensors,
            exponents=exponents,
        )

    def _left_out(self) -> dict[str, str]:
        """Look at the chosen inputs, and tell what is not used of them."""
        chosen = by_key(self.inputs.examples, [one.key for one in self.recipe.chosen])
        require_enough(self.recipe, (), few=self.options.few)
        found = inspect(
            chosen, self.origin.card, lambda done: self.steps("inputs", done, len(chosen))
        )
        for note in found.notes:
            self.say(f"calibration: {note}")
        require_enough(self.recipe, found.left_out, few=self.options.few)
        return found.left_out

    def _exponents(self, needs: Needs, keys: Sequence[str]) -> dict[str, tuple[int, ...]]:
        if not needs.channels:
            return {}
        return ranges.channel_exponents(
            self.graph,
            by_key(self.inputs.examples, keys),
            needs.channels,
            ranges.Limits(threads=usable_cores()),
        )

    def _from_inputs(self, graph: Graph, needs: Needs, keys: Sequence[str]) -> dict[str, Range]:
        what = f"{len(keys)} {'inputs' if self.inputs.real else 'random inputs'}"
        self.say(f"{self.model.path.name}: measuring ranges in FP32 on {what}")
        return ranges.measure(
            graph,
            by_key(self.inputs.examples, keys),
            needs,
            parse_method(self.options.method),
            ranges.Limits(threads=usable_cores()),
            lambda done, total: self.steps("ranges", done, total),
        )

    def _from_cache(self, given: cache.Cache, needs: Needs) -> dict[str, Range]:
        known = wiring.float_activations(wiring.copy(self.graph))
        fit = cache.fit(given, needed=needs.amax, known=known)
        for what, names in (("lacks", fit.missing), ("has also", fit.unknown)):
            if names:
                self.say(f"calibration cache: {what} {len(names)} tensors: {', '.join(names)}")
        found = {name: fit.amax.get(name, 0.0) for name in needs.amax}
        return {name: Range(low=-one, high=one, amax=one) for name, one in found.items()}

    def _tell_stale(self) -> None:
        """Say why the range files that are there do not serve."""
        for path in sorted(self.folder.glob("ranges-*.json")):
            found = ranges.differences(ranges.load(path).origin, self.origin)
            self.say(f"not reused: {path}: {'; '.join(found)}")

    def _kept_file(self, found: Ranges, limits: Limits) -> Path:
        key = f"{found.fingerprint} {sorted(limits.asked.items())} {self.options.budget_min}"
        return self.folder / f"kept-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def _read_kept(path: Path) -> Sensitivity:
    try:
        return from_json(Sensitivity, json.loads(path.read_text(encoding="utf-8")), at="kept")
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"{path}: cannot be read ({error}). Remove it, and it is searched for again."
        ) from error


def save_cases(cases: Sequence[Case], folder: Path) -> None:
    """Write the cases for the child that gates engines."""
    for number, case in enumerate(cases):
        for kind, arrays in (("feeds", case.feeds), ("expected", case.expected)):
            np.savez(folder / f"case-{number}-{kind}.npz", allow_pickle=False, **arrays)


def load_cases(folder: Path) -> list[Case]:
    """The cases that `save_cases` wrote; none where there are none."""
    cases: list[Case] = []
    while (path := folder / f"case-{len(cases)}-feeds.npz").is_file():
        with np.load(path) as feeds, np.load(str(path).replace("feeds", "expected")) as expected:
            cases.append(Case(dict(feeds), dict(expected)))
    return cases
