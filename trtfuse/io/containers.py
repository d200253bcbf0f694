"""Video files as FFmpeg opens them."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import av

FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
"""What a file of this suffix is written as."""


def url(path: Path) -> str:
    """`path` for FFmpeg, which would take "concat:a.mp4" for more than a name."""
    return f"file:{path}"


@cache
def holds(suffix: str, codec: str) -> bool:
    """Whether a file of this suffix takes what the encoder `codec` gives."""
    with av.open(io.BytesIO(), "w", format=FORMATS[suffix]) as container:
        return codec in container.supported_codecs
