"""Results come in any order and leave in the input's. No thread and no clock in here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Order(Generic[T]):
    """Holds back what is early.

    >>> order = Order()
    >>> list(order.push(1, "b"))
    []
    >>> list(order.push(0, "a"))
    ['a', 'b']
    """

    def __init__(self) -> None:
        self.next = 0
        """The lowest number that has not left."""
        self._early: dict[int, T] = {}

    def push(self, seq: int, value: T) -> Iterator[T]:
        """Take `value` as number `seq`; give back, in order, all that may leave now.

        Raises ValueError if `seq` was pushed before: a result that comes twice is a fault of the
        pool, and must not overwrite the first.
        """
        if seq < self.next or seq in self._early:
            raise ValueError(f"number {seq} came twice")
        self._early[seq] = value
        return self._leaving()

    def _leaving(self) -> Iterator[T]:
        while self.next in self._early:
            value = self._early.pop(self.next)
            self.next += 1
            yield value
