"""Child processes: started clean, ended with their parent, mourned by name.

Every child is spawned, never forked (CUDA and threads do not survive a fork), and holds the read
end of a pipe whose write end only the parent has. Parent gone, even by SIGKILL, means end of file
there, and the child exits at once: no orphan, and the resource tracker then removes the shared
memory. A child that is stopped, or stuck in a call that holds the interpreter, cannot exit, so the
kernel is asked to kill it at that end of file (F_SETSIG in fcntl(2), on the pipe itself).
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import multiprocessing
import os
import resource
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from trtfuse.core.errors import ChildDied, StartFailed, TrtfuseError
from trtfuse.core.flow import Failure
from trtfuse.pool.guard import UNGUARDED, UNGUARDED_CODE
from trtfuse.pool.messages import Logged, Returned, Told
from trtfuse.pool.refusals import refused

T = TypeVar("T")

_SPAWN = multiprocessing.get_context("spawn")

# How long a child that has answered may take to leave: a GPU context takes 1 to 2 s to tear down.
_LEAVE_S = 10.0


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
    """Start `target(pipe, *args)` in a child called `name`. Everything must be picklable.

    Raises StartFailed where the system refuses it.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            pipe, their_pipe = _SPAWN.Pipe()
            ours.callback(pipe.close)
            theirs.callback(their_pipe.close)
            watched, lifeline = _SPAWN.Pipe(duplex=False)
            ours.callback(lifeline.close)
            theirs.callback(watched.close)
            arguments = (their_pipe, watched, target, args)
            process = _SPAWN.Process(target=_child_main, args=arguments, name=name)
            with _interrupts_held():
                process.start()
            _kill_at_end_of_file(watched, process)
        except OSError as error:
            raise StartFailed(refused(f"{name} cannot be started", error)) from error
        ours.pop_all()
        return Child(name=name, process=process, pipe=pipe, lifeline=lifeline)


def _kill_at_end_of_file(pipe: Connection, process: SpawnProcess) -> None:
    """Have the kernel kill `process` when nobody can write to `pipe` any more.

    This is a matter of the pipe's open file, which the child has inherited: it holds when this
    process has closed its descriptor, and when it is gone.
    """
    assert process.pid is not None
    fcntl.fcntl(pipe, fcntl.F_SETOWN, process.pid)
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


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


def tell(done: int, total: int) -> None:
    """In a child, from any thread: how far it is. In a process that is none, nobody hears it."""
    for handler in logging.getLogger("trtfuse").handlers:
        if isinstance(handler, _PipeHandler):
            handler.send(Told(done, total))


def _leave_with_parent(lifeline: Connection) -> None:
    wait([lifeline])
    os._exit(1)


class _PipeHandler(logging.Handler):
    """Sends log records to the parent, as text, and how far the child is."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        """Send it. `logging` holds the lock meanwhile."""
        self._send(Logged(level=record.levelno, text=record.getMessage()))

    def send(self, message: Told) -> None:
        """Send it, whole, beside the records of other threads."""
        self.acquire()
        try:
            self._send(message)
        finally:
            self.release()

    def _send(self, message: Logged | Told) -> None:
        # A parent that is gone needs to hear nothing; the lifeline ends this process.
        with suppress(OSError):
            self._pipe.send(message)


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
    if exitcode == UNGUARDED_CODE:
        return f"could not start: trtfuse {UNGUARDED}".rstrip(".")
    return f"exited with code {exitcode}"


def run_in_child(
    function: Callable[..., T],
    *args: Any,
    name: str,
    timeout_s: float | None = None,
    memory_bytes: int | None = None,
) -> T:
    """`function(*args)`, computed in a child process whose crash cannot touch this one.

    Function, arguments and value must be picklable; `memory_bytes` bounds what the child may map.
    A TrtfuseError raised there is raised here; any other exception, a death, and the deadline
    become ChildDied.
    """
    if memory_bytes is not None:
        function, args = _within, (memory_bytes, function, *args)
    child = start(_compute, function, args, name=name)
    grace_s = 0.0
    try:
        answer = _answer(child, timeout_s)
        grace_s = _LEAVE_S
    finally:
        child.end(grace_s=grace_s)
    value: T = _value(child, answer)
    return value


@contextmanager
def staying(
    opens: Callable[..., AbstractContextManager[Callable[[Any], T]]], *args: Any, name: str
) -> Iterator[Callable[[Any], T]]:
    """The function that `opens(*args)` gives, open in a child as long as the block lasts.

    What is yielded sends its argument there and waits for the value. Picklable and raising as
    `run_in_child`; after an error the child is gone.
    """
    child = start(_stay, opens, args, name=name)
    grace_s = 0.0

    def ask(question: Any) -> T:
        # Gone already: its end of file says why.
        with suppress(OSError):
            child.pipe.send(question)
        value: T = _value(child, _answer(child, None))
        return value

    try:
        _value(child, _answer(child, None))
        yield ask
        grace_s = _LEAVE_S
    finally:
        child.end(grace_s=grace_s)


def _stay(
    pipe: Connection,
    opens: Callable[..., AbstractContextManager[Callable[[Any], object]]],
    args: tuple[Any, ...],
) -> None:
    try:
        with opens(*args) as function:
            pipe.send(Returned(None))
            while (question := _received(pipe)) is not _END:
                pipe.send(Returned(function(question)))
    except TrtfuseError as error:
        pipe.send(Returned(error))
    except Exception as error:  # noqa: BLE001 - the child's border: it crosses as data
        pipe.send(Returned(failure(error)))


_END = object()


def _received(pipe: Connection) -> object:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return _END


def limit(what: int, most: int) -> None:
    """Let an allocation of this process beyond `most` fail, before the system kills the process.

    `what` is one of `resource`'s limits.
    """
    _, hard = resource.getrlimit(what)
    bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (bounded, hard))


def _within(memory_bytes: int, function: Callable[..., T], *args: Any) -> T:
    limit(resource.RLIMIT_AS, memory_bytes)
    return function(*args)


@dataclass(frozen=True, slots=True)
class Call:
    """`function(*args)`, to be computed in a child called `name`. All of it must be picklable."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str


