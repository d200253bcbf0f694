"""The builder of TensorRT-RTX, which needs no GPU: what parses and builds here is no mere ONNX."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import tensorrt_rtx as trt


def build(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The serialized engine; `shapes` are an input's sizes without the batch, which is 1 to 4."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model.SerializeToString()):
        raise AssertionError(
            "\n".join(parser.get_error(n).desc() for n in range(parser.num_errors))
        )
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        profile.set_shape(name, (1, *shape), (2, *shape), (4, *shape))
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise AssertionError("TensorRT-RTX builds no engine of it")
    return bytes(plan)
