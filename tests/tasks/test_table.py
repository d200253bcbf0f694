from __future__ import annotations

from typing import Literal, get_args, get_type_hints

import pytest

from trtfuse.core.card import Card, InputCard, Layout, TaskCard, TensorTask
from trtfuse.tasks.table import TASKS, codec


def test_every_task_that_a_card_can_name_is_in_the_table() -> None:
    names = {get_args(get_type_hints(kind)["name"])[0] for kind in get_args(TaskCard)}
    assert set(TASKS) == names


@pytest.mark.parametrize(
    ("layout", "colour", "shape"),
    [
        ("NCHW", "RGB", (3, 20, 30)),
        ("NHWC", "BGR", (20, 30, 3)),
        ("NCHW", "GRAY", (1, 20, 30)),
        ("NHWC", "GRAY", (20, 30, 1)),
    ],
)
def test_the_tensors_shape_follows_layout_and_colour(
    layout: Layout, colour: Literal["RGB", "BGR", "GRAY"], shape: tuple[int, ...]
) -> None:
    card = Card(
        input=InputCard(
            name="x",
            layout=layout,
            colour=colour,
            range=(0, 1),
            size=(20, 30),
            resize="letterbox",
        ),
        task=TensorTask(name="tensor"),
    )
    c = codec(card)
    assert c.shape(c.fit(5, 5)) == shape
