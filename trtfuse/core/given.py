"""What a caller gave an options object, made what it is to be, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from trtfuse.core.card import Card
from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.specs import Precision


def settle(options: Any) -> None:
    """Make of texts and mappings what the fields hold, in place.

    Paths and precisions of texts, a card and pairs of mappings. Raises `UnknownName`, `CardError`.
    """
    for one in fields(options):
        value = getattr(options, one.name)
        if (made := _made(one.name, value, kind=str(one.type))) is not value:
            object.__setattr__(options, one.name, made)


def _made(name: str, value: Any, *, kind: str) -> Any:
    if isinstance(value, str) and kind.startswith("Path"):
        return Path(value)
    if isinstance(value, str) and kind.startswith("Precision") and f'"{value}"' not in kind:
        known = [precision.value for precision in Precision]
        if value not in known:
            raise UnknownName.among(name, value, known)
        return Precision(value)
    if isinstance(value, Mapping) and "Card" in kind:
        return Card.of(value)
    if isinstance(value, Mapping) and kind.startswith("tuple[tuple[str, str]"):
        return tuple((key, str(text)) for key, text in value.items())
    return value


def require_three(name: str, value: Any, *, example: str) -> None:
    """Raise `UsageError` unless `value` is None, or a least, a best and a largest one."""
    if value is not None and (not isinstance(value, tuple | list) or len(value) != 3):
        raise UsageError(f"{name}={value!r}: needs the least, best and largest, as {example}.")


def check_choice(devices: str | None, gpus: str | None) -> None:
    """Raise `UsageError` where both choose."""
    if devices is not None and gpus is not None:
        raise UsageError(f"--gpus {gpus} and --devices {devices}: both choose. Leave one out.")
