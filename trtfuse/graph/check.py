"""The proof: run a graph on distinct random items, in batches and one by one, and compare.

Running is apart from judging. `observe` runs anything that maps named arrays to named arrays;
`independence` and `agreement` are pure and compare what was observed. "ONNX Runtime loads it" and
"TensorRT builds it" prove nothing: YOLOX with a renamed batch axis does both, and answers wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from trtfuse.core.specs import Array, Arrays
from trtfuse.graph.model import node_name
from trtfuse.graph.probe import Items

Run = Callable[[Arrays], Arrays]

NOT_RUN = (
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
)


NO_RUN = "does not run"
"""How a fault begins that is no wrong answer, but none."""


class NotRunnable(Exception):
    """ONNX Runtime does not load the graph, or not run it on these inputs; its own words."""


class NotLoaded(NotRunnable):
    """ONNX Runtime does not load the graph, whatever it is fed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a graph answered to the first `items`, run in batches of each size.

    `outputs[b]` holds the rows of all whole batches of size b; sizes that failed are in `faults`.
    """

    outputs: Mapping[int, Arrays]
    faults: tuple[str, ...] = ()
    loaded: bool = True
    """Whether the graph was run at all."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of one output."""

    output: str
    absolute: float
    relative: float
    """To the largest magnitude that was expected of this output. Bytes may differ by one, which
    is how the same number is rounded from two sides."""
    mean: float = 0.0
    """The mean absolute difference of this output."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Differences by output; `faults` are what is no number: a wrong shape, NaN, a failed run."""

    differences: tuple[Difference, ...] = ()
    faults: tuple[str, ...] = ()

    def holds(self, tolerance: float) -> bool:
        """Whether nothing is at fault and no relative difference is above `tolerance`."""
        return not self.faults and self.relative <= tolerance

    @property
    def absolute(self) -> float:
        """The largest absolute difference of any output."""
        return max((one.absolute for one in self.differences), default=0.0)

    @property
    def relative(self) -> float:
        """The largest relative difference of any output."""
        return max((one.relative for one in self.differences), default=0.0)

    @property
    def mean(self) -> float:
        """The largest mean absolute difference of any output."""
        return max((one.mean for one in self.differences), default=0.0)

    def against(self, tolerance: float) -> str:
        """In words: the faults, and every difference above `tolerance`."""
        return "; ".join(
            self.faults
            + tuple(
                f"output {one.output!r} differs by {one.absolute:.3g}, {one.relative:.3g} of its "
                f"largest value ({tolerance:g} is allowed)"
                for one in self.differences
                if one.relative > tolerance
            )
        )


