"""ONNX files of the nets in each precision, for `vs_pytorch.py`. Needs no GPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from gpu_engines import Net, pictures
from gpu_nets import make

from trtfuse.core.specs import Array, Precision
from trtfuse.graph import model as files
from trtfuse.graph import precision as precisions
from trtfuse.graph.tap import Tap

THREADS = 16


def export(net: Net, path: Path) -> None:
    """`net` in FP32 with a dynamic batch; opset 17, the newest that TensorRT 8.6 reads."""
    x = torch.from_numpy(pictures(net, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own making
        torch.onnx.export(
            make(net.name, net.size),
            (x,),
            str(path),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )


def typed(plain: Path, path: Path, precision: Precision, seen: Sequence[Array]) -> str:
    """Write `precision` into the graph, with the largest values over the pictures `seen`."""
    graph = files.load(plain)
    needs = precisions.needs(graph, precision, rest=Precision.FP32)
    names = tuple(dict.fromkeys((*needs.amax, *needs.reach)))
    tap = Tap(graph, names, threads=THREADS)
    largest = dict.fromkeys(names, 0.0)
    for x in seen:
        for name, array in tap({"x": x}).items():
            largest[name] = max(largest[name], float(np.abs(array.astype(np.float64)).max()))
    measured = precisions.Measured(
        amax={name: largest[name] for name in needs.amax},
        reach={name: largest[name] for name in needs.reach},
    )
    written = precisions.write(graph, precision, measured, rest=Precision.FP32)
    files.save(written.model, path)
    return f"{len(written.quantized)} layers quantized, {len(written.kept)} kept"


def answers(plain: Path, x: Array) -> Array:
    """What ONNX Runtime says in FP32, without optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    answer: Array = session.run(["y"], {"x": x})[0]
    return answer
