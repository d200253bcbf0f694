from __future__ import annotations

import pytest

from tests.calibrate.examples import examples, smooth
from trtfuse.calibrate.recipe import Recipe, by_key, choose, require_enough, split
from trtfuse.core.errors import CalibrationError, UsageError

FORTY = examples([smooth(n, size=4) for n in range(40)])


def keys(recipe: Recipe) -> list[str]:
    return [one.key for one in recipe.chosen]


def test_the_same_seed_makes_the_same_choice_and_another_one_another() -> None:
    assert choose(FORTY, count=10) == choose(FORTY, count=10)
    assert keys(choose(FORTY, count=10)) != keys(choose(FORTY, count=10, seed=1))
    assert sorted(keys(choose(FORTY))) == [one.key for one in FORTY]


def test_listed_takes_the_first_in_their_order() -> None:
    assert keys(choose(FORTY, count=3, order="listed")) == ["00.png", "01.png", "02.png"]


def test_the_choice_holds_what_each_input_is() -> None:
    (one,) = choose(FORTY, count=1, order="listed").chosen
    assert one.sha256 == FORTY[0].sha256


def test_a_share_is_held_out_and_the_two_do_not_meet() -> None:
    recipe = choose(FORTY)
    parts = split(recipe, ())
    assert (len(parts.calibration), len(parts.held_out)) == (32, 8)
    assert set(parts.calibration).isdisjoint(parts.held_out)
    assert [*parts.calibration, *parts.held_out] == keys(recipe)


def test_what_is_left_out_is_in_neither_part() -> None:
    parts = split(choose(FORTY), {"07.png", "08.png"})
    assert {"07.png", "08.png"}.isdisjoint((*parts.calibration, *parts.held_out))


def test_two_inputs_are_one_for_each_part() -> None:
    parts = split(choose(FORTY, count=2, order="listed"), ())
    assert (parts.calibration, parts.held_out) == (("00.png",), ("01.png",))


def test_too_few_useful_inputs_are_refused_with_the_way_out() -> None:
    recipe = choose(FORTY, count=33)
    require_enough(recipe, {"00.png"}, few=False)
    with pytest.raises(CalibrationError, match=r"31 useful inputs \(2 more .*at least 32.*--few"):
        require_enough(recipe, {"00.png", "01.png"}, few=False)


def test_few_accepts_two_and_not_one() -> None:
    require_enough(choose(FORTY, count=2), (), few=True)
    with pytest.raises(CalibrationError, match="1 useful inputs, needs at least 2") as raised:
        require_enough(choose(FORTY, count=1), (), few=True)
    assert "--few" not in str(raised.value)


@pytest.mark.parametrize(("count", "held_out"), [(0, 0.2), (3, 0.0), (3, 1.0)])
def test_numbers_that_make_no_sense_are_refused(count: int, held_out: float) -> None:
    with pytest.raises(UsageError, match="held out"):
        choose(FORTY, count=count, held_out=held_out)


def test_examples_are_found_by_key_in_the_order_asked_for() -> None:
    assert by_key(FORTY, ["03.png", "01.png"]) == (FORTY[3], FORTY[1])
