from __future__ import annotations

from dataclasses import replace

import pytest

from tests.graph.graphs import card
from trtfuse.core.card import Card, ClassifyTask, ImageTask, TensorTask
from trtfuse.core.errors import CardError
from trtfuse.core.specs import TensorSpec
from trtfuse.graph.card import check_card
from trtfuse.graph.model import Signature

X = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8, 8))
Y = TensorSpec(name="y", dtype="float32", shape=("batch", 4))
PICTURE = TensorSpec(name="y", dtype="float32", shape=("batch", 16, 16, 3))


def ends(x: TensorSpec = X, *outputs: TensorSpec) -> Signature:
    return Signature(inputs=(x,), outputs=outputs or (Y,))


def image_card(**task: object) -> Card:
    fields = {"output": "y", "layout": "NHWC", "colour": "RGB", "range": (0.0, 1.0)}
    return replace(card(), task=ImageTask(name="image", **{**fields, **task}))  # type: ignore[arg-type]


def test_a_fitting_card_passes() -> None:
    check_card(card(), ends())
    check_card(card(None), ends(replace(X, shape=("batch", 3, "height", "width"))))
    check_card(card(), ends(replace(X, shape=("batch", "c", "height", 8), dtype="float16")))
    check_card(image_card(), ends(X, PICTURE))


@pytest.mark.parametrize(
    ("wrong", "graph", "words"),
    [
        (card(name="image"), ends(), r"input 'image' is not in the graph\. Its inputs: 'x' \["),
        (card(output="z"), ends(), r"output 'z' is not in the graph\. Its outputs: 'y' \[batch, 4"),
        (card(), ends(replace(X, shape=("batch", 3, 8))), r"needs 4 axes \(N, C, H, W\)"),
        (card(), ends(replace(X, shape=("batch", 8, 8, 3))), r"RGB in NCHW, so 3 on axis 1"),
        (card((16, 8)), ends(), r"the card says size \(16, 8\), the graph takes \[batch, 3, 8, 8"),
        (card(None), ends(), r"the card says size dynamic"),
        (card(), ends(replace(X, dtype="int64")), r"is int64, needs to be one of float32, float16"),
        (card(), ends(X, replace(Y, shape=(10, 4))), r"needs 'batch' as its first axis"),
        (card(), ends(X, replace(Y, shape=())), r"has shape \[\], needs 'batch'"),
        (image_card(layout="NCHW"), ends(X, PICTURE), r"output 'y': .*RGB in NCHW, so 3 on axis 1"),
        (image_card(colour="GRAY"), ends(X, PICTURE), r"GRAY in NHWC, so 1 on axis 3"),
        (image_card(), ends(), r"output 'y': has shape \[batch, 4\], needs 4 axes"),
    ],
)
def test_a_card_of_another_model_is_refused(wrong: Card, graph: Signature, words: str) -> None:
    with pytest.raises(CardError, match=words):
        check_card(wrong, graph)


def test_a_second_input_is_refused() -> None:
    two = Signature(inputs=(X, replace(X, name="embedding")), outputs=(Y,))
    with pytest.raises(
        CardError, match=r"describes one input, 'x'; the graph has 'x' .*'embedding'"
    ):
        check_card(card(), two)


def test_a_tensor_card_without_names_needs_the_batch_in_every_output() -> None:
    every = replace(card(), task=TensorTask(name="tensor"))
    check_card(every, ends(X, Y, replace(Y, name="z")))
    with pytest.raises(CardError, match="output 'z'"):
        check_card(every, ends(X, Y, replace(Y, name="z", shape=(7,))))


def test_a_label_is_needed_for_every_score() -> None:
    def classifying(*labels: str) -> Card:
        task = ClassifyTask(name="classify", output="y", labels=labels, scores="logits")
        return replace(card(), task=task)

    check_card(classifying(*"abcd"), ends())
    check_card(classifying(*"ab"), ends(X, replace(Y, shape=("batch", "classes"))))
    with pytest.raises(CardError, match=r"\[batch, 4\], 4 scores an item; the card has 2 labels"):
        check_card(classifying(*"ab"), ends())
