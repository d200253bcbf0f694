"""The pool's policy, without a process."""

from __future__ import annotations

import random
from collections import Counter
from math import inf

import pytest

from trtfuse.core.flow import Failure, Result, Task, Timing
from trtfuse.pool.state import (
    LOST,
    NOBODY,
    Answered,
    Deliver,
    Died,
    Event,
    Kill,
    PoolState,
    Ready,
    Send,
    Shrink,
    Start,
    Submitted,
    Tick,
)

DONE = Timing(compute_ns=1)


def task(seq: int, *, count: int = 4, start: int = 0, attempt: int = 0) -> Task:
    return Task(seq=seq, slot=seq, count=count, start=start, attempt=attempt)


def ready(*workers: int, restarts: int = 3, lanes: int = 1) -> PoolState:
    state = PoolState(starting=dict.fromkeys(workers, 0.0), restarts=restarts)
    for worker in workers:
        state.handle(Ready(worker, lanes))
    return state


def test_tasks_go_to_the_worker_with_the_most_credit_and_then_wait() -> None:
    state = ready(0, 1)
    sent = [state.handle(Submitted(task(seq))) for seq in range(5)]
    assert sent == [
        [Send(0, task(0))],
        [Send(1, task(1))],
        [Send(0, task(2))],
        [Send(1, task(3))],
        [],
    ]
    assert list(state.waiting) == [task(4)]


def test_an_answer_delivers_and_makes_room_for_the_next() -> None:
    state = ready(0)
    for seq in range(3):
        state.handle(Submitted(task(seq)))
    assert state.handle(Answered(0, task(0), DONE)) == [
        Deliver(Result(task=task(0), worker=0, outcome=DONE)),
        Send(0, task(2)),
    ]


def test_a_worker_of_two_lanes_gets_three_tasks() -> None:
    state = ready(0, lanes=2)
    for seq in range(5):
        state.handle(Submitted(task(seq)))
    assert [t.seq for t in state.flying[0].tasks] == [0, 1, 2]


def test_a_dead_workers_tasks_go_first_and_keep_their_order() -> None:
    state = ready(0, 1)
    for seq in range(5):
        state.handle(Submitted(task(seq)))
    assert state.handle(Died(0, "worker 0 was killed")) == [Start(0)]
    assert list(state.waiting) == [task(0, attempt=1), task(2), task(4)]


def test_only_what_the_dead_worker_was_computing_is_blamed() -> None:
    state = ready(0, lanes=2)
    for seq in range(3):
        state.handle(Submitted(task(seq)))
    state.handle(Died(0, "worker 0 was killed"))
    assert [t.attempt for t in state.waiting] == [1, 1, 0]


def test_a_batch_that_kills_two_workers_is_split_into_its_items() -> None:
    state = ready(0)
    state.handle(Submitted(task(0, count=3)))
    state.handle(Died(0, "first"))
    state.handle(Ready(0, 1))
    state.handle(Died(0, "second"))
    assert list(state.waiting) == [task(0, count=1, start=n) for n in range(3)]


def test_an_item_that_kills_two_workers_alone_is_a_failure_that_names_the_death() -> None:
    state = ready(0)
    state.handle(Submitted(task(0, count=1)))
    state.handle(Died(0, "first"))
    state.handle(Ready(0, 1))
    actions = state.handle(Died(0, "worker 0 (cpu:0) was killed by SIGKILL"))
    (deliver,) = [a for a in actions if isinstance(a, Deliver)]
    assert isinstance(deliver.result.outcome, Failure)
    assert deliver.result.outcome.kind == "WorkerDied"
    assert "worker 0 (cpu:0) was killed by SIGKILL" in deliver.result.outcome.message


def test_an_error_of_a_batch_splits_it_and_an_error_of_an_item_is_delivered() -> None:
    state = ready(0)
    state.handle(Submitted(task(0, count=2)))
    error = Failure(kind="ValueError", message="no")
    assert state.handle(Answered(0, task(0, count=2), error)) == [
        Send(0, task(0, count=1, start=0)),
        Send(0, task(0, count=1, start=1)),
    ]
    assert state.handle(Answered(0, task(0, count=1, start=0), error)) == [
        Deliver(Result(task=task(0, count=1, start=0), worker=0, outcome=error))
    ]


FULL = Failure(kind="OutOfMemory", message="out of memory")


def test_a_worker_that_runs_out_of_memory_gets_half_and_the_others_whole_batches() -> None:
    state = ready(0, 1)
    for seq in range(4):
        state.handle(Submitted(task(seq, count=5)))
    assert state.handle(Answered(0, task(0, count=5), FULL)) == [
        Shrink(0, 2),
        Send(0, task(0, count=2)),
    ]
    # What it had been handed before comes back as it is, and costs it nothing more.
    assert state.handle(Answered(0, task(2, count=5), FULL)) == [Send(0, task(2, count=2))]
    assert state.handle(Answered(1, task(1, count=5), DONE))[1:] == [
        Send(1, task(2, count=3, start=2))
    ]
    assert list(state.waiting) == [task(0, count=3, start=2)]


