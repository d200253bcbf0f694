"""How much faster do N devices infer: DataParallel, DistributedDataParallel, trtfuse's pool?

    python benchmarks/torch_parallel.py [--devices 4]

The same command on GPUs (nccl, all there are) and on a CPU (gloo; a device is then an equal part
of the cores, and DataParallel, which is for GPUs, is left out). Rates are from pictures in host
memory to answers in host memory. DistributedDataParallel is started by torchrun, with its defaults.
Claims to be held against: DataParallel 2.1 and DistributedDataParallel 3.6 times one card, with
four; TensorRT 2.8 to 4.3 times DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from gpu_engines import NETS, Net, pictures
from gpu_nets import make
from torch import distributed
from torch.nn.parallel import DataParallel, DistributedDataParallel
from turns import table

from trtfuse.bench.alone import Turn
from trtfuse.bench.pooled import Line
from trtfuse.bench.report import conditions, write_result
from trtfuse.core.cores import usable_cores
from trtfuse.core.options import InferOptions
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import created, for_engine

ROOT = Path(__file__).parents[1]
QUESTION = "How much faster do N devices infer than one, by DP, by DDP, and by trtfuse's pool?"
ON_GPU = torch.cuda.is_available()


def main() -> None:
    """Measure, print, write the result file; in a process of torchrun: be one rank."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    count = torch.cuda.device_count() if ON_GPU else usable_cores()
    arguments.add_argument("--devices", type=int, default=count)
    arguments.add_argument("--net", choices=list(NETS), default="resnet50")
    arguments.add_argument("--batch", type=int, default=64 if ON_GPU else 2)
    arguments.add_argument("--repeats", type=int, default=4, help="in each of two launches")
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--no-trtfuse", action="store_true", help="no TensorRT in this Python")
    arguments.add_argument("--rank-results", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.rank_results:
        be_a_rank(given)
        return
    load = os.getloadavg()[0]
    ways: dict[str, Callable[[], list[float]]] = {"one device": lambda: in_process(given, 1)}
    if ON_GPU:
        ways[f"DataParallel, {given.devices}"] = lambda: in_process(given, given.devices)
    ways[f"DistributedDataParallel, {given.devices}"] = lambda: launched(given)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    with trtfuse(given) as pooled:
        if pooled is not None:
            ways[f"trtfuse pool, {given.devices}"] = pooled
            rates[f"trtfuse pool, {given.devices}"] = []
        for _ in range(2):
            for name, way in ways.items():
                rates[name] += way()
                print(f"{name}: {rates[name][-1]:,.1f} items/s", flush=True)
    rows = table(rates, over="one device")
    name = "torch_parallel_gpu.json" if ON_GPU else "torch_parallel.json"
    write_result(
        ROOT / "benchmarks" / "results" / name,
        question=QUESTION,
        conditions=conditions(
            net=f"{given.net} of {NETS[given.net].size} x {NETS[given.net].size}, fp32, bytes in",
            devices=torch.cuda.get_device_name() if ON_GPU else f"parts of {usable_cores()} cores",
            count=given.devices,
            batch=f"{given.batch} for each device",
            load_before=round(load, 2),
            rounds=f"2 launches of {given.repeats} rounds of {given.seconds} s, after a warm-up",
            claims="4 x RTX 3090: DP 2.1 and DDP 3.6 times one card; TensorRT 2.8 to 4.3 times DDP",
        ),
        rows=rows,
    )


def in_process(given: argparse.Namespace, count: int) -> list[float]:
    """One process: a module on one device, or DataParallel over `count` of them."""
    torch.set_num_threads(usable_cores())
    model: torch.nn.Module = make(given.net, NETS[given.net].size)
    if ON_GPU:
        model = model.cuda()
    if count > 1:
        model = DataParallel(model, device_ids=list(range(count)))
    batch = given.batch * count
    with torch.inference_mode():
        infer = serving(model, NETS[given.net], batch)
        infer()
        return [_rate(infer, batch, given.seconds) for _ in range(given.repeats)]


def serving(model: torch.nn.Module, net: Net, batch: int) -> Callable[[], torch.Tensor]:
    """A call of `model` on one batch of host memory, pinned where there is a GPU."""
    x = torch.from_numpy(pictures(net, batch))
    if not ON_GPU:
        return lambda: model(x)
    pinned = x.pin_memory()
    return lambda: model(pinned.cuda(non_blocking=True)).cpu()


def _rate(infer: Callable[[], torch.Tensor], batch: int, seconds: float) -> float:
    items, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        infer()
        items += batch
    return items / (time.perf_counter() - started)


def launched(given: argparse.Namespace) -> list[float]:
    """What `be_a_rank` measures, in `given.devices` processes of torchrun."""
    with TemporaryDirectory() as folder:
        results = Path(folder) / "rates.json"
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
        own = {
            "net": given.net,
            "batch": given.batch,
            "repeats": given.repeats,
            "seconds": given.seconds,
            "rank-results": results,
        }
        flags = [word for name, value in own.items() for word in (f"--{name}", str(value))]
        threads = str(max(1, usable_cores() // given.devices))
        subprocess.run(
            [sys.executable, *words, str(given.devices), __file__, *flags],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            check=True,
            stderr=subprocess.DEVNULL,
        )
        found: list[float] = json.loads(results.read_text())
        return found


def be_a_rank(given: argparse.Namespace) -> None:
    """One process of DistributedDataParallel: as many batches as each other, between barriers."""
    distributed.init_process_group("nccl" if ON_GPU else "gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    module: torch.nn.Module = make(given.net, NETS[given.net].size)
    if ON_GPU:
        torch.cuda.set_device(rank)
        module = module.cuda()
    model = DistributedDataParallel(module, device_ids=[rank] if ON_GPU else None)
    with torch.inference_mode():
        infer = serving(model, NETS[given.net], given.batch)
        infer()
        batches = torch.tensor(_rate(infer, 1, given.seconds) * given.seconds)
        batches = batches.cuda() if ON_GPU else batches
        distributed.all_reduce(batches, distributed.ReduceOp.MIN)
        each = max(1, int(batches))
        rates = []
        for _ in range(given.repeats):
            distributed.barrier()
            started = time.perf_counter()
            for _ in range(each):
                infer()
            distributed.barrier()
            rates.append(each * ranks * given.batch / (time.perf_counter() - started))
    if rank == 0:
        given.rank_results.write_text(json.dumps(rates))
    distributed.destroy_process_group()


@contextmanager
def trtfuse(given: argparse.Namespace) -> Iterator[Callable[[], list[float]] | None]:
    """A run of our pool with a worker for each device, open; None where it is not wanted."""
    if given.no_trtfuse:
        yield None
        return
    from torch_engine import built

    where: dict[str, Any] = (
        {"gpus": ",".join(map(str, range(given.devices)))}
        if ON_GPU
        else {"devices": f"cpu:{given.devices}"}
    )
    with TemporaryDirectory() as name:
        asked = InferOptions(source=Path(), engines=Path(name), **where)
        fleet = built(NETS[given.net], given.batch, asked)
        layout = for_engine(
            fleet.engines[0].manifest,
            batch=given.batch,
            wanted=sum(place.batches + 1 for place in fleet.places),
            memory_bytes=4 << 30,
        )
        seats = [Seat(device=one.device, open_runner=one.open_runner) for one in fleet.places]
        with created(layout) as ring, Pool(seats, ring) as pool:
            line = Line(pool, ring, {"x": pictures(NETS[given.net], given.batch)})
            turn = Turn(batch=given.batch, seconds=given.seconds, least=1)
            line.rate(turn)
            yield lambda: [line.rate(turn) for _ in range(given.repeats)]


if __name__ == "__main__":
    main()
