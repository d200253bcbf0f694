"""The worker's side of the pipe: open the runner, say so, answer tasks until the pipe ends.

A task's error is its answer, but a device that is lost is the worker's death: a worker that can
only fail would answer faster than all others, and fail everything.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from trtfuse.core.errors import DeviceLost
from trtfuse.core.flow import Failure, OpenRunner, Pending, Runner, Task, Timing
from trtfuse.pool.messages import Answered, Ready, Refused
from trtfuse.pool.slots import Layout, Ring, attached
from trtfuse.pool.spawn import failure


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """All that a worker needs to know; picklable."""

    device: str
    open_runner: OpenRunner
    layout: Layout
    ring: str
    """Name of the shared memory."""


def work(pipe: Connection, plan: WorkerPlan) -> None:
    """The life of a worker. Returns when the parent closes the pipe."""
    with ExitStack() as stack:
        try:
            ring = attached(plan.layout, plan.ring)
            runner = stack.enter_context(plan.open_runner(plan.device, ring.memory))
        except Exception as error:  # noqa: BLE001 - the worker's border: it crosses as data
            pipe.send(Refused(failure=failure(error)))
            return
        try:
            pipe.send(Ready(lanes=runner.lanes))
            _serve(pipe, ring, runner)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return


def _serve(pipe: Connection, ring: Ring, runner: Runner) -> None:
    """Keep every lane busy; answer in the order of the tasks. Ends with the pipe's EOFError."""
    flying: deque[tuple[Task, Timing, Pending | Failure]] = deque()
    ended_ns = time.monotonic_ns()
    while True:
        while len(flying) < runner.lanes and (not flying or pipe.poll()):
            task = pipe.recv()
            began_ns = time.monotonic_ns()
            taken_up = Timing(began_ns=began_ns, idle_ns=0 if flying else began_ns - ended_ns)
            flying.append((task, taken_up, _launch(ring, runner, task)))
        task, taken_up, pending = flying.popleft()
        outcome = _result(pending)
        ended_ns = time.monotonic_ns()
        if isinstance(outcome, Timing):
            outcome = replace(
                outcome,
                began_ns=taken_up.began_ns,
                ended_ns=ended_ns,
                idle_ns=taken_up.idle_ns,
            )
        pipe.send(Answered(task=task, outcome=outcome))


def _launch(ring: Ring, runner: Runner, task: Task) -> Pending | Failure:
    try:
        inputs = ring.inputs(task.slot, task.start, task.count)
        return runner.launch(inputs, ring.claim(task.slot, task.start))
    except DeviceLost:
        raise
    except Exception as error:  # noqa: BLE001 - the worker's border: it crosses as data
        return failure(error)


def _result(pending: Pending | Failure) -> Timing | Failure:
    if isinstance(pending, Failure):
        return pending
    try:
        return pending.result()
    except DeviceLost:
        raise
    except Exception as error:  # noqa: BLE001 - the worker's border: it crosses as data
        return failure(error)
