"""What a calibration cache of ours is of, in a file beside it: TensorRT's text says nothing of it.

net.cache         tensor names and scales, as TensorRT reads them
net.cache.json    the origin of these scales, and the hash of the text it speaks of
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from trtfuse.calibrate.ranges import Origin, differences
from trtfuse.core.errors import CalibrationError
from trtfuse.core.files import replacing, sha256
from trtfuse.core.record import from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the cache with this hash comes from."""

    cache_sha256: str
    origin: Origin


def write(cache: Path, origin: Origin) -> None:
    """Say beside `cache`, which is there, what it was measured from; atomically."""
    record = Provenance(cache_sha256=sha256(cache), origin=origin)
    with replacing(_beside(cache)) as part:
        part.write_text(json.dumps(to_json(record), indent=1) + "\n", encoding="utf-8")


def read(cache: Path) -> Origin | None:
    """The origin of `cache`; None where nothing beside it speaks of this very text.

    Raises CalibrationError for a file beside it that cannot be read.
    """
    path = _beside(cache)
    if not path.is_file():
        return None
    try:
        record = from_json(
            Provenance, json.loads(path.read_text(encoding="utf-8")), at="provenance"
        )
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"{path}: cannot be read ({error}). Remove it if {cache} is of this model."
        ) from error
    return record.origin if record.cache_sha256 == sha256(cache) else None


def require(cache: Path, found: Origin, wanted: Origin) -> None:
    """Raise CalibrationError, naming what differs, unless `cache` is of this model and card.

    Inputs and method are the cache's own: it stands in their place.
    """
    compared = replace(wanted, recipe=found.recipe, method=found.method)
    if lines := differences(found, compared):
        text = "".join(f"\n  {one}" for one in lines)
        raise CalibrationError(
            f"{cache}: this cache is of something else, by {_beside(cache).name}:{text}\n"
            f"Remove both, and ranges are measured anew; or give the cache of this model."
        )


def _beside(cache: Path) -> Path:
    return cache.with_name(f"{cache.name}.json")
