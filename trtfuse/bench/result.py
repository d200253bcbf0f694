"""What `trtfuse bench` has measured, as a file: rates, latencies, and what they hold for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtfuse.bench.figures import Latency, Quartiles, quartiles
from trtfuse.core.errors import UsageError
from trtfuse.core.files import replacing
from trtfuse.core.record import Malformed, from_json, to_json

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One path at one batch size."""

    path: str
    """"device", "pool", "naive", "ort" or "pytorch"."""
    batch: int
    items_per_s: tuple[float, ...]
    """One value a repeat."""
    latency: Latency
    """Of one batch with no other under way."""

    @property
    def rate(self) -> Quartiles:
        """Items per second."""
        return quartiles(self.items_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of `trtfuse bench`."""

    schema: int
    model: str
    conditions: Mapping[str, str]
    """What has to be the same for two results to be compared."""
    noted: Mapping[str, str]
    """What is worth knowing, and may differ."""
    cells: tuple[Cell, ...]


def read(path: Path) -> Result:
    """A result file. Raises UsageError with what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and data.get("schema") != SCHEMA:
            raise Malformed(f"schema: needs {SCHEMA}, got {data.get('schema')!r}")
        return from_json(Result, data, at="result")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a result of trtfuse bench --json ({error}).") from error


def write(path: Path, result: Result) -> None:
    """Write it, whole or not at all."""
    with replacing(path) as part:
        part.write_text(json.dumps(to_json(result), indent=2) + "\n", encoding="utf-8")
