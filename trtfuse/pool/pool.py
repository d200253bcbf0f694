"""The pool: one process per device, one queue in the parent, every death an event.

    submit() ──► inbox ─┐                       ┌─► worker 0 (pipe)
                        ├─► dispatcher thread ──┼─► worker 1 (pipe)     pixels stay in the ring
    results ◄───────────┘   PoolState decides   └─► worker 2 (pipe)

The dispatcher waits on all pipes and on the inbox at once, turns what comes into events, and
carries out the actions that `PoolState.handle` answers. It has no policy of its own. A pipe's end
of file is the worker's death: what the worker had answered before is read first, by itself.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from trtfuse.core.errors import PoolError, StartFailed, WorkersLost
from trtfuse.core.events import Hear, WorkerDied, WorkerReady, WorkerRestarted, deaf
from trtfuse.core.flow import Failure, OpenRunner, Result, Task, Timing
from trtfuse.core.report import WorkerRecord, worker_name
from trtfuse.pool import messages, spawn, state
from trtfuse.pool.refusals import no_thread
from trtfuse.pool.slots import Ring
from trtfuse.pool.worker import WorkerPlan, work

log = logging.getLogger(__name__)

# How long workers may take to leave after a clean run: a GPU context takes 1 to 2 s to tear down.
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One worker to be: its device, and what opens its runner there."""

    device: str
    open_runner: OpenRunner


