"""Records to JSON and back, and what is refused on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.core.record import Malformed, from_json, to_json


class Level(Enum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True)
class Dog:
    name: Literal["dog"]
    barks: int


@dataclass(frozen=True)
class Cat:
    name: Literal["cat"]
    lives: int = 9


@dataclass(frozen=True, kw_only=True)
class House:
    pet: Dog | Cat
    level: Level
    path: Path
    size: tuple[int, int] | Literal["dynamic"]
    weights: tuple[float, ...] = ()
    names: Mapping[str, str] | None = None
    empty: bool = False

    def __post_init__(self) -> None:
        if self.level is Level.HIGH and self.empty:
            raise ValueError("a high house is never empty")


HOUSE: dict[str, Any] = {
    "pet": {"name": "dog", "barks": 3},
    "level": "low",
    "path": "a/b",
    "size": [2, 3],
}

houses = st.builds(
    House,
    pet=st.builds(Dog, name=st.just("dog"), barks=st.integers())
    | st.builds(Cat, name=st.just("cat"), lives=st.integers()),
    level=st.just(Level.LOW),
    path=st.sampled_from([Path("a"), Path("/b/c")]),
    size=st.tuples(st.integers(), st.integers()) | st.just("dynamic"),
    weights=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    names=st.none() | st.dictionaries(st.text(), st.text(), max_size=3),
    empty=st.booleans(),
)


@given(houses)
def test_what_is_written_is_read_back_the_same(house: House) -> None:
    assert from_json(House, json.loads(json.dumps(to_json(house))), at="house") == house


def test_defaults_are_filled_in_and_whole_numbers_are_floats_where_floats_are_needed() -> None:
    house = from_json(House, {**HOUSE, "weights": [1, 2.5]}, at="house")
    assert house.weights == (1.0, 2.5)
    assert [type(weight) for weight in house.weights] == [float, float]
    assert house.names is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"level": "middle"}, "house.level: needs one of low, high; got 'middle'"),
        ({"pet": {"name": "cow"}}, "house.pet.name: needs one of dog, cat; got 'cow'"),
        ({"pet": {"name": "dog"}}, "house.pet: missing barks"),
        ({"pet": {"name": "dog", "barks": True}}, "house.pet.barks: needs int, got True"),
        ({"pet": {"name": "dog", "barks": "3"}}, "house.pet.barks: needs int, got '3'"),
        ({"pett": 1}, "house: unknown pett. Known: pet, level"),
        ({"size": [1, 2, 3]}, "needs a list of 2, got 3 values"),
        ({"size": "static"}, "needs one of dynamic; got 'static'"),
        ({"weights": [1, "x"]}, r"house.weights\[1\]: needs float, got 'x'"),
        ({"weights": 1}, "house.weights: needs a list, got 1"),
        ({"names": ["a"]}, "house.names: needs an object"),
        ({"level": "high", "empty": True}, "house: a high house is never empty"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Malformed, match=sentence):
        from_json(House, {**HOUSE, **change}, at="house")


@pytest.mark.parametrize("data", [None, 3, "text", [], [HOUSE]])
def test_a_document_that_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(Malformed, match="house: needs an object"):
        from_json(House, data, at="house")
