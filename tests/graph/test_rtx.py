"""What `trtfuse export` makes of the models of these tests, TensorRT's parser and builder take.

Each runs in the suite without a GPU. The architectures, precisions, fused and resizing graphs are
built where they are tested.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.cpu import graphs as small
from tests.graph import graphs, precisions
from tests.graph.rtx import engine_bytes
from tests.models import brighter
from trtfuse.core.options import ExportOptions
from trtfuse.graph.export import export

UPSCALE = """
import torch


def net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 12, 3, padding=1), torch.nn.ReLU(), torch.nn.PixelShuffle(2)
    )
"""


@pytest.mark.parametrize(
    "make",
    [
        graphs.conv_net,
        graphs.yolox_head,
        graphs.biased_net,
        precisions.residual_net,
        precisions.skip_net,
        precisions.attention_net,
        precisions.root_mean_square,
        precisions.shared_scale_head,
        precisions.depthwise_net,
    ],
)
def test_an_exported_graph_becomes_an_engine(
    tmp_path: Path, make: Callable[[], onnx.ModelProto]
) -> None:
    source, output = tmp_path / "source.onnx", tmp_path / "output.onnx"
    onnx.save(make(), str(source))
    export(ExportOptions(model=str(source), output=output), lambda _: None)
    assert engine_bytes(output) > 10_000


@pytest.mark.parametrize("make", [small.line, small.line_with_side_file, brighter])
def test_a_graph_that_needs_no_export_becomes_an_engine(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    assert engine_bytes(make(tmp_path / "model.onnx")) > 10_000


def test_the_module_of_the_front_page_becomes_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UPSCALE in (Path(__file__).parents[2] / "README.md").read_text()
    (tmp_path / "upscale_of_the_front_page.py").write_text(UPSCALE)
    monkeypatch.syspath_prepend(str(tmp_path))
    output = tmp_path / "upscale.onnx"
    model = "upscale_of_the_front_page:net"
    export(ExportOptions(model=model, output=output, shapes=((3, 64, 64),)), lambda _: None)
    assert engine_bytes(output) > 10_000
