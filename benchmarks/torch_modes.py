"""What do PyTorch's own switches give: AMP, channels_last, torch.compile?

    python benchmarks/torch_modes.py [--net unet] [--batch 8]

The same command on a CPU and on a GPU (cuda:0 where PyTorch has one). One net in one process, the
batch on the device, modes in turn. On a CPU the rate of trtfuse's FP32 engine stands beside them,
from a child that takes its turns too; for GPUs, vs_pytorch.py has it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from gpu_engines import NETS, Net, pictures
from gpu_nets import make
from turns import Path as Way
from turns import in_turn, steady, table

from trtfuse.bench import alone
from trtfuse.bench.alone import Turn
from trtfuse.bench.report import conditions, write_result
from trtfuse.core.cores import usable_cores
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.core.specs import Array
from trtfuse.pool.slots import for_engine
from trtfuse.pool.spawn import staying

if TYPE_CHECKING:
    from trtfuse.build.fleet import Fleet

ROOT = Path(__file__).parents[1]
QUESTION = "What do AMP, channels_last and torch.compile give over eager PyTorch?"
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
# What autocast itself takes: CPUs have kernels for bfloat16 alone.
HALF = torch.float16 if ON_GPU else torch.bfloat16
AMP = f"amp {str(HALF).removeprefix('torch.')}"


def main() -> None:
    """Measure, print, write the result file."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--net", choices=list(NETS), default="resnet50")
    arguments.add_argument("--batch", type=int, default=64 if ON_GPU else 2)
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--seconds", type=float, default=0.5)
    arguments.add_argument("--no-compile", action="store_true", help="it needs a C++ compiler")
    given = arguments.parse_args()
    load = os.getloadavg()[0]
    net: Net = NETS[given.net]
    x = pictures(net, given.batch)
    torch.set_num_threads(usable_cores())
    paths = dict(modes(net, torch.from_numpy(x).to(DEVICE), compiled=not given.no_compile))
    with ExitStack() as stack:
        if not ON_GPU:
            paths["trtfuse engine fp32"] = stack.enter_context(engine(net, x))
        with torch.inference_mode():
            rates = in_turn(paths, repeats=given.repeats, seconds=given.seconds)
    rows = table(rates, over="eager")
    name = "torch_modes_gpu.json" if ON_GPU else "torch_modes.json"
    write_result(
        ROOT / "benchmarks" / "results" / name,
        question=QUESTION,
        conditions=conditions(
            net=f"{net.name}, {net.size} x {net.size}, random weights, bytes in",
            device=torch.cuda.get_device_name() if ON_GPU else f"cpu, {usable_cores()} threads",
            batch=given.batch,
            load_before=round(load, 2),
            turns=f"{given.repeats} of {given.seconds} s each, in rotation, after one to warm up",
        ),
        rows=rows,
    )


def modes(net: Net, x: torch.Tensor, *, compiled: bool) -> Iterator[tuple[str, Way]]:
    """Every combination of the switches that is used in earnest."""
    plain, turned = (make(net.name, net.size).to(DEVICE) for _ in range(2))
    for weights in turned.parameters():
        if weights.dim() == 4:  # what Module.to(memory_format=…) does
            weights.data = weights.data.to(memory_format=torch.channels_last)
    yield "eager", way(plain, x)
    yield "channels_last", way(turned, x)
    yield AMP, way(plain, x, amp=True)
    yield f"channels_last, {AMP}", way(turned, x, amp=True)
    if compiled:
        yield "compile", way(torch.compile(plain), x)
        yield f"compile, channels_last, {AMP}", way(torch.compile(turned), x, amp=True)


def way(
    model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, *, amp: bool = False
) -> Way:
    """Batch after batch; a GPU is waited for at the end alone."""

    def run() -> int:
        with torch.autocast(DEVICE.type, dtype=HALF, enabled=amp):
            model(x)
        return len(x)

    return steady(run, torch.cuda.synchronize if ON_GPU else lambda: None)


@contextmanager
def engine(net: Net, x: Array) -> Iterator[Way]:
    """The engine that trtfuse builds of the net, called from one thread in a child."""
    with TemporaryDirectory() as name:
        fleet = built(net, len(x), InferOptions(source=Path(), engines=Path(name)))
        place, manifest = fleet.places[0], fleet.engines[0].manifest
        layout = for_engine(manifest, batch=len(x), wanted=2, memory_bytes=1 << 30)
        args = (place.open_runner, place.device, replace(layout, slots=1), {"x": x})
        with staying(alone.ours, *args, name="engine") as ask:

            def way(seconds: float) -> float:
                took = ask(Turn(batch=len(x), seconds=seconds, least=1)).wall
                return len(took) * len(x) / sum(took) * 1e9

            yield way


def built(net: Net, batch: int, asked: InferOptions) -> Fleet:
    """Export the net, build it for batches up to `batch` below `asked.engines`, man the workers."""
    from trtfuse.build import fleet
    from trtfuse.build.build import build
    from trtfuse.graph.export import export

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


if __name__ == "__main__":
    main()
