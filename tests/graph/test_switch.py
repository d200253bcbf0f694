from __future__ import annotations

import pytest

from tests.graph import precisions as nets
from trtfuse.core.specs import Precision
from trtfuse.graph import precision
from trtfuse.graph.switch import Switchboard


@pytest.mark.parametrize("name", nets.NETS)
def test_every_choice_of_layers_answers_as_the_graph_written_with_it(name: str) -> None:
    model = nets.NETS[name]()
    x = nets.items(model)
    known = nets.measured(model, x)
    board = Switchboard(model, known.amax, threads=1)
    assert board.layers == precision.layers(model)
    assert (board({"x": x}, ())["y"] == nets.answer(model, x)).all()
    for kept in ((), board.layers[:1], board.layers[1:3]):
        written = precision.write(model, Precision.INT8, known, keep=kept).model
        chosen = [one for one in board.layers if one not in kept]
        assert (board({"x": x}, chosen)["y"] == nets.answer(written, x)).all()


def test_layers_without_ranges_have_no_switch() -> None:
    model = nets.residual_net()
    amax = dict(nets.measured(model, nets.items(model)).amax)
    del amax["r2"]
    assert "body2" not in Switchboard(model, amax, threads=1).layers
