"""PyTorch's side of `scaling.py`: the ONNX file of a network, DataParallel, DDP.

    python benchmarks/scaling_torch.py graph NAME SIZE BATCH WIDTH --onnx FILE
    python benchmarks/scaling_torch.py dp    NAME SIZE BATCH WIDTH --devices N
    torchrun --standalone --nproc_per_node N benchmarks/scaling_torch.py ddp NAME SIZE BATCH WIDTH

Bytes lie in pinned host memory and are copied in, as the pool's are. FP16 in channels_last on GPUs,
FP32 on the CPU. The rates (items/s of all devices, one a round) are the last line, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_engines import rounds
from gpu_nets import make
from scaling_models import Model
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from trtfuse.core.cores import usable_cores

ON_GPU = torch.cuda.is_available()


def main() -> None:
    """Run one step."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("step", choices=["graph", "dp", "ddp"])
    arguments.add_argument("name")
    arguments.add_argument("numbers", type=int, nargs=3, metavar=("SIZE", "BATCH", "WIDTH"))
    arguments.add_argument("--onnx", type=Path)
    arguments.add_argument("--devices", type=int, default=1)
    given = arguments.parse_args()
    model = Model(given.name, *given.numbers)
    if given.step == "graph":
        export(model, given.onnx)
    elif given.step == "dp":
        print(json.dumps(data_parallel(model, given.devices)))
    elif (rates := distributed(model)) is not None:
        print(json.dumps(rates))


def export(model: Model, path: Path) -> None:
    """FP32 with a dynamic batch; opset 17, the newest that TensorRT 8.6 reads."""
    x = torch.from_numpy(model.pictures(2))
    axes = {name: {0: "batch"} for name in "xy"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own making
        torch.onnx.export(
            make(model.name, model.size, model.width),
            (x,),
            str(path),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def data_parallel(model: Model, devices: int) -> list[float]:
    """One process; every batch is cut, and the network copied, for each call."""
    net = DataParallel(_net(model, "cuda:0"), device_ids=list(range(devices)) if ON_GPU else None)
    x = _pinned(model, devices * model.batch)
    return rounds(lambda count: _seconds(net, x, count), len(x))


def distributed(model: Model) -> list[float] | None:
    """One process a device, each with batches of its own. None in all but the first."""
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    rank, ranks = int(os.environ["LOCAL_RANK"]), dist.get_world_size()
    device = f"cuda:{rank}"
    if ON_GPU:
        torch.cuda.set_device(device)
    inner = _net(model, device)
    net = DistributedDataParallel(inner, device_ids=[rank] if ON_GPU else None)
    x = _pinned(model, model.batch)

    def seconds(count: int) -> float:
        dist.barrier()
        # All ranks have to agree on it, or some would do more rounds than others.
        taken = torch.tensor(_seconds(net, x, count), device=device if ON_GPU else "cpu")
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return float(taken)

    rates = rounds(seconds, ranks * model.batch)
    dist.destroy_process_group()
    return rates if rank == 0 else None


def _net(model: Model, device: str) -> nn.Module:
    net = make(model.name, model.size, model.width)
    if not ON_GPU:
        # As the pool's workers: the ranks share the cores.
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        torch.set_num_threads(max(1, usable_cores() // ranks))
        return net
    torch.backends.cudnn.benchmark = True
    half: Any = net.to(device).half()
    whole: nn.Module = half.to(memory_format=torch.channels_last)
    return whole


def _pinned(model: Model, count: int) -> torch.Tensor:
    x = torch.from_numpy(model.pictures(count))
    return x.pin_memory() if ON_GPU else x


def _seconds(net: Callable[..., Any], x: torch.Tensor, count: int) -> float:
    """For `count` batches, answers back in host memory."""
    with torch.no_grad():
        started = time.perf_counter()
        for _ in range(count):
            y = net(x.cuda(non_blocking=True) if ON_GPU else x)
            y.to("cpu", non_blocking=True)
        if ON_GPU:
            torch.cuda.synchronize()
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
