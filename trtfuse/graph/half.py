"""FP16 and BF16 in a graph: Cast nodes at the borders, everything else by ONNX's own type rules.

A tensor keeps its name in float32; its half version has a name of its own. So graph inputs and
outputs, and whatever a sub-graph reads from outside, stay as they are without being asked about.
Which inputs and outputs of a node may be halves is what the operator's schema says of its type
variables: a Resize takes a half picture and float scales, a NonMaxSuppression takes no halves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from trtfuse.core.specs import Array, Precision
from trtfuse.graph import wiring
from trtfuse.graph.model import opset
from trtfuse.graph.wiring import FLOAT, Wiring, captured, layer


@dataclass(frozen=True, slots=True)
class Half:
    """A 16-bit float."""

    name: str
    elem_type: int
    largest: float
    """The largest finite value."""
    smallest: float
    """The smallest value above 0."""
    opset: int
    """The oldest operator set whose convolutions take it."""
    without: frozenset[str] = frozenset()
    """Operators that ONNX lets compute in it and TensorRT (RTX 1.7) does not."""


FP16 = Half("float16", TensorProto.FLOAT16, 65504.0, 2.0**-24, 1)
BF16 = Half(
    "bfloat16", TensorProto.BFLOAT16, 255 * 2.0**120, 2.0**-133, 22, frozenset({"ConvTranspose"})
)

# Inputs that calibration did not see may reach twice as far.
_HEADROOM = 2.0
# These square their input inside: no tensor of the graph shows how far that goes.
_SQUARING = frozenset(
    {
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "ReduceL2",
        "ReduceSumSquare",
        "RMSNormalization",
    }
)
# To an integer, a half would be rounded first; from one, the attribute names the type.
_FLOAT_ONLY = frozenset({"Cast"})


def overflowing(model: onnx.ModelProto, amax: Mapping[str, float], half: Half) -> dict[str, str]:
    """Layers to keep in FP32, each with the reason: a tensor they read or make leaves the range.

    `amax` has the largest magnitude of each activation in FP32. A CPU shows no overflow: ONNX
    Runtime computes half nodes in FP32 there.
    """
    limit = half.largest / _HEADROOM
    constants = {
        tensor.name: _largest(numpy_helper.to_array(tensor))
        for tensor in model.graph.initializer
        if tensor.data_type == FLOAT
    }
    reach = {**constants, **amax}
    kept = {}
    for node in model.graph.node:
        inner = limit**0.5 if node.op_type in _SQUARING else limit
        for name in (*node.input, *node.output):
            if reach.get(name, 0.0) > (inner if name in node.input else limit):
                kept[layer(node)] = _reason(name, reach[name], half, squared=inner != limit)
                break
    return kept


def convert(model: onnx.ModelProto, half: Half, *, keep: Collection[str]) -> onnx.ModelProto:
    """A copy that computes in `half` where its operators can, but in FP32 in the layers `keep`.

    Inputs and outputs keep their types. The operator set must be `half.opset` or later.
    """
    new = wiring.copy(model)
    casts = _Casts(new, half)
    nodes: list[onnx.NodeProto] = []
    for node in new.graph.node:
        nodes += casts.rewritten(node, kept=layer(node) in keep)
    nodes += casts.restored([value.name for value in new.graph.output])
    wiring.set_nodes(new, nodes)
    _drop_unused(new)
    return new


def sizes(model: onnx.ModelProto) -> dict[Precision, int]:
    """How many weights the graph holds in each kind of float, FP32 first."""
    counted = {Precision.FP32: 0, Precision.FP16: 0, Precision.BF16: 0}
    kinds = {FLOAT: Precision.FP32, FP16.elem_type: Precision.FP16, BF16.elem_type: Precision.BF16}
    for tensor in model.graph.initializer:
        if tensor.data_type in kinds:
            counted[kinds[tensor.data_type]] += int(np.prod(tensor.dims))
    return counted


class _Casts:
    """Which versions of each tensor exist so far, and the Cast nodes that make the other one."""

    def __init__(self, model: onnx.ModelProto, half: Half) -> None:
        self._graph = model.graph
        self._half = half
        self._version = opset(model)
        self._wires = Wiring(model)
        types = wiring.elem_types(model)
        self._floats = {name for name, kind in types.items() if kind == FLOAT}
        made = {name for node in model.graph.node for name in node.output}
        self._full = self._floats - made
        self._halves: set[str] = set()

    def rewritten(self, node: onnx.NodeProto, *, kept: bool) -> Iterator[onnx.NodeProto]:
        """The node, in halves where it may be, after the casts it needs."""
        takes, makes = self._half_ends(node) if not kept else (set[int](), set[int]())
        for index, name in enumerate(node.input):
            if index in takes:
                yield from self._need_half(name)
                node.input[index] = self._named(name)
            elif name:
                yield from self.restored([name])
        yield from self.restored(captured(node))
        for index, name in enumerate(node.output):
            if index in makes:
                node.output[index] = self._named(name)
                self._halves.add(name)
            else:
                self._full.add(name)
        yield node

    def restored(self, names: Iterable[str]) -> Iterator[onnx.NodeProto]:
        """What makes the FP32 version of those tensors that have only a half one."""
        for name in names:
            if name in self._halves and name not in self._full:
                self._full.add(name)
                yield self._cast(self._named(name), name, FLOAT)

    def _need_half(self, name: str) -> Iterator[onnx.NodeProto]:
        if name in self._halves:
            return
        self._halves.add(name)
        values = self._wires.constant(name)
        if values is None:
            yield self._cast(name, self._named(name), self._half.elem_type)
        else:
            self._graph.initializer.append(_rounded(values, self._half, self._named(name)))

    def _half_ends(self, node: onnx.NodeProto) -> tuple[set[int], set[int]]:
        """Which inputs and outputs of the node can be halves; none where that has no meaning."""
        known = not node.domain and defs.has(node.op_type, self._version)
        if not known or node.op_type in _FLOAT_ONLY | self._half.without:
            return set(), set()
        schema = defs.get_schema(node.op_type, self._version)
        able = {
            one.type_param_str
            for one in schema.type_constraints
            if f"tensor({self._half.name})" in one.allowed_type_strs
        }
        inputs = _variables(schema.inputs, node.input)
        outputs = _variables(schema.outputs, node.output)
        takes = {
            n for n, name in enumerate(node.input) if name in self._floats and inputs[n] in able
        }
        # An output whose type no float input settles is settled by an attribute, which says FP32.
        settled = {inputs[n] for n in takes}
        makes = {
            n
            for n, name in enumerate(node.output)
            if name in self._floats and outputs[n] in settled
        }
        # Comparisons and shapes gain nothing, and would answer for rounded values.
        return (takes, makes) if makes or node.op_type == "QuantizeLinear" else (set(), set())

    def _named(self, name: str) -> str:
        return f"{name}_{self._half.name}"

    def _cast(self, source: str, target: str, elem_type: int) -> onnx.NodeProto:
        return helper.make_node("Cast", [source], [target], f"{target}_cast", to=elem_type)


def _variables(formal: Sequence[defs.OpSchema.FormalParameter], actual: Sequence[str]) -> list[str]:
    """The type variable of each actual input or output; the last formal one may be repeated."""
    return [formal[min(n, len(formal) - 1)].type_str for n in range(len(actual))]


def _rounded(values: Array, half: Half, name: str) -> TensorProto:
    """An initializer of the nearest halves.

    Infinities are meant, and stay; what only does not fit becomes the largest that does. What is
    not 0 does not become 0: it may be the epsilon that keeps a division sane.
    """
    finite = np.isfinite(values)
    values = np.where(finite, np.clip(values, -half.largest, half.largest), values)
    tiny = (values != 0) & (np.abs(values) < half.smallest)
    values = np.where(tiny, np.copysign(np.float32(half.smallest), values), values)
    values = values.astype(np.float32)
    if half.elem_type == TensorProto.FLOAT16:
        return numpy_helper.from_array(values.astype(np.float16), name)
    # The upper half of a float32's bits, rounded to even. NumPy has no such type.
    bits = values.view(np.uint32)
    upper = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return helper.make_tensor(name, half.elem_type, values.shape, upper.tobytes(), raw=True)


def _largest(values: Array) -> float:
    """The largest finite magnitude: an infinity is one in halves too."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0))


def _reason(tensor: str, reach: float, half: Half, *, squared: bool) -> str:
    inside = ", which it squares" if squared else ""
    return f"{tensor} reaches {reach:.3g}{inside}; {half.name} ends at {half.largest:g}"


def _drop_unused(model: onnx.ModelProto) -> None:
    """Remove initializers that nothing reads any more, and inferred types, in place."""
    used = {value.name for value in model.graph.output}
    for node in model.graph.node:
        used.update(node.input)
        used.update(captured(node))
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    whole = onnx.GraphProto(initializer=kept)
    del model.graph.initializer[:], model.graph.value_info[:]
    model.graph.initializer.extend(whole.initializer)
