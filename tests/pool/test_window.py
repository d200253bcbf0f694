from __future__ import annotations

import threading

from trtfuse.pool.window import Window


def in_a_thread(window: Window, *, mine: int = 0) -> tuple[threading.Thread, list[bool]]:
    """Someone who waits for room, and what became of it."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(window.wait(mine=mine)))
    thread.start()
    return thread, answers


def test_there_is_room_until_the_items_are_used_up() -> None:
    window = Window(items=2, nbytes=100)
    window.take(0)
    assert window.wait(mine=1)
    window.take(0)
    assert not window.wait(mine=2)


def test_bytes_bound_too_and_the_last_item_may_pass_them() -> None:
    window = Window(items=9, nbytes=100)
    window.take(99)
    assert window.wait(mine=1)
    window.take(50)
    assert not window.wait(mine=2)


def test_one_item_larger_than_everything_is_taken_alone() -> None:
    window = Window(items=9, nbytes=10)
    assert window.wait(mine=0)
    window.take(1000)
    assert not window.wait(mine=1)


def test_who_waits_goes_on_when_an_item_of_another_is_settled() -> None:
    window = Window(items=1, nbytes=10)
    window.take(5)
    thread, answers = in_a_thread(window)
    window.settle(5)
    thread.join()
    assert answers == [True]


def test_closing_ends_every_wait() -> None:
    window = Window(items=1, nbytes=10)
    window.take(5)
    thread, answers = in_a_thread(window)
    window.close()
    thread.join()
    assert answers == [False]
    assert not window.wait(mine=0)
