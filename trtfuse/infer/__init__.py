"""A folder of pictures and videos through the pool; `run.py` is the map of the program."""

from __future__ import annotations

from trtfuse.infer.run import infer

__all__ = ["infer"]
