"""A result file: one question, its conditions, its rows. Numbers without conditions are refused."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from trtfuse.bench.machine import cpu_name, governor
from trtfuse.core.files import replacing

_PACKAGES = ("trtfuse", "numpy", "onnx", "onnxruntime", "tensorrt", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Repeated measurements of one thing."""

    median: float
    low: float
    high: float
    repeats: int


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest."""
    return Spread(median=median(values), low=min(values), high=max(values), repeats=len(values))


def conditions(**more: Any) -> dict[str, Any]:
    """Host, versions and date; `more` is what the benchmark adds (batch, shapes, repeats, …)."""
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "cpu": cpu_name(),
        "governor": governor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        **more,
    }


def write_result(path: Path, *, question: str, conditions: Mapping[str, Any], rows: Any) -> None:
    """Write the result file, atomically. Raises ValueError for empty conditions."""
    if not conditions:
        raise ValueError(f"{path}: a result needs its conditions")
    document = {"question": question, "conditions": conditions, "rows": rows}
    with replacing(path) as part:
        part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
