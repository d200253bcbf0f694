from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.pool.order import Order


@given(st.permutations(range(30)))
def test_whatever_the_order_of_arrival_everything_leaves_in_order(arrival: list[int]) -> None:
    order: Order[str] = Order()
    left = [value for seq in arrival for value in order.push(seq, f"v{seq}")]
    assert left == [f"v{seq}" for seq in range(30)]
    assert order.next == 30


@given(st.permutations(range(10)), st.integers(0, 9))
def test_nothing_leaves_before_its_turn(arrival: list[int], last: int) -> None:
    order: Order[int] = Order()
    arrival = [seq for seq in arrival if seq != last]
    left = [value for seq in arrival for value in order.push(seq, seq)]
    assert left == list(range(last))


@pytest.mark.parametrize("pushed", [[0], [1]], ids=["after it left", "while it waits"])
def test_a_number_that_comes_twice_is_an_error(pushed: list[int]) -> None:
    order: Order[int] = Order()
    for seq in pushed:
        list(order.push(seq, seq))
    with pytest.raises(ValueError, match="came twice"):
        order.push(pushed[0], 7)
