from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtfuse.core import card as cards
from trtfuse.core.errors import CardError

FACES = Path(__file__).parents[2] / "examples" / "faces" / "card.json"

CARD: dict[str, Any] = {
    "input": {
        "name": "x",
        "layout": "NCHW",
        "colour": "RGB",
        "range": [0, 1],
        "size": [224, 224],
        "resize": "crop",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
    "task": {"name": "classify", "output": "y", "labels": ["a", "b"], "scores": "logits"},
}
TASKS: list[dict[str, Any]] = [
    CARD["task"],
    {"name": "image", "output": "y", "layout": "NHWC", "colour": "BGR", "range": [-1, 1]},
    {"name": "embed", "output": "y", "normalize": True},
    {"name": "tensor"},
    {"name": "tensor", "outputs": ["y", "z"]},
]


@pytest.mark.parametrize("task", TASKS)
def test_a_card_survives_being_written(task: dict[str, Any]) -> None:
    card = cards.parse({**CARD, "task": task}, source="test")
    assert cards.loads(cards.dumps(card), source="test") == card


def test_the_demos_card_names_the_outputs_of_its_detector() -> None:
    card = cards.loads(FACES.read_text(), source=str(FACES))
    assert card.output_names() == ("537", "538", "539", "540")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("colour", "GREY", "needs one of RGB, BGR, GRAY; got 'GREY'"),
        ("size", "dynamic", "resize 'crop' needs a fixed size"),
        ("size", [0, 224], "needs sizes above 0"),
        ("multiple", 32, "no multiple"),
        ("range", [1, 0], "range needs low < high"),
        ("mean", [0.5], "mean needs 3 values for RGB"),
        ("std", [1, 0, 1], "std needs values above 0"),
        ("pad", 256, "pad 0 to 255"),
        ("scale", 2, "unknown scale"),
    ],
)
def test_a_wrong_input_field_is_one_sentence(field: str, value: object, sentence: str) -> None:
    with pytest.raises(CardError, match=sentence):
        cards.parse({**CARD, "input": {**CARD["input"], field: value}}, source="card.json")


def test_what_is_not_stated_is_not_guessed() -> None:
    for field in ("name", "layout", "colour", "range", "size", "resize"):
        rest = {key: value for key, value in CARD["input"].items() if key != field}
        with pytest.raises(CardError, match=f"card.json: card.input: missing {field}"):
            cards.parse({**CARD, "input": rest}, source="card.json")


def test_a_task_of_another_name_is_told_which_there_are() -> None:
    text = json.dumps({**CARD, "task": {"name": "segment"}})
    with pytest.raises(CardError, match="image, classify, detect, embed, tensor; got 'segment'"):
        cards.loads(text, source="card.json")


def test_what_is_not_json_is_said_to_be_so() -> None:
    with pytest.raises(CardError, match=r"card.json: not JSON \("):
        cards.loads("{'a': 1}", source="card.json")
