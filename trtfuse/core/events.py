"""What happens in a run, as data, for whoever wants to hear it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """All workers are ready."""

    model: str
    engine: str
    source: str
    output: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """A worker can take tasks."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied:
    """A worker is gone."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRestarted:
    """A worker is being started again; it will be ready, or die."""

    worker: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFailed:
    """An item has no result."""

    key: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Nothing follows. `error` is empty unless the run broke off."""

    items: int = 0
    failed: int = 0
    seconds: float = 0.0
    verdict: str = ""
    warnings: tuple[str, ...] = ()
    error: str = ""


Event = RunStarted | WorkerReady | WorkerDied | WorkerRestarted | ItemFailed | RunEnded

Hear = Callable[[Event], None]
"""Called in whatever thread an event happens; returns at once and raises nothing."""


def deaf(event: Event) -> None:
    """For who wants to hear nothing."""
