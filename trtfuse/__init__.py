"""From a PyTorch or ONNX image model to every device in the box.

`export`, `build` and `infer` are the commands, one frozen options object each; `open_engine` and
`Pool` run arrays. docs/api.md is the tour. Only what is used is loaded.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trtfuse.core.card import Card
from trtfuse.core.errors import TrtfuseError
from trtfuse.core.options import (
    BuildOptions,
    CalibrationOptions,
    ExportOptions,
    InferOptions,
    WritingOptions,
)
from trtfuse.core.report import RunReport
from trtfuse.core.specs import Precision

if TYPE_CHECKING:
    from trtfuse.api import LoadedEngine, Pool, build, export, infer, open_engine
    from trtfuse.build.build import BuildReport
    from trtfuse.graph.export import ExportReport

__version__ = "0.1.0"

__all__ = [
    "BuildOptions",
    "BuildReport",
    "CalibrationOptions",
    "Card",
    "ExportOptions",
    "ExportReport",
    "InferOptions",
    "LoadedEngine",
    "Pool",
    "Precision",
    "RunReport",
    "TrtfuseError",
    "WritingOptions",
    "__version__",
    "build",
    "export",
    "infer",
    "open_engine",
]

# What brings heavy packages with it, or more of the house, is loaded when it is asked for.
_HOMES = {
    **dict.fromkeys(
        ("LoadedEngine", "Pool", "build", "export", "infer", "open_engine"), "trtfuse.api"
    ),
    "BuildReport": "trtfuse.build.build",
    "ExportReport": "trtfuse.graph.export",
}


class _Package(ModuleType):
    """`build` and `infer` are functions for whoever uses trtfuse, and rooms of the house as well.

    Python sets a room as an attribute of its package when it is first imported; here the function
    of its name stays.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'trtfuse' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
