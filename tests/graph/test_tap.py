from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.graph import precisions as nets
from trtfuse.graph import wiring
from trtfuse.graph.check import NotRunnable
from trtfuse.graph.tap import Tap


def test_tensors_of_the_inside_come_out_by_name_and_inputs_pass() -> None:
    model = nets.residual_net()
    x = nets.items(model, 2)
    seen = Tap(model, ["x", "r1", "y"], threads=1, optimize=False)({"x": x})
    assert seen["x"] is x
    assert (seen["y"] == nets.answer(model, x)).all()
    assert seen["r1"].shape == (2, 8, 16, 16)
    assert (seen["r1"] >= 0).all()


def test_what_no_wanted_tensor_needs_is_not_computed() -> None:
    model = nets.skip_net()
    for value in (*model.graph.input, *model.graph.output):
        for axis in (2, 3):
            value.type.tensor_type.shape.dim[axis].dim_param = f"{value.name}_{axis}"
    # 15 becomes 8 on the way down and 16 on the way up: the Concat cannot run.
    x = np.ones((1, 3, 15, 15), np.float32)
    assert Tap(model, ["a2"], threads=1)({"x": x})["a2"].shape == (1, 8, 8, 8)
    with pytest.raises(NotRunnable, match="concat"):
        Tap(model, ["y"], threads=1)({"x": x})


def test_float_activations_are_named_in_their_order_without_constants() -> None:
    assert wiring.float_activations(nets.skip_net()) == (
        "x", "c1", "s1", "a1", "c2", "a2", "up", "both", "y",
    )  # fmt: skip


def test_sizes_follow_from_the_inputs_shape() -> None:
    model = nets.skip_net()
    counted = wiring.sizes(model, {"x": (2, 3, 16, 16)})
    x = nets.items(model, 2)
    names = list(wiring.float_activations(model))
    for name, array in Tap(model, names, threads=1)({"x": x}).items():
        assert counted[name] == array.size


def test_a_copy_holds_its_float_constants_as_initializers() -> None:
    model = nets.residual_net()
    held = model.graph.initializer.pop(0)
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w1"], value=held))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["k"], value_float=2.5))
    new = wiring.copy(model)
    assert "Constant" not in nets.ops(new)
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in new.graph.initializer}
    assert constants["k"] == 2.5
    assert (constants["w1"] == onnx.numpy_helper.to_array(held)).all()
    x = nets.items(model)
    assert (nets.answer(new, x) == nets.answer(model, x)).all()
