"""trtfuse's engines of the nets in `gpu_nets`, as its commands make them, beside PyTorch."""

from __future__ import annotations

from gpu_engines import Net

from trtfuse.build import fleet
from trtfuse.build.build import build
from trtfuse.build.fleet import Fleet
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.graph.export import export


def built(net: Net, batch: int, asked: InferOptions) -> Fleet:
    """Export the net, build it for batches up to `batch` below `asked.engines`, man the workers."""
    graph = asked.engines / f"{net.name}.onnx"
    export(
        ExportOptions(
            model="gpu_nets:make",
            output=graph,
            arguments=(("name", net.name), ("size", str(net.size))),
            shapes=((net.size, net.size, 3),),
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
