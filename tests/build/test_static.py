"""A batch that the graph fixes: built as it is, filled up where items run out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from tests.graph.fusing import noise, picture_card
from tests.graph.graphs import graph, weights
from trtfuse.build.build import build
from trtfuse.core import card as cards
from trtfuse.core.card import EmbedTask
from trtfuse.core.errors import BuildFailed, CardError
from trtfuse.core.options import BuildOptions, CalibrationOptions, ExportOptions, InferOptions
from trtfuse.core.specs import Array, Precision
from trtfuse.graph.check import Reference
from trtfuse.graph.export import export
from trtfuse.graph.model import save
from trtfuse.infer import infer

NO_DATA = CalibrationOptions()

CARD = replace(
    picture_card(size=(8, 8), resize="stretch"),
    task=EmbedTask(name="embed", output="y", normalize=False),
)


def net(batch: int, *extra: onnx.NodeProto) -> onnx.ModelProto:
    """x [batch, 3, 8, 8] -> y [batch, 4]; `extra` makes y of c."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["f"], name="conv"),
        helper.make_node("ReduceMean", ["f"], ["c" if extra else "y"], axes=[2, 3], keepdims=0),
        *extra,
    ]
    return graph(nodes, {"x": [batch, 3, 8, 8]}, {"y": [batch, 4]}, {"w": weights(4, 3, 3, 3)})


def engines(
    folder: Path,
    model: onnx.ModelProto,
    *,
    precision: Precision = Precision.FP32,
    calibration: CalibrationOptions = NO_DATA,
) -> Path:
    """Export, build; the folder of the engines."""
    folder.mkdir()
    save(model, folder / "in.onnx")
    (folder / "card.json").write_text(cards.dumps(CARD))
    exported = ExportOptions(
        model=str(folder / "in.onnx"),
        output=folder / "net.onnx",
        card=folder / "card.json",
        static_batch=True,
    )
    export(exported, lambda _: None)
    options = BuildOptions(
        model=folder / "net.onnx",
        engines=folder / "engines",
        precision=precision,
        calibration=calibration,
    )
    build(options, lambda _: None)
    return folder / "engines"


def vectors(engines: Path, photos: Path, output: Path) -> dict[str, Array]:
    report = infer(
        InferOptions(source=photos, output=output, engines=engines),
        watch=lambda _: None,
    )
    assert (report.items, report.failures) == (10, ())
    return {path.name: np.load(path) for path in output.glob("*.npy")}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten: two and a half batches of four."""
    folder = tmp_path_factory.mktemp("photos")
    for n in range(10):
        Image.fromarray(noise(8, 8, n)).save(folder / f"{n}.png")
    return folder


@pytest.mark.parametrize("batch", [4, 16])
def test_ten_items_in_fixed_batches_are_ten_answers(
    photos: Path, tmp_path: Path, batch: int
) -> None:
    """R07: the last batch is filled up, and nothing of what fills it is kept."""
    pixels = np.stack([noise(8, 8, n) for n in range(10)]).transpose(0, 3, 1, 2)
    (wanted,) = Reference(net(10))({"x": pixels.astype(np.float32) / 255}).values()
    got = vectors(engines(tmp_path / "net", net(batch)), photos, tmp_path / "out")
    assert len(got) == 10
    for n, vector in enumerate(wanted):
        np.testing.assert_allclose(got[f"{n}.png.npy"], vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_a_fixed_batch_is_built_in_other_precisions(
    photos: Path, tmp_path: Path, precision: Precision
) -> None:
    calibration = CalibrationOptions(data=photos, few=True, gate=False)
    made = engines(tmp_path / "net", net(3), precision=precision, calibration=calibration)
    assert len(vectors(made, photos, tmp_path / "out")) == 10


def test_items_that_change_each_others_answers_are_refused(tmp_path: Path) -> None:
    """In a batch of its own choosing such a graph gives an item any answer."""
    mean = helper.make_node("ReduceMean", ["c"], ["m"], axes=[0], keepdims=1)
    mixing: Sequence[onnx.NodeProto] = (mean, helper.make_node("Sub", ["c", "m"], ["y"]))
    with pytest.raises(BuildFailed, match="fixed at 4, and its items may change each other's"):
        engines(tmp_path / "net", net(4, *mixing))
    assert not list((tmp_path / "net" / "engines").rglob("manifest.json"))


def test_an_output_without_the_batch_is_refused_by_its_card(tmp_path: Path) -> None:
    over = helper.make_node("ReduceMax", ["c"], ["y"], axes=[0], keepdims=0)
    with pytest.raises(CardError, match=r"output 'y': has shape \[4\], needs 3"):
        engines(tmp_path / "net", net(3, over))
