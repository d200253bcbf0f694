"""trtfuse's engines of the nets in `gpu_nets`, as its commands make them, beside PyTorch."""

from __future__ import annotations

import numpy as np

from trtfuse.build import fleet
from trtfuse.build.build import build
from trtfuse.build.fleet import Fleet
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.core.specs import Array
from trtfuse.graph.export import export

SIZES = {"resnet50": 224, "unet": 256}


def pictures(net: str, count: int) -> Array:
    """uint8 (count, size, size, 3): noise in blocks of 8 x 8."""
    size = SIZES[net]
    dice = np.random.default_rng(0)
    blocks = dice.integers(0, 256, (count, size // 8, size // 8, 3), np.uint8)
    return blocks.repeat(8, axis=1).repeat(8, axis=2)


def built(net: str, batch: int, asked: InferOptions) -> Fleet:
    """Export the net, build it for batches up to `batch` below `asked.engines`, man the workers."""
    size = SIZES[net]
    graph = asked.engines / f"{net}.onnx"
    export(
        ExportOptions(
            model="gpu_nets:make",
            output=graph,
            arguments=(("name", net), ("size", str(size))),
            shapes=((size, size, 3),),
            dtypes=("uint8",),
        ),
        lambda _: None,
    )
    build(
        BuildOptions(
            model=graph,
            batch=(1, batch, batch),
            engines=asked.engines,
            devices=asked.devices,
            gpus=asked.gpus,
        ),
        lambda _: None,
    )
    return fleet.find(asked)
