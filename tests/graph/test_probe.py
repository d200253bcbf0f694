from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.graph.graphs import card
from trtfuse.core.errors import UsageError
from trtfuse.core.specs import TensorSpec
from trtfuse.graph.probe import random_items, relaxed, sized, taken


def tensor(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def test_items_are_distinct_and_the_same_for_the_same_seed() -> None:
    x = tensor("x", "batch", 3, 8, 8)
    one, two, other = (random_items([x], count=5, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.batched["x"], two.batched["x"])
    assert not np.array_equal(one.batched["x"], other.batched["x"])
    assert len(np.unique(one.batched["x"].reshape(5, -1), axis=0)) == 5


def test_inputs_without_a_batch_are_shared() -> None:
    items = random_items(
        [tensor("x", "batch", 2), tensor("anchors", 10, 4), tensor("t")], count=4, seed=0
    )
    rows = items.rows(1, 3)
    assert {name: array.shape for name, array in rows.items()} == {
        "x": (2, 2),
        "anchors": (10, 4),
        "t": (),
    }
    assert np.array_equal(rows["x"], items.batched["x"][1:3])


def test_values_lie_in_the_cards_range_as_it_normalises() -> None:
    normal = replace(card().input, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 0.1))
    x = random_items([tensor("x", "batch", 3, 64, 64)], count=4, seed=0, card=normal).batched["x"]
    assert -1 <= x.min() < -0.99
    assert 9.9 < x.max() <= 10
    raw = replace(card().input, range=(0.0, 255.0))
    x = random_items([tensor("x", "batch", 3, 64, 64)], count=4, seed=0, card=raw).batched["x"]
    assert 0 <= x.min() < 1
    assert 254 < x.max() <= 255


@pytest.mark.parametrize(
    ("dtype", "high"), [("uint8", 255), ("int64", 9), ("int32", 9), ("bool", 1), ("float16", 1)]
)
def test_every_kind_of_number_can_be_made(dtype: str, high: int) -> None:
    x = random_items([tensor("x", "batch", 999, dtype=dtype)], count=2, seed=0).batched["x"]
    assert x.dtype == dtype
    assert round(float(x.max()), 2) == high


def test_text_inputs_are_refused() -> None:
    with pytest.raises(UsageError, match="'x': is text, needs to be a float, integer or bool"):
        random_items([tensor("x", "batch", dtype="object")], count=2, seed=0)


def test_open_sizes_come_from_the_card_then_from_us() -> None:
    x = tensor("x", "batch", 3, "h", "w")
    assert sized([x], card=card((48, 80)).input)[0].shape == ("batch", 3, 48, 80)
    wide = replace(card(None).input, resize="none", multiple=100)
    assert sized([x], card=wide)[0].shape == ("batch", 3, 100, 200)
    assert sized([x], card=card(None).input)[0].shape == ("batch", 3, 64, 96)
    assert sized([x, tensor("z", "w", "h")], card=None)[1].shape == (96, 64)
    square = tensor("x", "batch", 3, "s", "s")
    assert len(set(sized([square], card=card(None).input)[0].shape[2:])) == 1


def test_shapes_of_the_user_win_and_must_fit() -> None:
    x, k = tensor("x", "batch", 3, "h", 32), tensor("k", "n")
    assert [one.shape for one in sized([x, k], card=None, shapes=[(3, 40, 32), (7,)])] == [
        ("batch", 3, 40, 32),
        (7,),
    ]
    with pytest.raises(UsageError, match=r"--shape: got 1, needs one for each input: x \['batch'"):
        sized([x, k], card=None, shapes=[(3, 40, 32)])
    for wrong in ((1, 40, 32), (3, 40), (4, 3, 40, 32)):
        with pytest.raises(UsageError, match=r"--shape .*: input 'x' is \['batch', 3, 'h', 32\]"):
            sized([x, k], card=None, shapes=[wrong, (7,)])


def test_a_fixed_graph_is_asked_at_its_own_size() -> None:
    sizes = [tensor("x", "batch", 3, 512, 512), tensor("k", 4)]
    assert taken([tensor("x", 10, 3, 32, "w"), tensor("k", "n")], sizes) == (
        tensor("x", "batch", 3, 32, 512),
        tensor("k", 4),
    )


def test_only_sizes_that_change_are_opened() -> None:
    planned = [tensor("x", "batch", 3, 512, "width")]
    assert relaxed(planned, [tensor("x", "batch", 3, 32, 64)])[0].shape == (
        "batch",
        3,
        "x_2",
        "width",
    )
