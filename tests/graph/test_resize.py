"""Resizing inside the graph: a grey level from the host at most, and the rest left to the host."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image
from skimage import data

from tests.graph.fusing import answers, exported, filter_net, noise, picture_card
from tests.graph.graphs import Shape, graph
from tests.graph.rtx import engine_bytes
from trtfuse.build.build import build
from trtfuse.core.card import Card
from trtfuse.core.flow import Picture
from trtfuse.core.options import BuildOptions, InferOptions
from trtfuse.core.specs import Array
from trtfuse.graph.check import Reference
from trtfuse.graph.fuse import fuse
from trtfuse.graph.half import FP16, convert
from trtfuse.graph.host import resizer
from trtfuse.graph.model import load, opset
from trtfuse.infer import infer
from trtfuse.tasks.table import codec

CARDS: dict[str, Card] = {
    "stretch": picture_card(size=(96, 160), resize="stretch"),
    "letterbox": picture_card(size=(128, 160), resize="letterbox", pad=114),
    "crop": picture_card(size=(97, 64), resize="crop"),
    "padded": picture_card(multiple=32, pad=7),
    "stretched to a multiple": picture_card(resize="stretch", multiple=32),
    "pixels": picture_card(
        size=(90, 90), resize="letterbox", layout="NHWC", colour="BGR", out_layout="NHWC"
    ),
}

# Odd ones, halves, quarters, one axis growing while the other shrinks, lines.
SIZES = [
    (192, 320), (96, 160), (384, 640), (61, 97), (480, 501), (40, 333), (333, 40), (5, 9), (1, 1),
    (97, 64), (194, 128),
]  # fmt: skip


def identity(card: Card) -> onnx.ModelProto:
    planes: Shape = ["batch", 3, "h", "w"]
    pixels: Shape = ["batch", "h", "w", 3]
    shape = planes if card.input.layout == "NCHW" else pixels
    return graph([helper.make_node("Identity", ["x"], ["y"])], {"x": shape}, {"y": shape}, {})


def by_host(card: Card, picture: Array) -> Array:
    """What an input without fusing would hold, in levels."""
    reader = codec(card)
    geometry = reader.fit(*picture.shape[:2])
    into = np.empty(reader.shape(geometry), np.float32)
    reader.encode(Picture(pixels=picture), geometry, into)
    return np.rint(into * 255)


@pytest.fixture(scope="module")
def photos() -> list[Array]:
    """Whole ones, up to 1411 x 1411, and one at all of `SIZES`."""
    folder = Path(data.__file__).parent
    names = ("astronaut.png", "chelsea.png", "rocket.jpg", "retina.jpg")
    whole = [np.asarray(Image.open(folder / name).convert("RGB")) for name in names]
    return whole + [cv2.resize(whole[0], (width, height)) for height, width in SIZES]


@pytest.mark.parametrize("name", CARDS)
def test_a_picture_of_any_size_is_what_the_host_makes_of_it(
    tmp_path: Path, photos: list[Array], name: str
) -> None:
    """Photographs and noise: a level apart in one byte of 500 at most.

    What lies half-way, or lies so in the float32 of OpenCV's weights, goes to either side. The
    proof's own witness, which is written apart from the graph, knows the host too.
    """
    card = CARDS[name]
    report = exported(tmp_path, identity(card), card, "pre", "resize")
    left = report.model.card
    assert left
    assert report.model.inputs[0].shape == ("batch", "picture_height", "picture_width", 3)
    assert left.input.resized_by == "graph"
    assert (left.input.size, left.input.resize) == (card.input.size, card.input.resize)
    off = total = 0
    for n, picture in enumerate(
        [*photos, *(noise(*size, seed) for seed, size in enumerate(SIZES))]
    ):
        wanted = by_host(card, picture)
        got = np.rint(answers(tmp_path / "fused.onnx", left, picture)["y"] * 255)
        assert got.shape == wanted.shape, n
        apart = np.abs(got - wanted)
        assert apart.max() <= 1, (n, picture.shape)
        off, total = off + int(apart.sum()), total + apart.size
        (planes,) = resizer(card.input, "y")({"x": picture[None]})["y"]
        planes = planes[::-1] if card.input.colour == "BGR" else planes
        witness = planes.transpose(1, 2, 0) if card.input.layout == "NHWC" else planes
        assert np.abs(witness - wanted).max() <= 1, (n, picture.shape)
    assert off / total < 2e-3


@pytest.mark.parametrize("name", ["stretch", "letterbox", "crop", "padded"])
def test_the_host_and_the_graph_give_pictures_back_alike(
    tmp_path: Path, photos: list[Array], name: str
) -> None:
    """Margins are cut and sizes undone by the host, whoever made them.

    The filter is a mild one: it makes little more of a level than it was.
    """
    card = CARDS[name]
    model = filter_net(strength=0.03)
    exported(tmp_path, model, card, name="plain.onnx")
    left = exported(tmp_path, model, card, "pre", "post", "resize").model.card
    assert left
    for picture in photos[1:3]:
        before = answers(tmp_path / "plain.onnx", card, picture)["answer"].astype(int)
        after = answers(tmp_path / "fused.onnx", left, picture)["answer"]
        assert before.shape == after.shape
        assert np.abs(before - after).max() <= 1


def test_pictures_of_all_sizes_through_the_pool_and_a_graph_that_resizes(tmp_path: Path) -> None:
    card = picture_card(size=(32, 32), resize="letterbox", pad=114)
    (tmp_path / "photos").mkdir()
    sizes = [(24, 32), (64, 20), (24, 32), (9, 50)]
    for n, size in enumerate(sizes):
        Image.fromarray(noise(*size)).save(tmp_path / "photos" / f"{n}.png")
    for name, parts in (("plain", ()), ("fused", ("pre", "post", "resize"))):
        exported(tmp_path, filter_net(), card, *parts, name=f"{name}.onnx")
        open_sizes = ((8, 8), (24, 32), (64, 64)) if parts else None
        engines = tmp_path / f"engines-{name}"
        build(
            BuildOptions(model=tmp_path / f"{name}.onnx", engines=engines, sizes=open_sizes),
            lambda _: None,
        )
        report = infer(
            InferOptions(source=tmp_path / "photos", output=tmp_path / name, engines=engines),
            watch=lambda _: None,
        )
        assert report.failures == ()
    for n in range(len(sizes)):
        before, after = (
            np.asarray(Image.open(tmp_path / name / f"{n}.png")).astype(int)
            for name in ("plain", "fused")
        )
        assert before.shape == after.shape
        assert np.abs(before - after).max() <= 1


@pytest.mark.parametrize("name", CARDS)
def test_tensorrt_builds_a_graph_that_resizes(tmp_path: Path, name: str) -> None:
    card = CARDS[name]
    exported(tmp_path, filter_net(card.input.layout), card, "pre", "post", "resize")
    model = load(tmp_path / "fused.onnx")
    assert (model.ir_version, opset(model)) == (8, 17)
    # TensorRT 8.6 takes bytes at the edge alone, and counts in 32 bits.
    readers = [node.op_type for node in model.graph.node if "x" in node.input]
    assert readers == ["Cast"]
    stored = [numpy_helper.to_array(one) for one in model.graph.initializer]
    assert max(abs(one).max() for one in stored if one.dtype == np.int64) < 1 << 31
    assert engine_bytes(tmp_path / "fused.onnx") > 1000


def test_half_precision_moves_no_pixel() -> None:
    """Places and all of growing are whole numbers; only the means of shrinking are rounded."""
    card = CARDS["letterbox"]
    base = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)])
    base.graph.CopyFrom(identity(card).graph)
    resizing = fuse(base, card, ("pre", "resize")).resizing
    assert resizing
    halved = Reference(convert(resizing, FP16, keep=()))
    for size in SIZES:
        picture = cv2.GaussianBlur(noise(*size), (3, 3), 0)
        (planes,) = halved({"x": picture[None]}).values()
        assert np.abs(planes[0] - by_host(card, picture)).max() <= 1


def test_a_card_without_a_resize_leaves_a_graph_nothing_to_resize() -> None:
    with pytest.raises(ValueError, match="'graph' needs a resize or a multiple"):
        picture_card(resized_by="graph")
    with pytest.raises(ValueError, match="'graph' needs a resize or a multiple"):
        picture_card(resized_by="graph", size=(8, 8))
