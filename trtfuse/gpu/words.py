"""What TensorRT says while it works: its log, and how far a build is."""

from __future__ import annotations

import logging
import re
from collections import deque

from trtfuse.core.errors import DeviceError, OutOfMemory

log = logging.getLogger(__name__)

# What TensorRT says in a warning when a plan of another GPU of the same compute capability is
# loaded; from 10 on it adds that this may cause errors or deadlock.
_FOREIGN = "different models of devices"


class Words:
    """What TensorRT has said last: errors, and whether it was of a GPU of another model."""

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=8)
        self._foreign = ""

    def hear(self, severity: str, text: str) -> None:
        """Keep errors and what matters; pass all on. Called from any thread."""
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self._errors.append(text)
        if _FOREIGN in text:
            self._foreign = text
        # Warnings are of things that users cannot change; an error ends in an exception.
        log.log(logging.INFO if severity in ("ERROR", "WARNING") else logging.DEBUG, "%s", text)

    def clear(self) -> None:
        """Forget."""
        self._errors.clear()
        self._foreign = ""

    def failure(self, what: str) -> DeviceError:
        """The error of a call that has failed, with the reason that was heard; it is forgotten."""
        text = f"{what}: {self.errors}."
        self.clear()
        return OutOfMemory(text) if out_of_memory(text) else DeviceError(text)

    @property
    def errors(self) -> str:
        """The last error lines."""
        return "; ".join(self._errors) or "TensorRT gave no reason"

    @property
    def foreign(self) -> str:
        """The warning, if there was one."""
        return self._foreign


class Share:
    """How much of a build is done, from its nested phases; each counts as a step of its parent.

    Called from any thread of the builder, and never raises: an error in there would end the build.
    A phase that is not known (two of one name, of which one is over) changes nothing.
    """

    def __init__(self) -> None:
        self._phases: dict[str, tuple[str | None, int, int]] = {}
        self._most = 0.0

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """A phase of `steps` begins."""
        self._phases[phase] = (parent, steps, 0)

    def step(self, phase: str, step: int) -> float:
        """Step number `step` of the phase is done; the share now, which never falls."""
        if known := self._phases.get(phase):
            parent, steps, _ = known
            self._phases[phase] = (parent, steps, step + 1)
            self._most = max(self._most, self._of(parent, steps, step + 1))
        return self._most

    def finish(self, phase: str) -> None:
        """The phase is over."""
        self._phases.pop(phase, None)

    def _of(self, parent: str | None, steps: int, done: int) -> float:
        inside = done / steps if steps else 1.0
        # Looked up once each: another thread may end a phase meanwhile.
        while parent is not None and (above := self._phases.get(parent)):
            parent, steps, done = above
            inside = min(1.0, (done + inside) / steps) if steps else 1.0
        return min(1.0, inside)


def out_of_memory(text: str) -> bool:
    """Whether TensorRT or CUDA speaks of too little memory on the device."""
    return re.search(r"out ?of ?memory|MemoryAllocation", text, re.IGNORECASE) is not None
