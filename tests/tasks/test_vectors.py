"""Classify, embed and tensor: the tasks whose answer does not depend on the picture's place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtfuse.core.card import Card, ClassifyTask, EmbedTask, InputCard, TaskCard, TensorTask
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, ArrayFile, ArraysFile
from trtfuse.core.specs import Array
from trtfuse.tasks.table import codec

INPUT = InputCard(
    name="x", layout="NCHW", colour="RGB", range=(0, 1), size=(8, 8), resize="stretch"
)


def answer(task: TaskCard, **outputs: Array) -> Answer:
    c = codec(Card(input=INPUT, task=task))
    return c.decode(outputs, c.fit(8, 8))


def classify(**fields: Any) -> ClassifyTask:
    defaults: dict[str, Any] = {"labels": ("a", "b", "c"), "scores": "logits"}
    return ClassifyTask(name="classify", output="y", **defaults | fields)


def embed(*, normalize: bool) -> EmbedTask:
    return EmbedTask(name="embed", output="y", normalize=normalize)


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def test_logits_become_probabilities_best_first() -> None:
    classes = answer(classify(), y=f32(0, np.log(2), np.log(5))).fields["classes"]
    assert classes == [
        {"label": "c", "score": 0.625},
        {"label": "b", "score": 0.25},
        {"label": "a", "score": 0.125},
    ]


def test_huge_logits_do_not_overflow() -> None:
    classes = answer(classify(top=1), y=f32(-3e38, 1e30, 3e38)).fields["classes"]
    assert classes == [{"label": "c", "score": 1.0}]


def test_probabilities_are_taken_as_they_are() -> None:
    classes = answer(classify(scores="probabilities", top=2), y=f32(0.25, 0.5, 0.125))
    assert classes.fields == {
        "classes": [{"label": "b", "score": 0.5}, {"label": "a", "score": 0.25}]
    }


def test_of_equal_scores_the_first_label_comes_first() -> None:
    classes = answer(classify(scores="probabilities"), y=f32(0.5, 0.75, 0.5)).fields["classes"]
    assert [entry["label"] for entry in classes] == ["b", "a", "c"]


def test_a_score_map_of_one_cell_is_a_vector() -> None:
    classes = answer(classify(top=1), y=f32(0, 9, 0).reshape(3, 1, 1)).fields["classes"]
    assert classes[0]["label"] == "b"


def test_another_number_of_scores_than_labels_fails_the_item() -> None:
    with pytest.raises(ItemError, match="has 4 scores, and the card 3 labels"):
        answer(classify(), y=f32(0, 1, 2, 3))


def test_a_vector_is_kept_or_brought_to_length_one() -> None:
    for normalize, wanted in ((False, [3, 4]), (True, [0.6, 0.8])):
        file = answer(embed(normalize=normalize), y=f32(3, 4).reshape(2, 1, 1)).file
        assert isinstance(file, ArrayFile)
        np.testing.assert_array_equal(file.array, f32(*wanted), strict=True)


def test_a_vector_of_zeros_has_no_direction() -> None:
    with pytest.raises(ItemError, match="all zeros"):
        answer(embed(normalize=True), y=f32(0, 0))


def test_a_vector_too_long_for_its_square_is_still_normalised() -> None:
    file = answer(embed(normalize=True), y=f32(3e38, 0)).file
    assert isinstance(file, ArrayFile)
    assert file.array.tolist() == [1, 0]


@pytest.mark.parametrize("task", [classify(), embed(normalize=True), embed(normalize=False)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers_fail_the_item(task: TaskCard, bad: float) -> None:
    with pytest.raises(ItemError, match="'y': 1 of 3 values are NaN or infinite"):
        answer(task, y=f32(0, bad, 1))


def test_tensors_are_all_kept_or_those_that_the_card_names() -> None:
    outputs = {"y": f32(1, 2), "z": np.array([[3]], np.float16)}
    for names, wanted in (((), {"y", "z"}), (("z",), {"z"})):
        file = answer(TensorTask(name="tensor", outputs=names), **outputs).file
        assert isinstance(file, ArraysFile)
        assert set(file.arrays) == wanted
        np.testing.assert_array_equal(file.arrays["z"], outputs["z"], strict=True)


def test_nothing_of_an_answer_is_a_view_of_the_slot() -> None:
    slot = f32(3, 4)
    embedded = answer(embed(normalize=False), y=slot).file
    kept = answer(TensorTask(name="tensor"), y=slot).file
    assert isinstance(embedded, ArrayFile)
    assert isinstance(kept, ArraysFile)
    assert not np.shares_memory(embedded.array, slot)
    assert not np.shares_memory(kept.arrays["y"], slot)


def test_a_tensor_may_hold_infinity_but_not_nan() -> None:
    file = answer(TensorTask(name="tensor"), y=f32(-np.inf, 0)).file
    assert isinstance(file, ArraysFile)
    assert file.arrays["y"].tolist() == [-np.inf, 0]
    with pytest.raises(ItemError, match="'y': 1 of 2 values are NaN"):
        answer(TensorTask(name="tensor"), y=f32(np.nan, np.inf))


def test_integers_are_kept_as_tensors() -> None:
    file = answer(TensorTask(name="tensor"), y=np.array([1, 2], np.int64)).file
    assert isinstance(file, ArraysFile)
    np.testing.assert_array_equal(file.arrays["y"], np.array([1, 2], np.int64), strict=True)


def test_a_tensor_that_is_not_there_fails_the_item() -> None:
    with pytest.raises(ItemError, match="'z' is not there; the engine has y"):
        answer(TensorTask(name="tensor", outputs=("z",)), y=f32(1))
