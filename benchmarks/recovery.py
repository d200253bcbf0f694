"""Does a run end in the same bytes, whatever dies, hangs or fills up on the way?

    python benchmarks/recovery.py

Each schedule is drawn from its number: a source (pictures and a video, some with broken files or
with a picture that kills its worker), workers and batch, and faults at random moments, while the
run starts or after its first result: a worker is killed, or stopped until its deadline, the run
itself is killed, or no file may grow any more (RLIMIT_FSIZE of 0, which is a full disk to who
writes). A run that has ended early is started again, as a user would. What comes out is held
against a run that was left alone, file by file, and proven by `trtfuse verify`.

The processes, pipes, shared memory, files and the encoder are real. The model halves its input, and
takes 20 ms a batch, so that there is a middle to be killed in.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from trtfuse.core.errors import TrtfuseError
from trtfuse.core.flow import Claim, Pending
from trtfuse.core.options import WritingOptions
from trtfuse.core.specs import Arrays
from trtfuse.testing import FakeRunner

# What decodes and encodes is imported where it is used: every worker starts by reading this file.

SIZE = (24, 32)
POISON = 255
PICTURES, FRAMES, SEGMENT = 40, 24, 6
BATCH_S = 0.02
# A healthy worker, on a machine with other work, is to be well within both. The last attempt, where
# nothing befalls it, has the deadlines that a user has.
HANG_S, START_S = 1.0, 8.0
PATIENT_S = 300.0
KINDS = ("kill worker", "stop worker", "kill run", "no room")
SOURCES = ("good", "broken", "deadly")
WRONG = ("lost", "duplicated", "reordered", "other_bytes", "orphans", "segments")


@dataclass(frozen=True)
class Fault:
    """What happens, and when after the start of its process or, `midway`, its first result."""

    kind: str
    midway: bool
    after_s: float


@dataclass(frozen=True)
class Schedule:
    """One seeded history: the faults of each attempt; a last one has none."""

    number: int
    source: str
    workers: int
    batch: int
    attempts: tuple[tuple[Fault, ...], ...]


def drawn(number: int, seconds: Mapping[str, float]) -> Schedule:
    """The schedule of this number; faults come within the `seconds` that its source takes alone."""
    dice = random.Random(number)
    source = dice.choice(SOURCES)
    # A single picture is given up after four deaths under it: who kills more may hit a good one.
    kills = 1 if source == "deadly" else 3
    attempts = []
    for _ in range(dice.randint(1, 3)):
        kinds = [dice.choice(KINDS) for _ in range(dice.randint(1, 3))]
        kinds = [k for n, k in enumerate(kinds) if "worker" not in k or n < kills]
        attempts.append(
            tuple(
                sorted(
                    (befalling(kind, dice, seconds[source]) for kind in kinds),
                    key=lambda fault: (fault.midway, fault.after_s),
                )
            )
        )
    return Schedule(number, source, dice.randint(1, 3), dice.randint(1, 4), tuple(attempts))


def befalling(kind: str, dice: random.Random, seconds: float) -> Fault:
    """At a moment of a run of so many seconds, of which half are its start; two of three midway."""
    return Fault(kind, dice.random() < 2 / 3, dice.uniform(0, seconds / 2))


class HalvingRunner(FakeRunner):
    """y = x / 2, in BATCH_S; dies of a picture that is all POISON."""

    def __init__(self) -> None:
        super().__init__(shape=(3, 0, 0), max_batch=4)

    def launch(self, inputs: Arrays, claim: Claim) -> Pending:
        """Sleep, look for poison, compute."""
        time.sleep(BATCH_S)
        x = inputs["x"]
        if (x.reshape(len(x), -1).min(axis=1) == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        pending = super().launch(inputs, claim)
        claim("y", x.shape)[:] = x // 2
        return pending


@dataclass
class Found:
    """What has come of the schedules so far."""

    schedules: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def add(self, schedule: Schedule, found: list[str], counts: Counter[str]) -> None:
        """One schedule has come to its end."""
        self.schedules += 1
        self.tally.update(counts)
        if found:
            self.wrong.append({"schedule": schedule.number, "found": found})
            print(self.wrong[-1], flush=True)

    def rows(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "schedules": self.schedules,
            "wrong": len(self.wrong),
            **{what: self.tally[what] for what in WRONG},
            "happened": {what: count for what, count in sorted(self.tally.items()) if " " in what},
            "examples": self.wrong[:5],
        }


def main() -> None:
    """Run all schedules, count what is wrong; write the result file every 25 and at the end."""
    import video_end_to_end  # noqa: F401 - here, so that forked children have all that it loads

    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--schedules", type=int, default=500)
    arguments.add_argument("--first", type=int, default=0, help="number of the first schedule")
    arguments.add_argument("--jobs", type=int, default=2, help="schedules at a time")
    given = arguments.parse_args()
    so_far = Found()
    with TemporaryDirectory() as name:
        folder = Path(name)
        for source in SOURCES:
            make_source(folder / source, source)
        seconds = {source: alone(folder, source) for source in SOURCES}
        schedules = [drawn(given.first + n, seconds) for n in range(given.schedules)]
        # Forked, for the imports' sake; each of them forks its runs from a process without threads.
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("fork")) as jobs:
            ends = jobs.map(partial(differences, folder), schedules)
            for schedule, (found, counts) in zip(schedules, ends, strict=True):
                so_far.add(schedule, found, counts)
                if so_far.schedules % 25 == 0 or schedule is schedules[-1]:
                    print(so_far.rows(), flush=True)
                    write(so_far, first=given.first, jobs=given.jobs, seconds=seconds)
    sys.exit(1 if so_far.wrong else 0)


def write(so_far: Found, *, first: int, jobs: int, seconds: Mapping[str, float]) -> None:
    """The result file, of the schedules that have come to their end."""
    from trtfuse.bench.report import conditions, write_result

    write_result(
        Path(__file__).parent / "results" / "recovery.json",
        question="Does a run end in the same bytes, whatever dies, hangs or fills up on the way?",
        conditions=conditions(
            source=f"{PICTURES} pictures of {SIZE[1]} x {SIZE[0]} and a video of {FRAMES} frames, "
            f"segments of {SEGMENT}; good, with broken files, or with one that kills its worker",
            model=f"halves its input, {1000 * BATCH_S:.0f} ms a batch",
            workers="1 to 3",
            batch="1 to 4",
            seeds=f"{first} to {first + so_far.schedules - 1}",
            faults="1 to 3 an attempt, in 1 to 3 attempts; a last one has none",
            deadlines_s={"batch": HANG_S, "start": START_S},
            alone_s={source: round(took, 1) for source, took in seconds.items()},
            schedules_at_a_time=jobs,
            load=f"{psutil.getloadavg()[0]:.1f} processes ready at the end, other work included",
        ),
        rows=so_far.rows(),
    )


def alone(folder: Path, source: str) -> float:
    """Seconds of a run that is left alone, into its reference folder."""
    started = time.monotonic()
    schedule = Schedule(-1, source, workers=2, batch=2, attempts=())
    assert attempt(folder / source, folder / f"{source}-alone", schedule, (), Counter())
    return time.monotonic() - started


def differences(folder: Path, schedule: Schedule) -> tuple[list[str], Counter[str]]:
    """Run the schedule to its end; what is other than in a run left alone, and what happened."""
    from trtfuse.verify import verify

    tally: Counter[str] = Counter()
    source, output = folder / schedule.source, folder / f"out{schedule.number}"
    for faults in (*schedule.attempts, ()):
        tally["attempts made"] += 1
        if attempt(source, output, schedule, faults, tally):
            break
    else:
        return ["it does not come to its end"], tally
    wanted, got = contents(folder / f"{schedule.source}-alone"), contents(output)
    keys = [[line["key"] for line in lines] for lines in (wanted[1], got[1])]
    counts = {
        "lost": len(set(keys[0]) - set(keys[1])),
        "duplicated": len(keys[1]) - len(set(keys[1])),
        "reordered": int(keys[1] != [key for key in keys[0] if key in set(keys[1])]),
        "other_bytes": int(wanted != got),
    }
    counts |= {what: tally.pop(what, 0) for what in ("orphans", "segments")}
    tally.update(counts)
    faults_found = [f"{one.key} {one.what}" for one in verify(output, source=source).faults]
    shutil.rmtree(output)
    return [f"{what}: {n}" for what, n in counts.items() if n] + faults_found, tally


def contents(output: Path) -> tuple[dict[str, bytes], list[Any]]:
    """Every file but journal and results, and the results.

    The words for an item that killed its workers name the last of them: they are left out.
    """
    files = {
        str(path.relative_to(output)): path.read_bytes()
        for path in output.rglob("*")
        if path.is_file() and path.name not in ("journal.jsonl", "results.jsonl")
    }
    lines = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("error", {}).get("kind") == "WorkerDied":
            del line["error"]["message"]
    return files, lines


def attempt(
    source: Path, output: Path, schedule: Schedule, faults: Sequence[Fault], tally: Counter[str]
) -> bool:
    """One process of the run, with its faults; whether it came to its end."""
    # Forked, for the imports' sake: this process has no threads and no pool of its own.
    pid = os.fork()
    if pid == 0:
        os._exit(in_child(source, output, schedule, patient=not faults))
    child = psutil.Process(pid)
    started, began, midway = time.monotonic(), time.time(), None
    family: list[psutil.Process] = []
    for fault in faults:
        if fault.midway and midway is None:
            midway = first_result(child, output, began)
        moment = (midway or started) + fault.after_s
        time.sleep(max(0.0, moment - time.monotonic()))
        family = relatives(child) or family
        tally[befall(child, fault)] += 1
    _, status = os.waitpid(pid, 0)
    _, left = psutil.wait_procs(family, timeout=10)
    tally["orphans"] += len([one for one in left if is_alive(one)])
    tally["segments"] += len(segments_left(pid))
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 2, -signal.SIGKILL), code
    return code == 0


def segments_left(pid: int) -> list[Path]:
    """Shared memory of a process that is gone: who removes it, is to have done so in 10 s."""
    deadline = time.monotonic() + 10
    while (left := list(Path("/dev/shm").glob(f"trtfuse-{pid}-*"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def first_result(child: psutil.Process, output: Path, since: float) -> float:
    """When the first result of the process that was begun at `since` was there, or its end."""
    part = output / "results.jsonl.part"
    while is_alive(child):
        with suppress(FileNotFoundError):
            state = part.stat()
            if state.st_size and state.st_mtime > since:
                break
        time.sleep(0.002)
    return time.monotonic()


def befall(child: psutil.Process, fault: Fault) -> str:
    """Have it happen, if there is whom it can happen to; what and in which phase."""
    phase = "in mid-run" if fault.midway else "at the start"
    workers = relatives(child, "spawn_main")
    if not is_alive(child):
        return "came too late"
    if "worker" in fault.kind and not workers:
        return "came too early"
    try:
        match fault.kind:
            case "kill worker":
                workers[0].kill()
            case "stop worker":
                workers[-1].suspend()
            case "kill run":
                child.kill()
            case _:
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    except (psutil.NoSuchProcess, ProcessLookupError):
        return "came too late"
    return f"{fault.kind}, {phase}"


def is_alive(process: psutil.Process) -> bool:
    """False too for who is dead and waits for init to bury it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def relatives(child: psutil.Process, word: str = "") -> list[psutil.Process]:
    """Its children that have the word in their command line."""
    try:
        return [one for one in child.children() if word in " ".join(one.cmdline())]
    except psutil.NoSuchProcess:
        return []


