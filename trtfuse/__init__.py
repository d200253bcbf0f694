"""From a PyTorch or ONNX image model to every device in the box.

The work is done by `trtfuse.graph.export.export`, `trtfuse.build.build.build` and
`trtfuse.infer.infer`, one frozen options object each; what stands here loads nothing heavy.
"""

from trtfuse.core.card import Card
from trtfuse.core.errors import TrtfuseError
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.core.specs import Precision

__version__ = "0.1.0"

__all__ = [
    "BuildOptions",
    "Card",
    "ExportOptions",
    "InferOptions",
    "Precision",
    "TrtfuseError",
    "__version__",
]
