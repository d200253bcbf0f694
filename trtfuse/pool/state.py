"""The pool as a value: events in, actions out. No process, pipe, clock or log in here.

A worker is starting, or has tasks in flight (`flying`, oldest first), or is gone. Waiting tasks
are one queue. When a worker dies, the tasks it may have been computing (the oldest `lanes`) are
blamed, the others merely go back. A task blamed `DEATHS` times is split into single items, and a
single item blamed `DEATHS` times more is answered as a failure: so one bad item costs itself and
four workers, and never its neighbours. An error (not a death) splits at once.

A worker whose device runs out of memory gets batches of at most half the size from then on: what it
is handed is cut to that, and the rest waits for whoever is free.

A worker that has tasks and answers none of them for `limit_s` hangs, and so does one that is not
ready `start_limit_s` after it was started: it is to be killed, and the rest is its death's. Time
comes in with the events; where nobody says it, it stands still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf, isinf

from trtfuse.core.errors import OutOfMemory
from trtfuse.core.flow import Failure, Result, Task, Timing

# Two: once may be chance (the kernel's out-of-memory killer, an operator), twice is a pattern.
DEATHS = 2

NOBODY = -1
LOST = "WorkersLost"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task came in."""

    task: Task


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker that was starting can take tasks."""

    worker: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker is done with one of its tasks."""

    worker: int
    task: Task
    outcome: Timing | Failure


@dataclass(frozen=True, slots=True)
class Died:
    """A worker is gone. `why` names it and how it ended."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start this worker again."""

    worker: int


@dataclass(frozen=True, slots=True)
class Send:
    """Hand this task to this worker."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class Kill:
    """End this worker, which hangs. Its death will be told as any other."""

    worker: int


@dataclass(frozen=True, slots=True)
class Shrink:
    """This worker's device ran out of memory: it is handed at most `items` at a time now."""

    worker: int
    items: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give this result to whoever waits for it."""

    result: Result


Event = Submitted | Ready | Answered | Died | Tick
Action = Start | Send | Kill | Shrink | Deliver


@dataclass
class Flight:
    """A ready worker: how many tasks it computes at a time, and those it has, oldest first."""

    lanes: int
    tasks: list[Task] = field(default_factory=list)
    since: float = 0.0
    """When it was last heard, or was given something to be heard of."""
    ended: bool = False
    """It is to be killed, and its death has not been told yet."""

    @property
    def credit(self) -> int:
        """Tasks it may still be given: one more than it computes, so that it never waits for us."""
        if self.ended:
            return 0
        return self.lanes + 1 - len(self.tasks)


@dataclass
class PoolState:
    """All that the pool knows.

    `starting` are the workers asked for and not ready, and since when; infinity: to be killed.
    `restarts` is left for the whole run.
    """

    starting: dict[int, float]
    restarts: int
    limit_s: float = inf
    start_limit_s: float = inf
    waiting: deque[Task] = field(default_factory=deque)
    flying: dict[int, Flight] = field(default_factory=dict)
    most: dict[int, int] = field(default_factory=dict)
    """Items that a worker is handed at a time; those that never ran out of memory are not in it."""

    @property
    def deadline(self) -> float:
        """When a Tick is needed next, if nothing else happens; infinity: never."""
        busy = (
            flight.since for flight in self.flying.values() if flight.tasks and not flight.ended
        )
        return min(
            min(busy, default=inf) + self.limit_s,
            min(self.starting.values(), default=inf) + self.start_limit_s,
        )

    def handle(self, event: Event, now: float = 0.0) -> list[Action]:
        """What to do, in this order, now that `event` has happened. `now` in seconds, rising."""
        actions: list[Action] = []
        match event:
            case Submitted(task):
                self.waiting.append(task)
            case Ready(worker, lanes):
                ended = isinf(self.starting.pop(worker))
                self.flying[worker] = Flight(lanes, ended=ended)
            case Answered(worker, task, outcome):
                self.flying[worker].tasks.remove(task)
                self.flying[worker].since = now
                actions += self._settle(worker, task, outcome)
            case Died(worker, why):
                actions += self._bury(worker, why, now)
            case Tick():
                actions += self._end_hung(now)
        actions += self._fill(now)
        return actions

    def _settle(self, worker: int, task: Task, outcome: Timing | Failure) -> Iterator[Action]:
        if isinstance(outcome, Failure) and outcome.kind == OutOfMemory.__name__ and task.count > 1:
            if (half := task.count // 2) < self.most.get(worker, task.count):
                self.most[worker] = half
                yield Shrink(worker, half)
            self.waiting.appendleft(task)
        elif isinstance(outcome, Failure) and task.count > 1:
            self.waiting.extendleft(reversed(_singles(task)))
        else:
            yield Deliver(Result(task=task, worker=worker, outcome=outcome))

    def _bury(self, worker: int, why: str, now: float) -> Iterator[Action]:
        self.starting.pop(worker, None)
        flight = self.flying.pop(worker, Flight(0))
        again: list[Task] = []
        for task in flight.tasks[: flight.lanes]:
            blamed = replace(task, attempt=task.attempt + 1)
            if blamed.attempt < DEATHS:
                again.append(blamed)
            elif task.count > 1:
                again += _singles(task)
            else:
                message = f"{why} while computing it, as another did before"
                yield _give_up(task, worker, Failure(kind="WorkerDied", message=message))
        again += flight.tasks[flight.lanes :]
        self.waiting.extendleft(reversed(again))
        if self.restarts:
            self.restarts -= 1
            self.starting[worker] = now
            yield Start(worker)

    def _end_hung(self, now: float) -> Iterator[Action]:
        for worker, flight in self.flying.items():
            if flight.tasks and not flight.ended and now >= flight.since + self.limit_s:
                flight.ended = True
                yield Kill(worker)
        for worker, since in self.starting.items():
            if now >= since + self.start_limit_s:
                self.starting[worker] = inf
                yield Kill(worker)

    def _fill(self, now: float) -> Iterator[Action]:
        if not self.flying and not self.starting:
            lost = Failure(kind=LOST, message="no worker is left, and no restart")
            while self.waiting:
                yield _give_up(self.waiting.popleft(), NOBODY, lost)
        while self.waiting and (worker := self._freest()) is not None:
            task = self._next(self.most.get(worker))
            flight = self.flying[worker]
            if not flight.tasks:
                flight.since = now
            flight.tasks.append(task)
            yield Send(worker, task)

    def _next(self, most: int | None) -> Task:
        """The first task that waits, or so many items of it; the rest waits on."""
        task = self.waiting.popleft()
        if most is None or task.count <= most:
            return task
        rest = replace(task, start=task.start + most, count=task.count - most)
        self.waiting.appendleft(rest)
        return replace(task, count=most)

    def _freest(self) -> int | None:
        """The worker with the most credit, the lowest number among equals; None if none has any.

        A plain loop: at every event it looks at every worker, and a key function a worker made it
        a quarter of the dispatcher's time with 16 (benchmarks/dispatch.py).
        """
        freest, most = None, 0
        for worker, flight in self.flying.items():
            credit = flight.credit
            if credit > most or (credit == most > 0 and freest is not None and worker < freest):
                freest, most = worker, credit
        return freest


def _singles(task: Task) -> list[Task]:
    """The items of `task`, each a task of its own with a clean record."""
    return [
        replace(task, start=start, count=1, attempt=0)
        for start in range(task.start, task.start + task.count)
    ]


def _give_up(task: Task, worker: int, why: Failure) -> Deliver:
    return Deliver(Result(task=task, worker=worker, outcome=why))
