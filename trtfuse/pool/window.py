"""How far the ends of a run may be apart: items and bytes taken in and not yet out."""

from __future__ import annotations

import threading


class Window:
    """Room for `items` and `nbytes`; whoever takes waits for it, whoever settles makes it.

    The last item taken may pass the limit of bytes: its size is known only when it is there.
    """

    def __init__(self, *, items: int, nbytes: int) -> None:
        self._items = items
        self._nbytes = nbytes
        self._held_items = 0
        self._held_bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def wait(self, *, mine: int) -> bool:
        """Wait for room. False where none will come: closed, or all that is held is `mine`.

        `mine` is what the caller has taken and not yet sent on: it would wait for itself.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._room or self._held_items <= mine)
            return self._room and not self._closed

    def take(self, nbytes: int) -> None:
        """One more item is held, and so many bytes."""
        with self._changed:
            self._held_items += 1
            self._held_bytes += nbytes

    def settle(self, nbytes: int) -> None:
        """An item that was taken with `nbytes` is out."""
        with self._changed:
            self._held_items -= 1
            self._held_bytes -= nbytes
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def _room(self) -> bool:
        return self._held_items < self._items and self._held_bytes < self._nbytes
