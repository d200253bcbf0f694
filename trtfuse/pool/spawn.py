"""Child processes: started clean, ended with their parent, mourned by name.

Every child is spawned, never forked (CUDA and threads do not survive a fork), and holds the read
end of a pipe whose write end only the parent has. Parent gone, even by SIGKILL, means end of file
there, and the child exits at once: no orphan, and the resource tracker then removes the shared
memory.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from trtfuse.core.errors import ChildDied, TrtfuseError
from trtfuse.core.flow import Failure
from trtfuse.pool.messages import Logged, Returned

T = TypeVar("T")

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Child:
    """A started process and the parent's ends of its two pipes."""

    name: str
    process: SpawnProcess
    pipe: Connection
    """Messages both ways. End of file: the child is gone."""
    lifeline: Connection
    """Held open as long as the child may live; nothing is ever sent."""

    @property
    def pid(self) -> int:
        """Process id, known once started."""
        assert self.process.pid is not None
        return self.process.pid

    def end(self, *, grace_s: float) -> None:
        """Close the pipes, give the child `grace_s` to leave by itself, then kill it. Blocks."""
        self.pipe.close()
        self.process.join(grace_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.lifeline.close()
        self.process.close()


def start(target: Callable[..., None], *args: Any, name: str) -> Child:
    """Start `target(pipe, *args)` in a child called `name`. Everything must be picklable."""
    ours, theirs = _SPAWN.Pipe()
    watched, lifeline = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_child_main, args=(theirs, watched, target, args), name=name)
    with _interrupts_held():
        process.start()
    theirs.close()
    watched.close()
    return Child(name=name, process=process, pipe=ours, lifeline=lifeline)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C in this thread. A child inherits the mask, so that none can hit it half-born."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child_main(
    pipe: Connection, lifeline: Connection, target: Callable[..., None], args: tuple[Any, ...]
) -> None:
    # Ctrl-C reaches the whole group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.enable()
    threading.Thread(target=_leave_with_parent, args=(lifeline,), daemon=True).start()
    logging.getLogger("trtfuse").addHandler(_PipeHandler(pipe))
    target(pipe, *args)


def _leave_with_parent(lifeline: Connection) -> None:
    wait([lifeline])
    os._exit(1)


class _PipeHandler(logging.Handler):
    """Sends log records to the parent, as text."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Send it. A parent that is gone needs no log; the lifeline ends this process."""
        with suppress(OSError):
            self._pipe.send(Logged(level=record.levelno, text=record.getMessage()))


def failure(error: BaseException) -> Failure:
    """An exception as data."""
    text = "".join(traceback.format_exception(error))
    return Failure(kind=type(error).__name__, message=str(error), traceback=text)


def describe_exit(exitcode: int | None) -> str:
    """ "was killed by SIGKILL", "exited with code 3"."""
    if exitcode is None:
        return "closed its pipe"
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"exited with code {exitcode}"


def run_in_child(
    function: Callable[..., T], *args: Any, name: str, timeout_s: float | None = None
) -> T:
    """`function(*args)`, computed in a child process whose crash cannot touch this one.

    Function, arguments and value must be picklable. A TrtfuseError raised there is raised here;
    any other exception, a death, and the deadline become ChildDied.
    """
    child = start(_compute, function, args, name=name)
    grace_s = 0.0
    try:
        answer = _answer(child, timeout_s)
        grace_s = 10.0
    finally:
        child.end(grace_s=grace_s)
    if isinstance(answer.outcome, TrtfuseError):
        raise answer.outcome
    if isinstance(answer.outcome, Failure):
        raise ChildDied(f"{name}: {answer.outcome.kind}: {answer.outcome.message}")
    value: T = answer.outcome
    return value


def _answer(child: Child, timeout_s: float | None) -> Returned:
    while wait([child.pipe], timeout_s):
        try:
            message = child.pipe.recv()
        except (EOFError, ConnectionResetError):
            child.process.join()
            raise ChildDied(f"{child.name} {describe_exit(child.process.exitcode)}.") from None
        if isinstance(message, Returned):
            return message
        logging.getLogger("trtfuse").log(message.level, "%s: %s", child.name, message.text)
    raise ChildDied(f"{child.name} gave no answer within {timeout_s} s and was ended.")


def _compute(pipe: Connection, function: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        pipe.send(Returned(function(*args)))
    except TrtfuseError as error:
        pipe.send(Returned(error))
    except Exception as error:  # noqa: BLE001 - the child's border: it crosses as data
        pipe.send(Returned(failure(error)))
