"""Which frames a damaged video has lost. Numbers only, no codec.

Every packet promises a frame at its presentation time; decoders drop what they cannot decode and
say so at most once, later. A promise that is overdue (a later frame has come) after the decoder
has complained is a lost frame. Without a complaint it is none: some packets hold no picture.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """The promised times, in ticks, that no frame has kept yet."""

    _open: list[int] = field(default_factory=list)
    _why: str = ""

    def promise(self, start: int) -> None:
        """A packet says that a frame is shown at `start`."""
        heapq.heappush(self._open, start)

    def complain(self, why: str) -> None:
        """The decoder has met damage."""
        self._why = why

    def came(self, start: int, *, fresh: bool) -> Iterator[tuple[int, str]]:
        """A frame has come: the lost ones before it, and why. `fresh`: it depends on no other."""
        while self._open and self._open[0] <= start:
            promised = heapq.heappop(self._open)
            if promised < start and self._why:
                yield promised, self._why
        if fresh:
            self._why = ""

    def end(self) -> Iterator[tuple[int, str]]:
        """No frame will come any more."""
        while self._open:
            promised = heapq.heappop(self._open)
            if self._why:
                yield promised, self._why
