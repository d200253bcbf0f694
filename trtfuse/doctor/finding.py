"""One line of what the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact, and what it means."""

    subject: str
    level: Level
    says: str
    way_out: str = ""
    """A command or a setting, for what is not ok."""


def ok(subject: str, says: str) -> Finding:
    """As it should be."""
    return Finding(subject=subject, level="ok", says=says)


def note(subject: str, says: str, way_out: str = "") -> Finding:
    """Works, and is worth knowing."""
    return Finding(subject=subject, level="note", says=says, way_out=way_out)


def problem(subject: str, says: str, way_out: str) -> Finding:
    """Something will fail, or be much slower than it need be."""
    return Finding(subject=subject, level="problem", says=says, way_out=way_out)
