"""The network of `gpu_calibrator.py`, its answers and ranges in FP32. Needs no GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_nets import make

from trtfuse.calibrate import ranges
from trtfuse.calibrate.recipe import Example
from trtfuse.calibrate.thresholds import Method
from trtfuse.core.cores import usable_cores
from trtfuse.core.specs import Array
from trtfuse.graph import model, wiring
from trtfuse.graph.precision import Needs
from trtfuse.graph.tap import Tap

METHOD = Method("entropy")


def export(path: Path, x: Array) -> None:
    """ResNet-50 without its bytes: the 8.6 calibrator takes float32. Opset 17, dynamic batch."""
    network: Any = make("resnet50", x.shape[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own making
        torch.onnx.export(
            network.model,
            (torch.from_numpy(x),),
            str(path),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )


def answers(path: Path, x: Array) -> Array:
    """FP32, by ONNX Runtime without optimizations."""
    tap = Tap(model.load(path), ["y"], threads=usable_cores(), optimize=False)
    return np.concatenate([tap({"x": x[n : n + 8]})["y"] for n in range(0, len(x), 8)])


def measured(path: Path, x: Array) -> dict[str, float]:
    """A range for every tensor of the network, as `--calibration-cache` writes it."""
    graph = model.load(path)
    examples = [
        Example(key=str(n), sha256="", load=lambda n=n: {"x": x[n : n + 1]})  # type: ignore[misc]
        for n in range(len(x))
    ]
    found = ranges.measure(
        graph,
        examples,
        Needs(amax=wiring.float_activations(wiring.copy(graph))),
        METHOD,
        ranges.Limits(threads=usable_cores()),
        lambda *_: None,
    )
    return {name: one.amax for name, one in found.items() if one.amax is not None}
