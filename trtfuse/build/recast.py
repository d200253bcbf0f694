"""From a precision asked for to engines to be built: requests, with what writing them needs.

FP32 needs nothing, and nothing heavy is imported for it. Everything else rests on ranges and is
judged by cases; both come from `calibration`, which finds or makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trtfuse.build.backends import BACKENDS
from trtfuse.build.plan import Build, Profile
from trtfuse.core.errors import UsageError
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import KeptLayer, ModelSpec, Precision

if TYPE_CHECKING:
    from trtfuse.build.calibration import Calibration
    from trtfuse.build.quality import Case, Limits
    from trtfuse.calibrate.ranges import Ranges
    from trtfuse.calibrate.sensitivity import Sensitivity

AUTO = ("auto",)

Say = Callable[[str], None]
Steps = Callable[[str, int, int], None]
"""(what is done, how far, of how much)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recast:
    """What a child needs to write a precision into the graph and to judge the engine."""

    amax: Mapping[str, float] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)
    exponents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cases: Path | None = None
    """Folder of `calibration.save_cases`; None: the engine is not judged."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """What was asked for, by metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An engine to be built."""

    build: Build
    recast: Recast | None = None
    sensitivity: tuple[KeptLayer, ...] = ()

    @property
    def name(self) -> str:
        """ "int8", or "int8 without 3 layers"."""
        request = self.build.request
        count = len(request.keep)
        kept = f" without {count} layer{'' if count == 1 else 's'}" if count else ""
        return f"{request.precision.value}{kept}"

    def keeping_more(self) -> Candidate | None:
        """The same with half as many layers again kept, by their rank; None: all are kept."""
        ranked = self.sensitivity
        now = sum(one.kept for one in ranked)
        if now == len(ranked):
            return None
        count = min(max(now + 1, now * 3 // 2), len(ranked))
        rows = tuple(replace(one, kept=n < count) for n, one in enumerate(ranked))
        keep = tuple(sorted(one.layer for one in rows if one.kept))
        request = replace(self.build.request, keep=keep)
        return replace(self, build=replace(self.build, request=request), sensitivity=rows)


@dataclass
class Recasting:
    """The candidates of one model, for any device. Measures when it has to, and once."""

    options: BuildOptions
    model: ModelSpec
    profile: Profile
    scratch: Path
    say: Say
    steps: Steps

    def candidate(self, one: Build, precision: Precision, *, auto: bool) -> Candidate:
        """The engine of `one`'s device in `precision`. With `auto`, layers to keep are found.

        Raises UsageError, CalibrationError where options or inputs do not allow it.
        """
        if precision is Precision.FP32:
            return Candidate(build=one)
        backend = BACKENDS[one.request.runtime]
        installed = one.request.runtime_version
        if refused := backend.refused(installed).get(precision):
            raise UsageError(f"--precision {precision.value}: {refused}.")
        rest = backend.rest(installed) if precision is Precision.INT8 else Precision.FP32
        self._require_inputs(precision)
        self._calibration.require_layers(precision, self._keep(None))
        found = self._calibration.ranges(precision, rest)
        limits = self._limits(precision)
        sensitivity = None
        if auto:
            sensitivity = self._calibration.sensitivity(found, lambda: self._cases(found), limits)
        request = replace(
            one.request,
            precision=precision,
            rest=rest,
            keep=self._keep(sensitivity),
            ranges=found.fingerprint,
        )
        return Candidate(
            build=replace(one, request=request),
            recast=Recast(
                amax=found.measured.amax,
                reach=found.measured.reach,
                exponents=found.measured.exponents,
                cases=self.scratch / "cases" if self.options.calibration.gate else None,
                limits=limits.asked,
            ),
            sensitivity=_rows(sensitivity),
        )

    def has_searched(self, one: Build) -> bool:
        """Whether layers to keep were searched for with the ranges of today."""
        rest = BACKENDS[one.request.runtime].rest(one.request.runtime_version)
        found = self._calibration.ranges(Precision.INT8, rest)
        return self._calibration.has_searched(found, self._limits(Precision.INT8))

    def prepare(self, candidate: Candidate) -> None:
        """Lay down what the child reads: the cases, once."""
        if candidate.recast and candidate.recast.cases and not candidate.recast.cases.is_dir():
            request = candidate.build.request
            self._cases(self._calibration.ranges(request.precision, request.rest))

    @cached_property
    def _calibration(self) -> Calibration:
        from trtfuse.build.calibration import Calibration
        from trtfuse.build.inputs import gather

        options = self.options.calibration
        inputs = gather(options.data, self.model, self.profile, self.scratch)
        return Calibration(options, self.model, inputs, self.say, self.steps)

    def _limits(self, precision: Precision) -> Limits:
        from trtfuse.build.quality import Limits, parse_limits

        return Limits(precision, parse_limits(self.options.calibration.limits))

    def _cases(self, found: Ranges) -> tuple[Case, ...]:
        from trtfuse.build.calibration import load_cases, save_cases

        folder = self.scratch / "cases"
        if not folder.is_dir():
            folder.mkdir()
            save_cases(self._calibration.cases(found), folder)
        return tuple(load_cases(folder))

    def _keep(self, sensitivity: Sensitivity | None) -> tuple[str, ...]:
        asked = self.options.calibration.keep
        return tuple(sorted(sensitivity.keep if sensitivity else () if asked == AUTO else asked))

    def _require_inputs(self, precision: Precision) -> None:
        """Raise UsageError where INT8 would rest on nothing."""
        options = self.options.calibration
        given = options.cache and options.cache.is_file() and not options.gate
        if (
            precision is not Precision.INT8
            or options.data
            or given
            or self._calibration.carries_int8
        ):
            return
        raise UsageError(
            f"--precision int8: {self.model.path.name} has no ranges without inputs. Give some "
            f"with --calib-data FOLDER; or give TensorRT's own with --calibration-cache FILE and, "
            f"as nothing can be judged then, --no-gate."
        )


def _rows(sensitivity: Sensitivity | None) -> tuple[KeptLayer, ...]:
    if sensitivity is None:
        return ()
    return tuple(
        KeptLayer(layer=one.layer, alone=one.alone, left=one.left, kept=one.kept)
        for one in sensitivity.layers
    )
