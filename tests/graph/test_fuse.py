"""Processing inside the graph: the same answers, from bytes and to bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tests.graph.graphs import Shape, conv_net, graph, weights
from tests.graph.rtx import engine_bytes
from trtfuse.build.build import build
from trtfuse.core import card as cards
from trtfuse.core.card import Card, EmbedTask, ImageTask, InputCard
from trtfuse.core.errors import CardError, ExportFailed, UnknownName
from trtfuse.core.flow import Picture
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.core.specs import Array
from trtfuse.graph.export import ExportReport, export
from trtfuse.graph.model import load, save
from trtfuse.infer import infer
from trtfuse.tasks.table import codec


def filter_net(layout: str = "NCHW", channels: int = 3) -> onnx.ModelProto:
    """A 3x3 filter over pictures of any size; answers roughly in the range of its input."""
    kernel = weights(channels, channels, 3, 3) * 0.15
    kernel[range(channels), range(channels), 1, 1] += 0.6
    planes: list[int | str] = ["batch", channels, "h", "w"]
    pixels: list[int | str] = ["batch", "h", "w", channels]
    shape: Shape = planes if layout == "NCHW" else pixels
    nodes = [helper.make_node("Conv", ["a", "k"], ["b"], name="filter", pads=[1, 1, 1, 1])]
    if layout == "NCHW":
        nodes[0].input[0], nodes[0].output[0] = "x", "y"
    else:
        nodes = [
            helper.make_node("Transpose", ["x"], ["a"], perm=[0, 3, 1, 2]),
            *nodes,
            helper.make_node("Transpose", ["b"], ["y"], perm=[0, 2, 3, 1]),
        ]
    return graph(nodes, {"x": shape}, {"y": shape}, {"k": kernel.astype(np.float32)})


def picture_card(**changes: object) -> Card:
    """An image model's; `changes` are of the input, "out_…" of the task."""
    given: dict[str, object] = {
        "layout": "NCHW",
        "colour": "RGB",
        "range": (0.0, 1.0),
        "size": "dynamic",
        "resize": "none",
    }
    out = {name.removeprefix("out_"): value for name, value in changes.items() if "out_" in name}
    inside = {name: value for name, value in changes.items() if "out_" not in name}
    task = {"layout": "NCHW", "colour": "RGB", "range": (0.0, 1.0)} | out
    return Card(
        input=InputCard(name="x", **given | inside),  # type: ignore[arg-type]
        task=ImageTask(name="image", output="y", **task),  # type: ignore[arg-type]
    )


def exported(
    folder: Path, model: onnx.ModelProto, card: Card, *fuse: str, name: str = "fused.onnx"
) -> ExportReport:
    save(model, folder / "in.onnx")
    (folder / "card.json").write_text(cards.dumps(card))
    options = ExportOptions(
        model=str(folder / "in.onnx"),
        output=folder / name,
        card=folder / "card.json",
        fuse=fuse,
        simplify=False,
    )
    return export(options, lambda _: None)


