from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import psutil
import pytest

from trtfuse.core.errors import BuildFailed, ChildDied, UsageError
from trtfuse.pool import spawn


def add(a: int, b: int) -> int:
    logging.getLogger("trtfuse.child").warning("adding %d and %d", a, b)
    return a + b


def refuse() -> None:
    raise BuildFailed("no kernel for node Conv_3")


def fail() -> None:
    raise KeyError("x")


def die(code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def sleep() -> None:
    time.sleep(600)


def test_a_value_computed_in_a_child_comes_back_and_so_do_its_log_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert spawn.run_in_child(add, 2, 3, name="adder") == 5
    assert caplog.messages == ["adder: adding 2 and 3"]


def test_our_own_error_keeps_its_class() -> None:
    with pytest.raises(BuildFailed, match="no kernel for node Conv_3"):
        spawn.run_in_child(refuse, name="builder")


def test_any_other_error_comes_back_as_text() -> None:
    with pytest.raises(ChildDied, match="builder: KeyError: 'x'"):
        spawn.run_in_child(fail, name="builder")


@pytest.mark.parametrize(
    ("code", "words"), [(3, "exited with code 3"), (-signal.SIGSEGV, "was killed by SIGSEGV")]
)
def test_a_death_is_an_error_that_says_how(code: int, words: str) -> None:
    with pytest.raises(ChildDied, match=f"builder {words}"):
        spawn.run_in_child(die, code, name="builder")


def test_a_child_that_outstays_its_deadline_is_ended() -> None:
    with pytest.raises(ChildDied, match="no answer within"):
        spawn.run_in_child(sleep, name="sleeper", timeout_s=0.5)
    assert not [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]


def _wait_for_ever(pipe: Connection) -> None:
    pipe.send("up")
    time.sleep(600)


PARENT = """
import os, sys, time
from tests.pool.test_spawn import _wait_for_ever
from trtfuse.pool import spawn
from trtfuse.pool.slots import created
from tests.pool.test_slots import layout
if __name__ == "__main__":
    with created(layout()) as ring:
        child = spawn.start(_wait_for_ever, name="child")
        child.pipe.recv()
        print(child.pid, ring.name, flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["waiting", "stopped"])
def test_when_the_parent_is_killed_its_children_and_its_memory_go_too(stopped: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as stdout:
        pid, name = stdout.readline().split()
    child = psutil.Process(int(pid))
    if stopped:
        child.suspend()
    parent.kill()
    parent.wait()
    child.wait(timeout=10)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/dev/shm/{name}") and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.01)
    assert not os.path.exists(f"/dev/shm/{name}")  # noqa: PTH110


def test_an_interrupt_of_the_group_leaves_children_alone() -> None:
    child = spawn.start(_wait_for_ever, name="child")
    try:
        child.pipe.recv()
        os.kill(child.pid, signal.SIGINT)
        assert not child.pipe.poll(0.2)
        assert child.process.is_alive()
    finally:
        child.end(grace_s=0)


@contextmanager
def counting(start: int) -> Iterator[Callable[[int], int]]:
    total = start

    def add(n: int) -> int:
        nonlocal total
        if n < 0:
            os._exit(3)
        if n == 0:
            raise UsageError("needs more than 0")
        total += n
        return total

    yield add


def test_a_function_that_stays_keeps_what_it_holds_between_calls() -> None:
    with spawn.staying(counting, 10, name="counter") as add:
        assert (add(1), add(2)) == (11, 13)


def test_a_function_that_stays_raises_its_errors_here_and_says_how_it_ended() -> None:
    with (
        pytest.raises(UsageError, match="more than 0"),
        spawn.staying(counting, 0, name="counter") as add,
    ):
        add(0)
    with (
        pytest.raises(ChildDied, match="counter exited with code 3"),
        spawn.staying(counting, 0, name="counter") as add,
    ):
        add(-1)
