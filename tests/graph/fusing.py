"""Small models with cards, exported with and without their processing inside, and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from tests.graph.graphs import Shape, graph, weights
from trtfuse.core import card as cards
from trtfuse.core.card import Card, ImageTask, InputCard
from trtfuse.core.flow import Picture
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import Array
from trtfuse.graph.export import ExportReport, export
from trtfuse.graph.model import save
from trtfuse.tasks.table import codec


def filter_net(
    layout: str = "NCHW", channels: int = 3, *, strength: float = 0.15
) -> onnx.ModelProto:
    """A 3x3 filter over pictures of any size; answers roughly in the range of its input."""
    kernel = weights(channels, channels, 3, 3) * strength
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