class Pool:
    """Workers that answer tasks. `results` holds one Result per task or part of it, any order.

    A task may come back in parts (see PoolState): together they are all of its items. If the pool
    cannot go on, `results` holds the exception that says why. The pool never puts None there:
    whoever reads `results` in a thread may, to end it.

    A worker that has work and answers nothing for `batch_s` is killed, and dies as any other; so is
    one that was started again and is not ready within `start_s`.
    `hear` is told of workers that get ready, die and are restarted, in whatever thread sees it.

    Enter it to start the workers: raises StartFailed unless every one is ready within `start_s`.
    Leave it, in any way, and no child of it is left.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        ring: Ring,
        *,
        restarts: int = 16,
        start_s: float = 300.0,
        batch_s: float = 300.0,
        hear: Hear = deaf,
    ) -> None:
        self.results: SimpleQueue[Result | BaseException | None] = SimpleQueue()
        self.records = [WorkerRecord(seat.device) for seat in seats]
        self._plans = [
            WorkerPlan(
                device=seat.device,
                open_runner=seat.open_runner,
                layout=ring.layout,
                ring=ring.name,
            )
            for seat in seats
        ]
        self._restarts = restarts
        self._start_s = start_s
        self._batch_s = batch_s
        self._tell = hear
        self._hung: dict[int, str] = {}
        self._children: dict[int, spawn.Child] = {}
        self._wake = os.eventfd(0)
        # Kept for the whole run: `wait` would take in every pipe anew at every message.
        self._listening = selectors.DefaultSelector()
        self._listening.register(self._wake, selectors.EVENT_READ)
        self._inbox: SimpleQueue[Task] = SimpleQueue()
        self._closing = False
        # Whoever enters waits for the first start, before the state is asked for a deadline.
        self._state = state.PoolState(
            starting=dict.fromkeys(range(len(seats)), 0.0),
            restarts=restarts,
            limit_s=batch_s,
            start_limit_s=start_s,
        )
        self._dispatcher = threading.Thread(target=self._dispatch, name="dispatcher", daemon=True)

    def __enter__(self) -> Pool:
        try:
            for worker in range(len(self._plans)):
                self._start(worker)
            for worker, lanes in self._wait_until_ready().items():
                self._state.handle(state.Ready(worker, lanes))
            self._start_dispatcher()
        except BaseException:
            self._close(grace_s=0.0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._dispatcher.join()
        self._close(grace_s=_LEAVE_S if kind is None else 0.0)

    def submit(self, task: Task) -> None:
        """Queue a task whose inputs lie in its slot. Any thread; never blocks."""
        self._inbox.put(task)
        os.eventfd_write(self._wake, 1)

    def _start_dispatcher(self) -> None:
        try:
            self._dispatcher.start()
        except RuntimeError as error:
            raise PoolError(no_thread(error)) from error

    def _start(self, worker: int) -> None:
        plan = self._plans[worker]
        child = spawn.start(work, plan, name=worker_name(worker, plan.device))
        self._children[worker] = child
        if self.records[worker].pid is not None:
            self._tell(WorkerRestarted(worker=child.name, pid=child.pid))
        self.records[worker].pid = child.pid
        self._listening.register(child.pipe, selectors.EVENT_READ, worker)

    def _wait_until_ready(self) -> dict[int, int]:
        """Lanes of every worker, once all are ready."""
        lanes: dict[int, int] = {}
        deadline = time.monotonic() + self._start_s
        while starting := {c.pipe: w for w, c in self._children.items() if w not in lanes}:
            readable = wait(list(starting), max(0.0, deadline - time.monotonic()))
            if not readable:
                names = ", ".join(self._children[w].name for w in starting.values())
                raise StartFailed(f"not ready after {self._start_s:.0f} s: {names}.")
            for pipe in readable:
                assert isinstance(pipe, Connection)
                worker = starting[pipe]
                match self._receive(worker):
                    case messages.Ready(lanes=count):
                        lanes[worker] = count
                        self._tell_ready(worker)
                    case messages.Refused(failure=why):
                        name = self._children[worker].name
                        raise StartFailed(f"{name}: {why.kind}: {why.message}")
                    case None:
                        raise StartFailed(f"{self._bury(worker)} before it was ready.")
        return lanes

    def _dispatch(self) -> None:
        try:
            while not self._closing:
                for heard, _ in self._listening.select(self._patience()):
                    if heard.fd == self._wake:
                        self._take_in()
                    else:
                        self._hear(heard.data)
                self._carry_out(state.Tick())
        except BaseException as error:  # noqa: BLE001 - a thread's end: whoever waits must know
            self.results.put(error)

    def _patience(self) -> float | None:
        """How long nothing needs to happen before somebody hangs; None: nobody can."""
        deadline = self._state.deadline
        return None if isinf(deadline) else max(0.0, deadline - time.monotonic())

    def _take_in(self) -> None:
        os.eventfd_read(self._wake)
        while not self._inbox.empty():
            self._carry_out(state.Submitted(self._inbox.get()))

    def _hear(self, worker: int) -> None:
        match self._receive(worker):
            case messages.Ready(lanes=lanes):
                self._tell_ready(worker)
                self._carry_out(state.Ready(worker, lanes))
            case messages.Answered(task=task, outcome=outcome):
                self._note(worker, task, outcome)
                self._carry_out(state.Answered(worker, task, outcome))
            case messages.Refused(failure=why):
                log.warning("%s: %s: %s", self._children[worker].name, why.kind, why.message)
            case None:
                end = self._bury(worker)
                log.warning("%s", end)
                name = worker_name(worker, self._plans[worker].device)
                self._tell(WorkerDied(worker=name, why=end))
                self._carry_out(state.Died(worker, end))

    def _tell_ready(self, worker: int) -> None:
        child = self._children[worker]
        self._tell(WorkerReady(worker=child.name, pid=child.pid))

    def _receive(self, worker: int) -> object:
        """The worker's next message; None when it is gone. Log records are passed on here."""
        child = self._children[worker]
        try:
            message = child.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None
        if isinstance(message, messages.Logged):
            log.log(message.level, "%s: %s", child.name, message.text)
        return message

    def _bury(self, worker: int) -> str:
        """Collect a dead worker; who it was and how it ended, in words."""
        child = self._children.pop(worker)
        self._listening.unregister(child.pipe)
        child.process.join(1.0)
        end = f"{child.name} {spawn.describe_exit(child.process.exitcode)}"
        if how := self._hung.pop(worker, ""):
            end = f"{child.name} {how} and was ended"
        child.end(grace_s=0.0)
        self.records[worker].deaths.append(end)
        return end

    def _how_it_hung(self, worker: int) -> str:
        if worker in self._state.starting:
            return f"was not ready after {self._start_s:g} s"
        return f"gave no answer for {self._batch_s:g} s"

    def _note(self, worker: int, task: Task, outcome: Timing | Failure) -> None:
        if isinstance(outcome, Timing):
            self.records[worker].note(task.count, outcome)

    def _carry_out(self, event: state.Event) -> None:
        for action in self._state.handle(event, time.monotonic()):
            match action:
                case state.Start(worker):
                    self._start(worker)
                case state.Kill(worker):
                    self._hung[worker] = self._how_it_hung(worker)
                    self._children[worker].process.kill()
                case state.Shrink(worker, items):
                    self.records[worker].most_items = items
                    name = self._children[worker].name
                    log.warning("%s ran out of memory: it gets %d items at most", name, items)
                case state.Send(worker, task):
                    self._send(worker, task)
                case state.Deliver(result):
                    self.results.put(self._checked(result))

    def _send(self, worker: int, task: Task) -> None:
        try:
            self._children[worker].pipe.send(task)
        except (BrokenPipeError, ConnectionResetError):
            # It died a moment ago. Its end of file is waiting to be heard, and gives the task back.
            log.debug("%s is gone", self._children[worker].name)

    def _checked(self, result: Result) -> Result | WorkersLost:
        if isinstance(result.outcome, Failure) and result.outcome.kind == state.LOST:
            deaths = [death for record in self.records for death in record.deaths]
            return WorkersLost(
                f"no worker is left, and all {self._restarts} restarts are used up. Last: "
                f"{'; '.join(deaths[-3:])}."
            )
        return result

    def _close(self, grace_s: float) -> None:
        self._listening.close()
        os.close(self._wake)
        for worker, child in self._children.items():
            self.records[worker].peak_bytes = _peak_bytes(child.pid)
            child.pipe.close()
        deadline = time.monotonic() + grace_s
        for child in self._children.values():
            child.end(grace_s=max(0.0, deadline - time.monotonic()))
        self._children.clear()


def _peak_bytes(pid: int) -> int:
    """Largest resident memory that process `pid` has had, as the kernel counts it (VmHWM)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
