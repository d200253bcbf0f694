from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graph.graphs import conv_net, graph, run, weights
from trtfuse.core.errors import ExportFailed, UsageError
from trtfuse.graph.tidy import tidied


def tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    return tidied(model, source="net.onnx")


def test_stale_shapes_listed_initializers_and_traces_of_the_machine_are_dropped() -> None:
    model = conv_net(10)
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3]))
    stale = helper.make_tensor_value_info("c", TensorProto.FLOAT, [10, 4, 8, 8])
    model.graph.value_info.append(stale)
    model.graph.node[0].metadata_props.add(key="stack_trace", value="/home/me/secret.py")
    before = model.SerializeToString()
    new = tidy(model)
    assert [one.name for one in new.graph.input] == ["x"]
    assert not new.graph.value_info
    assert new.ir_version == 8
    assert b"/home/me" not in new.SerializeToString()
    assert model.SerializeToString() == before, "the source graph is not written to"


def test_nodes_out_of_order_are_sorted_and_others_keep_their_places() -> None:
    model = conv_net("batch")
    names = [node.name for node in model.graph.node]
    model.graph.node.reverse()
    assert [node.name for node in tidy(model).graph.node] == names
    assert tidy(conv_net("batch")).graph.node == conv_net("batch").graph.node


def test_a_name_that_only_a_branch_reads_is_made_before_it() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["late"], ["out"])],
        "branch",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
    )
    model = graph(
        [
            helper.make_node(
                "If", ["yes"], ["y"], name="if", then_branch=branch, else_branch=branch
            ),
            helper.make_node("Relu", ["x"], ["late"], name="late"),
        ],
        {"x": ["batch", 3]},
        {"y": ["batch", 3]},
        {"yes": np.array(True)},
    )
    assert [node.name for node in tidy(model).graph.node] == ["late", "if"]


def test_a_cycle_is_named() -> None:
    model = graph(
        [
            helper.make_node("Add", ["x", "b"], ["a"], name="one"),
            helper.make_node("Relu", ["a"], ["b"], name="two"),
            helper.make_node("Relu", ["b"], ["y"], name="behind"),
        ],
        {"x": ["batch", 3]},
        {"y": ["batch", 3]},
        {},
    )
    with pytest.raises(UsageError, match=r"3 nodes wait for each other .* Add 'one', Relu 'two'"):
        tidy(model)


def dropouts(*live: bool) -> onnx.ModelProto:
    """x -> Dropout, one for each of `live` -> Relu -> y."""
    nodes = [
        helper.make_node("Dropout", [f"d{n}", "ratio", f"live{n}"], [f"d{n + 1}"], name=f"drop{n}")
        for n in range(len(live))
    ]
    model = graph(
        [*nodes, helper.make_node("Relu", [f"d{len(live)}"], ["y"])],
        {"d0": ["batch", 3]},
        {"y": ["batch", 3]},
        {"ratio": np.array(0.5, np.float32)}
        | {f"live{n}": np.array(flag) for n, flag in enumerate(live)},
    )
    return model


def test_dropout_that_does_nothing_is_removed() -> None:
    new = tidy(dropouts(False, False, False))
    assert [node.op_type for node in new.graph.node] == ["Relu"]
    x = weights(2, 3)
    np.testing.assert_array_equal(run(new, d0=x)["y"], x.clip(0))


def test_dropout_at_the_end_of_the_graph_passes_its_input_on() -> None:
    model = dropouts(False)
    model.graph.output[0].name = "d1"
    del model.graph.node[1]
    assert [node.op_type for node in tidy(model).graph.node] == ["Identity"]


def test_a_graph_in_training_mode_is_refused_with_its_nodes() -> None:
    with pytest.raises(ExportFailed, match=r"in training mode, .*: Dropout 'drop1'\. Export it"):
        tidy(dropouts(False, True))
    stored = {name: weights(3) for name in ("scale", "bias", "mean", "var")}
    outputs = ["y", "m", "v"]
    model = graph(
        [
            helper.make_node(
                "BatchNormalization", ["x", *stored], outputs, name="norm", training_mode=1
            )
        ],
        {"x": ["batch", 3, 4]},
        {"y": ["batch", 3, 4]},
        stored,
    )
    with pytest.raises(ExportFailed, match="BatchNormalization 'norm'"):
        tidy(model)
