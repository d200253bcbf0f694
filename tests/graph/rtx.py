"""TensorRT-RTX's parser and builder, which need no GPU: a graph is what TensorRT takes, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorrt_rtx as trt

from trtfuse.graph.model import describe


class _Said(trt.ILogger):  # type: ignore[misc]
    """Keeps errors, for the message of a failed build."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self.errors.append(message)


def engine_bytes(path: Path, *, batch: int = 4, size: int = 64) -> int:
    """Size of the engine that is built for batches up to `batch`; open sizes are up to `size`.

    Raises RuntimeError with the parser's or the builder's words.
    """
    said = _Said()
    builder = trt.Builder(said)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, said)
    if not parser.parse_from_file(str(path)):
        raise RuntimeError("; ".join(str(parser.get_error(n)) for n in range(parser.num_errors)))
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for tensor in describe(path).inputs:
        low, high = (
            [
                n if isinstance(n, int) else (edge if axis == 0 else rest)
                for axis, n in enumerate(tensor.shape)
            ]
            for edge, rest in ((1, 32), (batch, size))
        )
        profile.set_shape(tensor.name, low, high, high)
    config.add_optimization_profile(profile)
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise RuntimeError("; ".join(said.errors))
    return int(made.nbytes)