def test_a_small_batch_is_halved_again_and_an_item_alone_fails() -> None:
    state = ready(0)
    state.handle(Submitted(task(0, count=3)))
    assert state.handle(Answered(0, task(0, count=3), FULL)) == [
        Shrink(0, 1),
        *(Send(0, task(0, count=1, start=n)) for n in range(2)),
    ]
    failed = Result(task=task(0, count=1), worker=0, outcome=FULL)
    assert state.handle(Answered(0, task(0, count=1), FULL))[0] == Deliver(failed)


def test_a_worker_that_is_started_again_keeps_its_limit() -> None:
    state = ready(0)
    state.handle(Submitted(task(0)))
    state.handle(Answered(0, task(0), FULL))
    state.handle(Died(0, "gone"))
    assert state.handle(Ready(0, 1)) == [
        Send(0, task(0, count=2, attempt=1)),
        Send(0, task(0, count=2, start=2)),
    ]


def test_without_restarts_the_others_carry_on() -> None:
    state = ready(0, 1, restarts=0)
    for seq in range(4):
        state.handle(Submitted(task(seq)))
    assert state.handle(Died(0, "gone")) == []
    assert state.handle(Answered(1, task(1), DONE))[1] == Send(1, task(0, attempt=1))


def test_with_no_worker_and_no_restart_left_every_task_is_answered_as_lost() -> None:
    state = ready(0, restarts=0)
    for seq in range(3):
        state.handle(Submitted(task(seq)))
    actions = state.handle(Died(0, "gone")) + state.handle(Submitted(task(3)))
    results = [a.result for a in actions if isinstance(a, Deliver)]
    assert [r.task.seq for r in results] == [0, 1, 2, 3]
    assert all(isinstance(r.outcome, Failure) and r.outcome.kind == LOST for r in results)
    assert {r.worker for r in results} == {NOBODY}


def hanging(limit_s: float = 10.0, *workers: int) -> PoolState:
    state = PoolState(starting=dict.fromkeys(workers, 0.0), restarts=3, limit_s=limit_s)
    for worker in workers:
        state.handle(Ready(worker, 1), 0.0)
    return state


def test_a_worker_that_answers_nothing_for_too_long_is_killed_once() -> None:
    state = hanging(10.0, 0)
    state.handle(Submitted(task(0)), 5.0)
    assert state.deadline == 15.0
    assert state.handle(Tick(), 14.9) == []
    assert state.handle(Tick(), 15.0) == [Kill(0)]
    assert state.handle(Tick(), 99.0) == []
    assert state.deadline == inf
    assert state.handle(Died(0, "hung"), 99.0) == [Start(0)]
    assert list(state.waiting) == [task(0, attempt=1)]


def test_an_answer_gives_the_next_task_its_whole_time() -> None:
    state = hanging(10.0, 0)
    for seq in range(2):
        state.handle(Submitted(task(seq)), 0.0)
    state.handle(Answered(0, task(0), DONE), 9.0)
    assert state.handle(Tick(), 18.9) == []
    assert state.handle(Tick(), 19.0) == [Kill(0)]


def test_a_worker_without_work_may_be_silent_for_ever() -> None:
    state = hanging(10.0, 0)
    assert state.deadline == inf
    assert state.handle(Tick(), 1e9) == []
    state.handle(Submitted(task(0)), 1e9)
    assert state.deadline == 1e9 + 10


def test_a_worker_that_is_being_killed_is_given_nothing() -> None:
    state = hanging(10.0, 0, 1)
    for seq in range(2):
        state.handle(Submitted(task(seq)), float(seq))
    assert state.handle(Tick(), 10.5) == [Kill(0)]
    assert state.handle(Submitted(task(2)), 10.5) == [Send(1, task(2))]
    assert state.handle(Submitted(task(3)), 10.5) == []


def test_an_answer_that_was_on_its_way_when_its_worker_was_killed_counts() -> None:
    state = hanging(10.0, 0)
    state.handle(Submitted(task(0)), 0.0)
    state.handle(Tick(), 10.0)
    delivered = state.handle(Answered(0, task(0), DONE), 10.1)
    assert delivered == [Deliver(Result(task=task(0), worker=0, outcome=DONE))]
    assert state.handle(Died(0, "hung"), 10.2) == [Start(0)]
    assert not state.waiting


