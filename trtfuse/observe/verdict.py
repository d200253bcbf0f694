"""What a run waits for: a pure function of where its time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtfuse.core.report import Bound, Verdict
from trtfuse.core.specs import Precision

# What the others wait for is busy nearly all the time. Where nothing is busy even half of it, a run
# is short, or items go one by one: naming the largest share would be a guess.
_BUSY = 0.5

_WORKERS: tuple[Bound, ...] = ("compute", "copy", "dispatch")
"""What a worker's time goes into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A run, as the verdict sees it."""

    seconds: float
    stages: Mapping[str, float]
    """Seconds by the names of `core.times`, all threads and workers together; what is missing took
    none."""
    busy_s: tuple[float, ...]
    """Of each worker: how long it had a batch in hand."""
    feeders: int
    writers: int
    cores: int
    batch: int
    on_gpu: bool
    precision: Precision
    """Of its engines."""

    def taken(self, *stages: str) -> float:
        """Seconds of these stages."""
        return sum(self.stages.get(stage, 0.0) for stage in stages)


def judge(load: Load) -> Verdict:
    """Whoever is busy most of the time holds the others up: they wait for it, and it for nobody.

    Feeders and writers are busy by what their threads do, with one exception each: a source is read
    by one feeder at a time, and answers are committed by one thread. A worker is busy with copies
    and computing in the proportion in which its runner says; and it is in the dispatcher's hands
    where it has nothing, and a task is on its way to it.
    """
    if load.seconds <= 0:
        return _nothing({})
    shares = {bound: min(1.0, share) for bound, share in _shares(load).items()}
    workers = {bound: shares[bound] for bound in _WORKERS}
    busy: dict[str, float] = {
        "decode": shares["decode"],
        "encode": shares["encode"],
        "workers": sum(workers.values()),
    }
    most = max(busy, key=lambda name: busy[name])
    if busy[most] < _BUSY:
        return _nothing(shares)
    bound: Bound = max(workers, key=lambda name: workers[name])
    if most != "workers":
        bound = "decode" if most == "decode" else "encode"
    share = shares[bound]
    text = f"{bound}-bound at {share:.0%}: {_help(bound, load)}"
    return Verdict(bound=bound, share=round(share, 3), text=text, shares=_rounded(shares))


def _shares(load: Load) -> dict[Bound, float]:
    """Part of its own time that each of them was busy; of the workers, of theirs together."""
    feeding = load.taken("read", "decode", "prepare") / load.feeders
    storing = load.taken("answer", "store") / load.writers
    workers = len(load.busy_s) * load.seconds
    in_hand = sum(load.busy_s) / workers
    copies, computing = load.taken("copy_in", "copy_out"), load.taken("compute")
    copying = copies / (copies + computing) if copies else 0.0
    return {
        "decode": max(feeding, load.taken("read")) / load.seconds,
        "copy": in_hand * copying,
        "compute": in_hand * (1 - copying),
        "encode": max(storing, load.taken("commit")) / load.seconds,
        "dispatch": load.taken("handover") / workers,
    }


def _nothing(shares: dict[Bound, float]) -> Verdict:
    most = f" ({max(shares, key=lambda name: shares[name])} most)" if any(shares.values()) else ""
    text = f"nothing is busy half of the time{most}: the run is short, or its items go one by one."
    return Verdict(bound=None, share=0.0, text=text, shares=_rounded(shares))


def _rounded(shares: dict[Bound, float]) -> dict[Bound, float]:
    return {bound: round(share, 3) for bound, share in shares.items()}


def _help(bound: Bound, load: Load) -> str:
    another = "another GPU" if load.on_gpu else "a faster device"
    match bound:
        case "decode":
            return f"{another} will not help; {_decoding(load)}"
        case "encode":
            return f"{another} will not help; {_encoding(load)}"
        case "copy":
            return (
                "the device waits for its copies; trtfuse export --fuse pre,post has bytes copied "
                "instead of floats, a quarter of the traffic."
            )
        case "dispatch":
            return (
                f"batches are too small for their hand-over; try a larger --batch, it is "
                f"{load.batch}."
            )
        case "compute":
            device = "another GPU" if load.on_gpu else "a GPU, or more cores,"
            return f"{device} would help{_smaller(load)}."


def _smaller(load: Load) -> str:
    """A smaller precision, where there is one that this kind of device computes in."""
    if load.precision is Precision.INT8:
        return ""
    if not load.on_gpu:  # ONNX Runtime emulates the 16 bits of a float there
        return "; so may an engine of --precision int8"
    others = "fp16 or int8" if load.precision is Precision.FP32 else "int8"
    return f"; so would an engine of --precision {others}"


def _decoding(load: Load) -> str:
    if load.taken("read") > load.taken("decode", "prepare") / load.feeders:
        return "files are opened, and clips decoded, in order: a faster disk or codec would."
    if load.feeders < load.cores:
        return f"try --feeders {load.cores}, it is {load.feeders}."
    if load.taken("prepare") > load.taken("decode"):
        return "trtfuse export --fuse pre,resize has the device prepare its input."
    return "more cores would, or smaller pictures."


def _encoding(load: Load) -> str:
    if load.taken("commit") > load.taken("answer", "store") / load.writers:
        return "try --codec with a faster encoder, or its faster preset in --encoder-args."
    if load.writers < load.cores:
        return f"try --writers {load.cores}, it is {load.writers}."
    return "more cores would, or a cheaper --format, such as jpeg."