def in_child(source: Path, output: Path, schedule: Schedule, *, patient: bool) -> int:
    """Go on with the run as far as it comes; 0 at its end, 2 with no room."""
    from video_end_to_end import CARD

    from trtfuse.io.opening import open_sink, open_source
    from trtfuse.io.sink import Run
    from trtfuse.pool.pool import Pool, Seat
    from trtfuse.pool.slots import Largest, created, lay_out
    from trtfuse.pool.stream import Stream, Threads
    from trtfuse.tasks.table import codec

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # deaths are told there
    runner = HalvingRunner()
    layout = lay_out(
        [Largest(spec=runner.inputs[0], item=(3, *SIZE))],
        [Largest(spec=runner.outputs[0], item=(3, *SIZE))],
        batch=schedule.batch,
        wanted=2 * schedule.workers + 4,
        memory_bytes=64 << 20,
    )
    seats = [Seat(device=f"cpu:{n}", open_runner=runner) for n in range(schedule.workers)]
    writing = WritingOptions(segment=SEGMENT)
    hang_s, start_s = (PATIENT_S, PATIENT_S) if patient else (HANG_S, START_S)
    run = Run(identity={"source": str(source)}, engines=("halving",) * schedule.workers)
    try:
        with (
            open_sink(output, source=source, writing=writing, run=run) as sink,
            created(layout) as ring,
            Pool(seats, ring, batch_s=hang_s, start_s=start_s) as pool,
            Stream(sink.remaining(open_source(source)), codec(CARD), sink, pool, ring) as stream,
        ):
            for outcome in stream.run(Threads(feeders=2, writers=2)):
                sink.commit(outcome)
    except (TrtfuseError, OSError):
        return 2
    return 0


def make_source(folder: Path, kind: str) -> None:
    """Pictures that differ, a video, and what the kind of source has beside."""
    from PIL import Image
    from video_end_to_end import recorded

    folder.mkdir()
    for n in range(PICTURES):
        noise = np.random.default_rng(n).integers(0, POISON, (*SIZE, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{n:03d}.png")
    frames = [np.full((*SIZE, 3), 9 * n, np.uint8) for n in range(FRAMES)]
    recorded(folder / "020-film.mp4", frames, WritingOptions())
    if kind == "broken":
        (folder / "005.png").write_bytes(b"")
        cut = (folder / "033.png").read_bytes()
        (folder / "033.png").write_bytes(cut[: len(cut) // 2])
    if kind == "deadly":
        Image.new("RGB", SIZE[::-1], (POISON,) * 3).save(folder / "012.png")


if __name__ == "__main__":
    main()
