"""What crosses the pipe between the pool and a worker; a pickled dataclass each, and no pixels.

parent -> worker   Task (core.flow)
worker -> parent   Ready, then Answered for every task; Refused instead of Ready; Logged
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtfuse.core.flow import Failure, Task, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The runner is open and warm. `lanes`: batches it takes before one must be waited for."""

    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The runner could not be opened; the worker ends."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A task is done; its outputs lie in the slot."""

    task: Task
    outcome: Timing | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A log record as text."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Told:
    """How far a child is: `done` of `total`."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The value of `run_in_child`, or the error instead."""

    outcome: Any