@dataclass(frozen=True)
class Reference:
    """The graph as written, in ONNX Runtime: optimizations off, one thread, CPU.

    `folder` holds the external data of the graph. It is mapped, so a session costs what it
    computes; it goes with this object.
    """

    model: onnx.ModelProto
    folder: Path | None = None

    def __call__(self, feeds: Arrays) -> dict[str, Array]:
        """Outputs by name. Raises `NotRunnable`, `NotLoaded`."""
        try:
            session = self._session
        except NOT_RUN as error:
            raise NotLoaded(_in_one_line(error)) from error
        try:
            answers = session.run(None, dict(feeds))
        except MemoryError as error:
            raise NotRunnable("it takes more memory than there is") from error
        except NOT_RUN as error:
            raise NotRunnable(_in_one_line(error)) from error
        return dict(zip((o.name for o in self.model.graph.output), answers, strict=True))

    @cached_property
    def _session(self) -> ort.InferenceSession:
        options = ort.SessionOptions()
        # Optimized kernels are chosen by batch size; their rounding would hide in the comparison.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        # Packed, every weight of a MatMul would be held a second time.
        options.add_session_config_entry("session.disable_prepacking", "1")
        if self.folder:
            options.add_session_config_entry(_EXTERNAL_FOLDER, str(self.folder))
        options.log_severity_level = 4  # errors arrive as exceptions; here a failed run is a result
        return ort.InferenceSession(
            self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


def observe(run: Run, items: Items, batches: Iterable[int]) -> Observation:
    """Run `items` in batches of each size. Every output must be finite and one row an item.

    Items that are `whole` are run one by one, whatever the batches; outputs then have any shape.
    """
    outputs: dict[int, Arrays] = {}
    faults: list[str] = []
    refused: dict[int, str] = {}
    for batch in (1,) if items.whole else batches:
        starts = range(0, items.count - batch + 1, batch)
        try:
            answers = [run(items.rows(start, start + batch)) for start in starts]
        except NotLoaded as error:
            return Observation({}, (f"is not loaded: {error}",), loaded=False)
        except NotRunnable as error:
            refused[batch] = str(error)
            continue
        fault = _unusable(answers) or (None if items.whole else _without_rows(answers, batch))
        if fault:
            faults.append(fault)
        else:
            join = np.stack if items.whole else np.concatenate
            outputs[batch] = {
                name: join([answer[name] for answer in answers]) for name in answers[0]
            }
    if refused:
        # One reason has as many wordings as there are batches.
        sizes, reason = ", ".join(map(str, refused)), next(iter(refused.values()))
        faults.insert(0, f"{NO_RUN} at batch {sizes}: {reason}")
    return Observation(outputs, tuple(dict.fromkeys(faults)))


def same_for_all(seen: Observation) -> tuple[str, ...]:
    """Outputs that are bit for bit the same for every item: nothing can be proven of them."""
    singles = seen.outputs.get(1, {})
    return tuple(
        name for name, rows in singles.items() if len(rows) > 1 and (rows == rows[:1]).all()
    )


def independence(seen: Observation) -> Proof:
    """Each item in a batch against the same item alone. Needs batch 1 to be observed."""
    singles = seen.outputs.get(1)
    if singles is None:
        return Proof(faults=seen.faults)
    proofs = [
        compare({name: rows[: len(got[name])] for name, rows in singles.items()}, got)
        for batch, got in seen.outputs.items()
        if batch > 1
    ]
    return combined(Proof(faults=seen.faults), *proofs)


def agreement(before: Observation, after: Observation) -> Proof:
    """Every batch size that `before` answered: the same answers after a rewrite."""
    proofs = [
        compare(before.outputs[batch], after.outputs[batch])
        for batch in before.outputs
        if batch in after.outputs
    ]
    return combined(Proof(faults=after.faults), *proofs)


def compare(expected: Arrays, got: Arrays) -> Proof:
    """Output by output; another name, shape or dtype is a fault."""
    if expected.keys() != got.keys():
        return Proof(faults=(f"outputs are {sorted(got)}, need to be {sorted(expected)}",))
    differences: list[Difference] = []
    faults: list[str] = []
    for name, want in expected.items():
        have = got[name]
        if want.shape != have.shape or want.dtype != have.dtype:
            faults.append(
                f"output {name!r} is {have.dtype} {have.shape}, "
                f"needs to be {want.dtype} {want.shape}"
            )
        else:
            differences.append(_difference(name, want, have))
    return Proof(tuple(differences), tuple(faults))


def combined(*proofs: Proof) -> Proof:
    """All faults once, and the largest difference of each output, in the order of outputs."""
    worst: dict[str, Difference] = {}
    for one in (difference for proof in proofs for difference in proof.differences):
        if one.output not in worst or one.relative > worst[one.output].relative:
            worst[one.output] = one
    faults = dict.fromkeys(fault for proof in proofs for fault in proof.faults)
    return Proof(tuple(worst.values()), tuple(faults))


def first_mixing_node(run: Reference, items: Items, tolerance: float) -> str | None:
    """The first node where an item's row depends on the rest of its batch, if one can be found.

    Runs with every intermediate result kept: for the message of a failed proof only.
    """
    model = run.model
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    known = {value.name for value in tapped.graph.output}
    made = [name for node in tapped.graph.node for name in node.output if name]
    tapped.graph.output.extend(onnx.ValueInfoProto(name=n) for n in made if n not in known)
    run = Reference(tapped, run.folder)
    try:
        together = run(items.rows(0, items.count))
        alone = [run(items.rows(i, i + 1)) for i in range(items.count)]
    except NotRunnable:
        return None
    for node in model.graph.node:
        for name in filter(None, node.output):
            rows = [answer[name] for answer in alone]
            if _differs(rows, together[name], tolerance):
                return node_name(node)
    return None


def _differs(rows: Sequence[Array], together: Array, tolerance: float) -> bool:
    """Whether single answers laid end to end are not the batch's; False if they have no batch."""
    # Whole numbers are sizes and indices, which may well count the items.
    if together.dtype.kind != "f" or not all(row.ndim and len(row) == 1 for row in rows):
        return False
    # A tensor that is as long for the batch as for one item is a constant, or has mixed them.
    alone = rows[0] if together.shape == rows[0].shape else np.concatenate(rows)
    return not compare({"": alone}, {"": together}).holds(tolerance)


def _without_rows(answers: Sequence[Arrays], batch: int) -> str | None:
    for name, array in ((name, array) for answer in answers for name, array in answer.items()):
        if array.shape[:1] == (batch,):
            continue
        if not array.ndim:
            return (
                f"output {name!r} is one number for a whole batch, needs one for each item: its "
                f"mean or sum goes over the first axis too, and should leave it out"
            )
        place = array.shape.index(batch) if batch > 1 and batch in array.shape else 0
        there = f"; the batch may be its axis {place}" if place else ""
        return (
            f"output {name!r} has shape {array.shape} at batch {batch}: "
            f"its first axis needs to be the batch{there}"
        )
    return None


def _unusable(answers: Sequence[Arrays]) -> str | None:
    for name, array in ((name, array) for answer in answers for name, array in answer.items()):
        if array.dtype.kind not in "fiub":
            kind = "text" if array.dtype.kind == "O" else array.dtype
            return f"output {name!r} is {kind}, needs to hold numbers"
        if bad := array.size - int(np.isfinite(array).sum()):
            return f"output {name!r} holds NaN or infinity in {bad} of {array.size} values"
    return None


def _difference(name: str, want: Array, have: Array) -> Difference:
    wide, scale = want.astype(np.float64), float(np.abs(want.astype(np.float64)).max(initial=0))
    apart = np.abs(wide - have.astype(np.float64))
    absolute = float(apart.max(initial=0))
    beyond = max(absolute - 1, 0.0) if want.dtype == np.uint8 else absolute
    relative = beyond / scale if scale else (np.inf if beyond else 0.0)
    return Difference(name, absolute, relative, float(apart.mean()) if apart.size else 0.0)


def _in_one_line(error: Exception) -> str:
    """ONNX Runtime's words without its prefix, cut before they fill the screen."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(str(error).split()))
    text = re.sub(r"(Load model from .* failed:|/onnxruntime_src/\S+) ?", "", text)
    return text if len(text) <= 400 else f"{text[:400]} …"