def answers(path: Path, card: Card, picture: Array) -> dict[str, Array]:
    """What a graph says of one picture, through the codec of its card, as the pool would ask."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    reader = codec(card)
    geometry = reader.fit(*picture.shape[:2])
    (given,) = session.get_inputs()
    dtype = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}[given.type]
    feed = np.empty((1, *reader.shape(geometry)), dtype)
    reader.encode(Picture(pixels=picture), geometry, feed[0])
    outputs = session.run(None, {given.name: feed})
    named = {one.name: rows[0] for one, rows in zip(session.get_outputs(), outputs, strict=True)}
    answer = reader.decode(named, geometry)
    assert answer.file is not None
    return {**named, "answer": getattr(answer.file, "pixels", getattr(answer.file, "array", None))}


def noise(height: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


CARDS: Mapping[str, tuple[str, Card]] = {
    "plain": ("NCHW", picture_card()),
    "swapped": ("NCHW", picture_card(colour="BGR", out_colour="BGR")),
    "swapped once": ("NCHW", picture_card(colour="BGR")),
    "normalised": (
        "NCHW",
        picture_card(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), out_range=(-2.0, 2.5)),
    ),
    "signed": ("NCHW", picture_card(range=(-1.0, 1.0), out_range=(-1.0, 1.0))),
    "bytes as floats": ("NCHW", picture_card(range=(0.0, 255.0), out_range=(0.0, 255.0))),
    "pixels": ("NHWC", picture_card(layout="NHWC", out_layout="NHWC", colour="BGR")),
    "grey": ("NCHW", picture_card(colour="GRAY", out_colour="GRAY")),
}


@pytest.mark.parametrize("name", CARDS)
def test_fused_answers_are_the_hosts(tmp_path: Path, name: str) -> None:
    layout, card = CARDS[name]
    model = filter_net(layout, card.input.channels)
    plain = exported(tmp_path, model, card, name="plain.onnx")
    report = exported(tmp_path, model, card, "pre", "post")
    fused = report.model.card
    assert fused is not None
    colour = "GRAY" if name == "grey" else "RGB"
    left: dict[str, Any] = {"layout": "NHWC", "colour": colour, "range": (0.0, 255.0)}
    assert fused == replace(
        card,
        input=replace(card.input, **left, mean=(), std=()),
        task=ImageTask(name="image", output="y", **left, invalid="y_invalid"),
    )
    assert [one.dtype for one in (*report.model.inputs, *report.model.outputs)] == [
        "uint8",
        "uint8",
        "float32",
    ]
    assert report.model.inputs[0].shape == ("batch", "h", "w", card.input.channels)
    picture = noise(24, 40)
    before = answers(tmp_path / "plain.onnx", card, picture)["answer"].astype(int)
    after = answers(tmp_path / "fused.onnx", fused, picture)
    assert np.abs(before - after["answer"]).max() <= 1
    assert len(np.unique(before)) > 100
    assert plain.model.card == card


def test_a_vector_from_bytes_is_the_vector_from_floats(tmp_path: Path) -> None:
    card = replace(
        picture_card(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), size=(8, 8), resize="stretch"),
        task=EmbedTask(name="embed", output="y", normalize=False),
    )
    model = conv_net("batch")
    exported(tmp_path, model, card, name="plain.onnx")
    report = exported(tmp_path, model, card, "pre", "post")
    assert report.notes[-1] == "fuse post: task 'embed' gives no picture, nothing to do"
    assert report.model.inputs[0].shape == ("batch", 8, 8, 3)
    assert report.model.card
    picture = noise(20, 31)
    before = answers(tmp_path / "plain.onnx", card, picture)["y"]
    after = answers(tmp_path / "fused.onnx", report.model.card, picture)["y"]
    assert np.abs(before - after).max() <= 1e-4 * np.abs(before).max()


@pytest.mark.parametrize("size", [(16, 24), (40, 33), (7, 64), (31, 9), (16, 16)])
def test_a_picture_of_any_size_is_resized_as_the_host_does(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    """Shrinking by area, growing linearly, each axis for itself; OpenCV rounds after each."""
    identity = graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": ["batch", 3, 16, 24]},
        {"y": ["batch", 3, 16, 24]},
        {},
    )
    card = picture_card(size=(16, 24), resize="stretch")
    report = exported(tmp_path, identity, card, "pre", "resize")
    assert report.model.card
    assert report.model.inputs[0].shape == ("batch", "height", "width", 3)
    assert report.model.card.input.resized_by == "graph"
    picture = cv2.GaussianBlur(noise(*size), (3, 3), 0)
    after = answers(tmp_path / "fused.onnx", report.model.card, picture)["y"]
    smaller = (min(24, size[1]), min(16, size[0]))
    wanted = cv2.resize(picture, smaller, interpolation=cv2.INTER_AREA)
    wanted = cv2.resize(wanted, (24, 16), interpolation=cv2.INTER_LINEAR)
    assert np.abs(after.transpose(1, 2, 0) * 255 - wanted).max() <= 1.5


def test_the_host_and_the_graph_give_pictures_back_alike(tmp_path: Path) -> None:
    card = picture_card(size=(32, 32), resize="stretch")
    model = filter_net()
    exported(tmp_path, model, card, name="plain.onnx")
    report = exported(tmp_path, model, card, "pre", "post", "resize")
    assert report.model.card
    picture = cv2.GaussianBlur(noise(50, 40), (5, 5), 0)
    before = answers(tmp_path / "plain.onnx", card, picture)["answer"]
    after = answers(tmp_path / "fused.onnx", report.model.card, picture)["answer"]
    assert before.shape == after.shape == (50, 40, 3)
    assert np.abs(before.astype(int) - after).max() <= 2  # rounded twice by the host


def test_what_bytes_cannot_show_is_counted(tmp_path: Path) -> None:
    """y = x / x: a black pixel is 0 / 0. As a byte it would be black, and nobody would know."""
    model = graph(
        [helper.make_node("Div", ["x", "x"], ["y"])],
        {"x": ["batch", 3, "h", "w"]},
        {"y": ["batch", 3, "h", "w"]},
        {},
    )
    grown = picture_card(range=(1.0, 2.0))
    with pytest.raises(ExportFailed, match="every output is the same"):
        exported(tmp_path, model, grown, "pre", "post")
    model.graph.node[0].input[1] = "s"
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["s"], axes=[1, 2, 3]))
    report = exported(tmp_path, model, picture_card(), "pre", "post")
    assert report.model.card
    session = ort.InferenceSession(str(tmp_path / "fused.onnx"), providers=["CPUExecutionProvider"])
    batch = np.stack([np.zeros((4, 5, 3)), np.full((4, 5, 3), 200)]).astype(np.uint8)
    picture, count = session.run(["y", "y_invalid"], {"x": batch})
    assert count.tolist() == [60, 0]
    assert (picture[1] == 255).all()


def test_a_batch_of_such_pictures_through_the_pool(tmp_path: Path) -> None:
    """The main job with both graphs: a level apart at most, and the same failures."""
    model, card = filter_net(), picture_card(range=(0.0, 255.0), out_range=(0.0, 255.0))
    model.graph.node.append(helper.make_node("Div", ["y", "top"], ["q"]))
    model.graph.node.append(helper.make_node("Mul", ["q", "scale"], ["z"]))
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["top"], axes=[1, 2, 3]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(200, np.float32), "scale"))
    model.graph.output[0].name = "z"
    card = replace(card, task=replace(card.task, output="z"))  # type: ignore[arg-type]
    photos = tmp_path / "photos"
    photos.mkdir()
    for n in range(6):
        Image.fromarray(noise(24, 32, n)).save(photos / f"{n}.png")
    Image.new("RGB", (32, 24)).save(photos / "black.png")
    lines = {}
    for name, fuse in (("plain", ()), ("fused", ("pre", "post"))):
        exported(tmp_path, model, card, *fuse, name=f"{name}.onnx")
        sizes = ((24, 32), (24, 32), (24, 32))
        engines = tmp_path / f"engines-{name}"
        build(
            BuildOptions(model=tmp_path / f"{name}.onnx", engines=engines, sizes=sizes),
            lambda _: None,
        )
        report = infer(
            InferOptions(source=photos, output=tmp_path / name, engines=engines),
            watch=lambda _: None,
        )
        assert [failure.key for failure in report.failures] == ["black.png"]
        text = (tmp_path / name / "results.jsonl").read_text()
        lines[name] = [json.loads(line) for line in text.splitlines()]
    assert lines["plain"] == lines["fused"]
    for n in range(6):
        before, after = (
            np.asarray(Image.open(tmp_path / name / f"{n}.png")).astype(int)
            for name in ("plain", "fused")
        )
        assert np.abs(before - after).max() <= 1
        assert before.std() > 10


def test_pictures_of_all_sizes_through_the_pool_and_a_graph_that_resizes(tmp_path: Path) -> None:
    card = picture_card(size=(32, 32), resize="stretch")
    exported(tmp_path, filter_net(), card, "pre", "post", "resize")
    build(
        BuildOptions(
            model=tmp_path / "fused.onnx",
            engines=tmp_path / "engines",
            sizes=((8, 8), (24, 32), (64, 64)),
        ),
        lambda _: None,
    )
    photos = tmp_path / "photos"
    photos.mkdir()
    sizes = [(24, 32), (64, 20), (24, 32), (9, 50)]
    for n, size in enumerate(sizes):
        Image.fromarray(noise(*size)).save(photos / f"{n}.png")
    report = infer(
        InferOptions(source=photos, output=tmp_path / "out", engines=tmp_path / "engines"),
        watch=lambda _: None,
    )
    assert report.failures == ()
    for n, size in enumerate(sizes):
        assert np.asarray(Image.open(tmp_path / "out" / f"{n}.png")).shape == (*size, 3)


@pytest.mark.parametrize("parts", [("pre", "post"), ("pre", "post", "resize")])
def test_tensorrt_builds_a_fused_graph(tmp_path: Path, parts: tuple[str, ...]) -> None:
    card = picture_card(
        colour="BGR", out_colour="BGR", range=(-1.0, 1.0), size=(48, 48), resize="stretch"
    )
    exported(tmp_path, filter_net(), card, *parts)
    assert engine_bytes(tmp_path / "fused.onnx") > 1000


def test_what_cannot_be_fused_is_refused_before_any_work(tmp_path: Path) -> None:
    save(filter_net(), tmp_path / "in.onnx")
    options = {"model": str(tmp_path / "in.onnx"), "output": tmp_path / "out.onnx"}
    with pytest.raises(CardError, match="--fuse: needs a card, which says"):
        export(ExportOptions(**options, fuse=("pre",)), lambda _: None)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=r"--fuse 'pr': not known\. Did you mean pre"):
        ExportOptions(**options, fuse=("pr",))  # type: ignore[arg-type]
    with pytest.raises(CardError, match="--fuse resize: needs pre too"):
        exported(tmp_path, filter_net(), picture_card(), "resize")
    for card in (picture_card(), picture_card(size=(32, 32), resize="letterbox")):
        with pytest.raises(CardError, match="needs a fixed size and 'stretch'"):
            exported(tmp_path, filter_net(), card, "pre", "resize")
    fused = exported(tmp_path, filter_net(), picture_card(), "pre").model.card
    assert fused
    with pytest.raises(CardError, match="input 'x' takes bytes already"):
        exported(tmp_path, load(tmp_path / "fused.onnx"), fused, "pre", name="again.onnx")
    assert not (tmp_path / "again.onnx").exists()
