"""What people export, small: proven, and parsed and built by TensorRT's own parser and builder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.graph import architectures as nets
from tests.graph.graphs import run, weights
from tests.graph.rtx import engine_bytes
from trtfuse.core.options import ExportOptions, Sizes
from trtfuse.graph.export import export
from trtfuse.graph.model import load

# Factory, its arguments, the sizes of its inputs.
NETS: dict[str, tuple[type[nn.Module], dict[str, object], tuple[Sizes, ...]]] = {
    "ResNet": (nets.ResNet, {"width": 8, "blocks": [1, 1], "classes": 5}, ((3, 48, 64),)),
    "UNet": (nets.UNet, {"width": 8}, ((3, 32, 48),)),
    "ViT": (
        nets.ViT,
        {"size": 32, "patch": 8, "width": 32, "heads": 4, "depth": 2},
        ((3, 32, 32),),
    ),
    "Fusion": (nets.Fusion, {"width": 8, "embedding": 16}, ((3, 32, 40), (16,))),
    "SuperResolution": (nets.SuperResolution, {"width": 8, "depth": 2}, ((3, "height", "width"),)),
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_of_its_kind_is_exported_proven_and_built(tmp_path: Path, name: str) -> None:
    kind, arguments, shapes = NETS[name]
    options = ExportOptions(
        model=f"tests.graph.architectures:{name}",
        output=tmp_path / "net.onnx",
        shapes=shapes,
        arguments=tuple((key, str(value)) for key, value in arguments.items()),
    )
    report = export(options, lambda _: None)
    assert all(step.kept for step in report.steps)
    assert [one.shape[0] for one in (*report.model.inputs, *report.model.outputs)] == ["batch"] * (
        len(shapes) + 1
    )
    feeds = {
        one.name: weights(3, *(24 if isinstance(n, str) else n for n in one.shape[1:]))
        for one in report.model.inputs
    }
    with torch.no_grad():
        net = kind(**arguments).eval()
        expected = net(*map(torch.from_numpy, feeds.values())).numpy()
    (got,) = run(load(tmp_path / "net.onnx"), **feeds).values()
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    assert engine_bytes(tmp_path / "net.onnx") > 1000