Work = Generator[Call, Any, T]
"""Yields calls, one after the other, and gets the value of each back."""


Steps = Callable[[str, int, int], None]
"""(a call's name, how far it is, of how much); of 0: it is not known."""


def side_by_side(
    works: Sequence[Work[T]], steps: Steps = lambda *_: None
) -> list[T | TrtfuseError]:
    """Run every work to its end, the calls of different works at the same time.

    `steps` hears when a call begins and ends, and what it tells in between.

    A call's error is raised at its `yield`, as `run_in_child` would raise it. A TrtfuseError that
    leaves a work ends that work alone and stands in its place; any other exception, Ctrl-C too,
    ends every child and goes on.
    """
    ends: dict[int, T | TrtfuseError] = {}
    flying: dict[Any, tuple[int, Child]] = {}

    def go_on(number: int, resume: Callable[[], Call]) -> None:
        try:
            call = resume()
        except StopIteration as end:
            ends[number] = end.value
        except TrtfuseError as error:
            ends[number] = error
        else:
            child = start(_compute, call.function, call.args, name=call.name)
            flying[child.pipe] = number, child
            steps(child.name, 0, 0)

    try:
        for number, work in enumerate(works):
            go_on(number, partial(next, work))
        while flying:
            for pipe in wait(list(flying)):
                number, child = flying[pipe]
                if resume := _resume(works[number], child, steps):
                    child.end(grace_s=_LEAVE_S)
                    del flying[pipe]
                    steps(child.name, 1, 1)
                    go_on(number, resume)
    finally:
        for _, child in flying.values():
            child.end(grace_s=0.0)
    return [ends[number] for number in range(len(works))]


def _resume(work: Work[T], child: Child, steps: Steps) -> Callable[[], Call] | None:
    """How the work goes on with what the child says; None: it has not answered yet."""
    try:
        answer = _heard(child, steps)
        return None if answer is None else partial(work.send, _value(child, answer))
    except TrtfuseError as error:
        return partial(work.throw, error)


def _answer(child: Child, timeout_s: float | None) -> Returned:
    while wait([child.pipe], timeout_s):
        if answer := _heard(child):
            return answer
    raise ChildDied(f"{child.name} gave no answer within {timeout_s} s and was ended.")


def _heard(child: Child, steps: Steps = lambda *_: None) -> Returned | None:
    """The child's answer, if that is its next message; others are passed on.

    Raises ChildDied at its end.
    """
    try:
        message = child.pipe.recv()
    except (EOFError, ConnectionResetError):
        child.process.join()
        if child.process.exitcode == UNGUARDED_CODE:
            raise StartFailed(f"{child.name}: trtfuse {UNGUARDED}") from None
        raise ChildDied(f"{child.name} {describe_exit(child.process.exitcode)}.") from None
    if isinstance(message, Returned):
        return message
    if isinstance(message, Told):
        steps(child.name, message.done, message.total)
    else:
        logging.getLogger("trtfuse").log(message.level, "%s: %s", child.name, message.text)
    return None


def _value(child: Child, answer: Returned) -> Any:
    """What the child computed. Raises what it raised."""
    if isinstance(answer.outcome, TrtfuseError):
        raise answer.outcome
    if isinstance(answer.outcome, Failure):
        raise ChildDied(f"{child.name}: {answer.outcome.kind}: {answer.outcome.message}")
    return answer.outcome


def _compute(pipe: Connection, function: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        pipe.send(Returned(function(*args)))
    except TrtfuseError as error:
        pipe.send(Returned(error))
    except Exception as error:  # noqa: BLE001 - the child's border: it crosses as data
        pipe.send(Returned(failure(error)))
