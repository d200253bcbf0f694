"""The one door of `cpu` to ONNX Runtime: session options, and its errors made ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from trtfuse.core.errors import TrtfuseError

# Its exceptions have no base class of their own; whatever else C++ throws arrives as RuntimeError.
_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    *(
        kind
        for kind in vars(native).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
)

# Threads of a session wait for work by spinning; by default for a time that two sessions, or a
# session and a decoder, take from each other. Measured on 2 cores (Xeon with AVX-512, ONNX Runtime
# 1.32, 2 threads, CenterFace, batch 4 of 256x256), batches/s, best of two runs of 3 s:
#     spinning    alone    beside a JPEG decoder    two sessions
#     default      67        28                       2 x 17
#     none         58        41                       2 x 33
#     10 us        66        43                       2 x 32
# With other load on the machine the default falls further behind.
_SPIN_US = "10"

# Only fatal messages: what matters is in the exception, and a library does not write to a terminal.
_FATAL = 4


def optimizing(save_to: Path) -> onnxruntime.SessionOptions:
    """Options to optimize a graph for this CPU and write it to `save_to`."""
    options = _options(threads=1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(save_to)
    return options


def serving(threads: int) -> onnxruntime.SessionOptions:
    """Options to run a graph that is optimized already, with `threads` threads."""
    options = _options(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    return options


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return options


def load(path: Path, options: onnxruntime.SessionOptions) -> Any:
    """An InferenceSession on the CPU provider alone. Raises what `translating` translates."""
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@contextmanager
def translating(into: type[TrtfuseError], what: str) -> Iterator[None]:
    """Turn an error of ONNX Runtime inside the block into `into`, with its own words."""
    try:
        yield
    except _ERRORS as error:
        raise into(f"{what}: {error}") from error
