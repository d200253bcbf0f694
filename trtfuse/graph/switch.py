"""A graph whose layers can be quantized one by one, run by run, in one session."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtfuse.core.specs import Array, Arrays
from trtfuse.graph import qdq, wiring
from trtfuse.graph.qdq import Placement
from trtfuse.graph.tap import Tap
from trtfuse.graph.wiring import layer

_SWITCHES = "quantized_layers"


class Switchboard:
    """`model` with every pair of INT8 behind a switch: it computes what `qdq.insert` would write.

    One session serves every choice of layers; loading a graph anew for each would take most of the
    time of a search.
    """

    def __init__(self, model: onnx.ModelProto, amax: Mapping[str, float], *, threads: int) -> None:
        source = wiring.copy(model)
        placement = qdq.place(source).having(amax)
        self.layers = placement.layers
        switched = _switched(qdq.insert(source, placement, amax, half=False), placement)
        ends = [value.name for value in model.graph.output]
        self._run = Tap(switched, ends, threads=threads, optimize=False)

    def __call__(self, feeds: Arrays, quantized: Collection[str]) -> dict[str, Array]:
        """Outputs by name with these layers in INT8 and the others in FP32. Raises NotRunnable."""
        switches = np.array([name in quantized for name in self.layers])
        return self._run({**feeds, _SWITCHES: switches})


def _switched(model: onnx.ModelProto, placement: Placement) -> onnx.ModelProto:
    """The quantized `model`, in place, with a choice at every input that has a pair."""
    graph = model.graph
    graph.input.append(
        helper.make_tensor_value_info(_SWITCHES, onnx.TensorProto.BOOL, [len(placement.layers)])
    )
    originals = {(spot.layer, spot.index): spot.tensor for spot in placement.spots}
    originals |= {(weight.layer, 1): weight.tensor for weight in placement.weights}
    number = {name: n for n, name in enumerate(placement.layers)}
    nodes = []
    for node in graph.node:
        name = layer(node)
        for index in range(len(node.input)):
            if (name, index) not in originals:
                continue
            switch, chosen = f"{name}_switch", f"{name}_{index}_chosen"
            if index == min(i for n, i in originals if n == name):
                graph.initializer.append(
                    numpy_helper.from_array(np.array(number[name]), f"{switch}_at")
                )
                nodes.append(helper.make_node("Gather", [_SWITCHES, f"{switch}_at"], [switch]))
            original = originals[name, index]
            nodes.append(helper.make_node("Where", [switch, node.input[index], original], [chosen]))
            node.input[index] = chosen
        nodes.append(node)
    wiring.set_nodes(model, nodes)
    return model