def test_a_worker_that_is_not_ready_in_time_after_a_death_is_killed_once() -> None:
    state = PoolState(starting={0: 0.0}, restarts=2, start_limit_s=30.0)
    state.handle(Ready(0, 1), 0.0)
    assert state.deadline == inf
    assert state.handle(Died(0, "first"), 5.0) == [Start(0)]
    assert state.deadline == 35.0
    assert state.handle(Tick(), 34.9) == []
    assert state.handle(Tick(), 35.0) == [Kill(0)]
    assert state.handle(Tick(), 99.0) == []
    assert state.deadline == inf
    assert state.handle(Died(0, "second"), 99.0) == [Start(0)]
    assert state.deadline == 129.0


def test_a_worker_that_got_ready_when_it_was_killed_is_given_nothing() -> None:
    state = PoolState(starting={0: 0.0}, restarts=1, start_limit_s=30.0)
    state.handle(Submitted(task(0)), 0.0)
    assert state.handle(Tick(), 30.0) == [Kill(0)]
    assert state.handle(Ready(0, 1), 30.1) == []
    assert state.handle(Died(0, "hung"), 30.2) == [Start(0)]
    assert state.handle(Ready(0, 1), 31.0) == [Send(0, task(0))]


class History:
    """One random life of a pool: it submits, answers, fails and kills until nothing is left."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        workers = self.dice.randint(1, 4)
        self.state = PoolState(
            starting=dict.fromkeys(range(workers), 0.0),
            restarts=self.dice.choice([0, 1, 3, 20]),
            limit_s=5.0,
            start_limit_s=7.0,
        )
        self.now = 0.0
        self.doomed: set[int] = set()
        self.most = dict.fromkeys(range(workers), 4)
        self.to_submit = [task(seq, count=self.dice.randint(1, 4)) for seq in range(12)]
        self.starting = set(range(workers))
        self.flying: dict[int, list[Task]] = {}
        self.answered: Counter[tuple[int, int]] = Counter()
        self.expected = Counter(
            (t.seq, n) for t in self.to_submit for n in range(t.start, t.start + t.count)
        )

    def live(self) -> Counter[tuple[int, int]]:
        while self.to_submit or self.starting or self.doomed or any(self.flying.values()):
            self.step()
        return self.answered

    def step(self) -> None:
        busy = [worker for worker, tasks in self.flying.items() if tasks]
        choices = ["submit"] * bool(self.to_submit) + ["ready"] * bool(self.starting)
        choices += ["answer"] * (3 * bool(busy)) + ["fail"] * bool(busy) + ["die"] * bool(busy)
        choices += ["full"] * bool(busy)
        choices += ["tick"] * bool(busy or self.starting) + ["end"] * bool(self.doomed)
        self.now += self.dice.choice([0.0, 0.1, 2.0])
        match self.dice.choice(choices):
            case "submit":
                self.do(Submitted(self.to_submit.pop(0)))
            case "ready":
                worker = self.dice.choice(sorted(self.starting))
                self.starting.remove(worker)
                self.flying[worker] = []
                self.do(Ready(worker, self.dice.randint(1, 3)))
            case "tick":
                self.do(Tick())
            case "end":
                self.die(self.dice.choice(sorted(self.doomed)))
            case "die":
                self.die(self.dice.choice(sorted(self.flying)))
            case kind:
                worker = self.dice.choice(busy)
                outcomes: dict[str, Timing | Failure] = {"answer": DONE, "full": FULL}
                outcome = outcomes.get(kind, Failure(kind="E", message=""))
                self.do(Answered(worker, self.flying[worker].pop(0), outcome))

    def die(self, worker: int) -> None:
        self.starting.discard(worker)
        self.flying.pop(worker, None)
        self.doomed.discard(worker)
        self.do(Died(worker, "died"))

    def do(self, event: Event) -> None:
        for action in self.state.handle(event, self.now):
            match action:
                case Kill(worker):
                    assert worker not in self.doomed
                    self.doomed.add(worker)
                case Start(worker):
                    self.starting.add(worker)
                case Shrink(worker, items):
                    assert items < self.most[worker]
                    self.most[worker] = items
                case Send(worker, sent):
                    assert worker not in self.doomed
                    assert 0 < sent.count <= self.most[worker]
                    self.flying[worker].append(sent)
                case Deliver(result):
                    t = result.task
                    self.answered.update((t.seq, n) for n in range(t.start, t.start + t.count))


@pytest.mark.parametrize("block", range(10))
def test_five_thousand_random_histories_answer_every_item_exactly_once(block: int) -> None:
    for seed in range(500 * block, 500 * (block + 1)):
        history = History(seed)
        assert history.live() == history.expected, f"seed {seed}"
        assert not history.state.waiting, f"seed {seed}"
