from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from trtfuse.core.errors import BuildFailed, ChildDied, UsageError
from trtfuse.pool.spawn import Call, Work, side_by_side, tell


def double(x: int) -> int:
    return 2 * x


def count() -> None:
    tell(1, 2)
    tell(2, 2)


def refuse() -> None:
    raise BuildFailed("no kernel for node Conv_3")


def die() -> None:
    os._exit(3)


def shout(pipe: Path) -> str:
    pipe.write_text("hello")  # waits until somebody listens
    return ""


def listen(pipe: Path) -> str:
    return pipe.read_text()


def once(function: Callable[..., object], *args: object) -> Work[object]:
    return (yield Call(function, args, "child"))


def test_values_go_back_to_the_work_that_asked() -> None:
    def twice(x: int) -> Work[int]:
        y = yield Call(double, (x,), "child")
        z: int = yield Call(double, (y,), "child")
        return z + 1

    assert side_by_side([twice(1), twice(10)]) == [5, 41]
    assert side_by_side([]) == []


def test_calls_of_two_works_run_at_the_same_time(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # either end blocks until the other is opened
    assert side_by_side([once(listen, pipe), once(shout, pipe)]) == ["hello", ""]


def test_a_call_is_heard_of_when_it_begins_and_ends_and_in_between() -> None:
    heard: list[tuple[str, int, int]] = []
    side_by_side([once(count)], lambda *step: heard.append(step))
    assert heard == [("child", 0, 0), ("child", 1, 2), ("child", 2, 2), ("child", 1, 1)]


def test_a_work_may_go_on_after_a_call_that_failed() -> None:
    def stubborn() -> Work[str]:
        try:
            yield Call(refuse, (), "child")
        except BuildFailed as error:
            y = yield Call(double, (4,), "child")
            return f"{error}, but {y}"
        return ""

    assert side_by_side([stubborn()]) == ["no kernel for node Conv_3, but 8"]


def test_an_error_ends_its_own_work_alone() -> None:
    def wrong(x: int) -> Work[object]:
        if x < 0:
            raise UsageError("before any call")
        return (yield Call(double, (x,), "child"))

    works = [once(refuse), once(die), wrong(-1), once(double, 1)]
    failed, died, early, fine = side_by_side(works)
    assert isinstance(failed, BuildFailed)
    assert isinstance(died, ChildDied)
    assert "exited with code 3" in str(died)
    assert isinstance(early, UsageError)
    assert fine == 2


def test_anything_else_ends_every_child(tmp_path: Path) -> None:
    def interrupted() -> Work[object]:
        yield Call(double, (1,), "child")
        raise KeyboardInterrupt

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([once(listen, pipe), interrupted()])
    spawned = [c for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())]
    assert spawned == []
