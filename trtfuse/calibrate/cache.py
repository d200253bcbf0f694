"""TensorRT's own calibration cache: text, read and written.

    TRT-8601-EntropyCalibration2
    input: 3c010a14
    conv1: 3d2f1bca

A line is a tensor's name and its scale, amax / 127, as the big-endian bits of a float32. TensorRT
checks nothing but the names; whoever has such a file vouches for its model and its inputs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtfuse.calibrate.thresholds import Method
from trtfuse.core.errors import CalibrationError
from trtfuse.core.files import replacing

_LEVELS = 127
_HEADER = re.compile(r"TRT-(\d+)-(EntropyCalibration2?|MinMaxCalibration|LegacyCalibration)")
# The release whose caches ours look like: later ones that still read caches read it too.
_VERSION = "8601"


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache file. `amax` is what becomes level 127, by tensor."""

    header: str
    amax: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """How a cache and a graph agree."""

    amax: Mapping[str, float]
    """Of the tensors that both know."""
    missing: tuple[str, ...]
    """Tensors that the graph needs and the cache has not: their layers are not quantized."""
    unknown: tuple[str, ...]
    """Tensors of the cache that the graph has not."""


def read(path: Path) -> Cache:
    """Read a cache. Raises CalibrationError, with the line, where it is none."""
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CalibrationError(f"{path}: not a calibration cache ({error}).") from error
    if not _HEADER.fullmatch(header.strip()):
        raise CalibrationError(
            f"{path}: not a calibration cache: its first line is {header[:60]!r}, "
            f"needs to be such as 'TRT-8601-EntropyCalibration2'."
        )
    filled = [(number, line) for number, line in enumerate(lines, 2) if line.strip()]
    return Cache(header.strip(), dict(_entry(path, number, line) for number, line in filled))


def write(path: Path, amax: Mapping[str, float], method: Method) -> None:
    """Write a cache, atomically. Entropy and minmax are named as TensorRT names them.

    TensorRT has no name for the other methods; what it does with a cache does not depend on it.
    """
    kind = "MinMaxCalibration" if method.name == "minmax" else "EntropyCalibration2"
    lines = [f"TRT-{_VERSION}-{kind}"]
    lines += [f"{name}: {struct.pack('>f', one / _LEVELS).hex()}" for name, one in amax.items()]
    with replacing(path) as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fit(cache: Cache, *, needed: Collection[str], known: Collection[str]) -> Fit:
    """What of `cache` serves a graph with the tensors `known` that needs ranges of `needed`.

    Raises CalibrationError where it serves none of them: it is of another model.
    """
    found = {name: cache.amax[name] for name in needed if cache.amax.get(name, 0) > 0}
    if not found:
        raise CalibrationError(
            f"calibration cache: has {len(cache.amax)} tensors ({_some(list(cache.amax))}), and "
            f"none of the {len(needed)} that this model needs ({_some(list(needed))}). "
            f"Names come from the export: use the cache of this very file."
        )
    return Fit(
        found,
        missing=tuple(name for name in needed if name not in found),
        unknown=tuple(name for name in cache.amax if name not in known),
    )


def _entry(path: Path, number: int, line: str) -> tuple[str, float]:
    name, colon, digits = line.rstrip().rpartition(": ")
    # TensorRT leaves leading zeros out.
    if not colon or not re.fullmatch(r"[0-9a-fA-F]{1,8}", digits):
        raise CalibrationError(f"{path}, line {number}: {line[:60]!r} is not 'tensor: hex'.")
    (scale,) = struct.unpack(">f", bytes.fromhex(digits.rjust(8, "0")))
    if not 0 <= scale < float("inf"):
        raise CalibrationError(f"{path}, line {number}: {name!r} has the scale {scale}.")
    return name, scale * _LEVELS


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
