"""Processing inside the graph: the same answers, from bytes and to bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tests.graph.fusing import answers, exported, filter_net, noise, picture_card
from tests.graph.graphs import conv_net, graph
from tests.graph.rtx import engine_bytes
from trtfuse.build.build import build
from trtfuse.core.card import Card, EmbedTask, ImageTask
from trtfuse.core.errors import CardError, ExportFailed, UnknownName
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.graph.export import export
from trtfuse.graph.model import load, save
from trtfuse.infer import infer

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
    for card in (picture_card(), picture_card(size=(32, 32))):
        with pytest.raises(CardError, match="so there is nothing to resize"):
            exported(tmp_path, filter_net(), card, "pre", "resize")
    fused = exported(tmp_path, filter_net(), picture_card(), "pre").model.card
    assert fused
    with pytest.raises(CardError, match="input 'x' takes bytes already"):
        exported(tmp_path, load(tmp_path / "fused.onnx"), fused, "pre", name="again.onnx")
    assert not (tmp_path / "again.onnx").exists()
