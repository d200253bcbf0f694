"""INT8 in a graph: where QuantizeLinear/DequantizeLinear pairs go, and putting them there.

What is quantized is what a kernel with INT8 inputs computes: the inputs of convolutions and matrix
products with constant weights, and the weights themselves. All of it symmetric, weights with one
scale a channel, no bias. Two more places follow from how TensorRT fuses:

    conv a ──────────► Q/DQ ──► Add ─► Relu     The sum is taken inside conv b's kernel, which reads
    … conv b ───────────────────►┘              the other branch as INT8: so that one, and only that
                                                one, gets a pair.
    … ─► Q/DQ ─► GlobalAveragePool              A pool that averages what INT8 kernels made.

A pair in front of a convolution whose input comes out of a MaxPool, Concat or Resize is moved up
through it by TensorRT, to the kernels that made the parts: these then share the one scale that the
convolution needs. A Concat that no quantized layer reads gets none, for its parts may differ by
orders of magnitude: boxes and scores of a detector under one scale are boxes alone.

Products of two activations (attention) and what is neither of these stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtfuse.core.specs import Array
from trtfuse.graph import wiring
from trtfuse.graph.wiring import Wiring, layer

# INT8 without -128, so that a scale serves both signs.
LEVELS = 127
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_POOLS = ("AveragePool", "GlobalAveragePool")
# What TensorRT fuses into the kernel before it: its output is that kernel's output.
_FUSED = frozenset({"Relu", "LeakyRelu", "Clip", "Add"})


@dataclass(frozen=True, slots=True)
class Spot:
    """Input number `index` of `layer` is to be quantized; it reads the tensor `tensor`."""

    layer: str
    index: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight of `layer` is to be quantized, with one scale for each index of `axis`."""

    layer: str
    tensor: str
    axis: int | None
    """None: one scale for all."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Everything in a graph that can be quantized."""

    spots: tuple[Spot, ...]
    weights: tuple[Weight, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers with a quantized input, in the graph's order."""
        return tuple(dict.fromkeys(spot.layer for spot in self.spots))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The activations that need ranges, once each."""
        return tuple(dict.fromkeys(spot.tensor for spot in self.spots))

    def of(self, layers: Collection[str]) -> Placement:
        """The part that belongs to these layers."""
        return Placement(
            tuple(spot for spot in self.spots if spot.layer in layers),
            tuple(weight for weight in self.weights if weight.layer in layers),
        )

    def having(self, tensors: Collection[str]) -> Placement:
        """The layers all of whose activations are among `tensors`."""
        lacking = {spot.layer for spot in self.spots if spot.tensor not in tensors}
        return self.of([one for one in self.layers if one not in lacking])


def place(model: onnx.ModelProto) -> Placement:
    """Where the pairs go. Float constants need to be initializers (`wiring.copy`)."""
    wires = Wiring(model)
    weights = tuple(_weights(wires))
    weighted = {weight.layer for weight in weights}
    spots = [Spot(layer(n), 0, n.input[0]) for n in wires.nodes if layer(n) in weighted]
    spots += _residuals(wires, weighted)
    spots += _pools(wires, weighted)
    return Placement(tuple(spots), weights)


def insert(
    model: onnx.ModelProto, placement: Placement, amax: Mapping[str, float], *, half: bool
) -> onnx.ModelProto:
    """A copy with the pairs of `placement`. Opset and IR version stay as they are.

    `amax` has, for every activation of the placement, the magnitude that becomes level 127; above
    0. With `half`, scales are rounded up to what a float16 holds, so that a later conversion of
    the graph changes none of them.
    """
    new = wiring.copy(model)
    pairs = _Pairs(new, half=half)
    nodes = {layer(node): node for node in new.graph.node}
    for spot in placement.spots:
        name = pairs.activation(spot.tensor, amax[spot.tensor])
        nodes[spot.layer].input[spot.index] = name
    for weight in placement.weights:
        node = nodes[weight.layer]
        node.input[1] = pairs.weight(weight)
        _state_kernel(node, pairs.values(weight).shape[2:])
    wiring.set_nodes(new, list(pairs.among(new.graph.node)))
    return new


def scale_of(amax: Array, *, half: bool) -> Array:
    """amax / 127 as float32; 1 where amax is 0, for any scale is right there."""
    scale = np.where(amax > 0, amax / LEVELS, 1).astype(np.float32)
    if not half:
        return scale
    rounded = scale.astype(np.float16)
    # A scale below what was asked for would clip the largest value.
    short = rounded.astype(np.float32) < scale
    return np.where(short, np.nextafter(rounded, np.float16(np.inf)), rounded).astype(np.float32)


def quantized(name: str) -> str:
    """What the quantized and dequantized version of a tensor is called."""
    return f"{name}_dequantized"


@dataclass(frozen=True, slots=True)
class _Pair:
    tensor: str
    quantize: onnx.NodeProto
    dequantize: onnx.NodeProto


class _Pairs:
    """The Q/DQ pairs of one graph, made once a tensor; scales and zero points become its own."""

    def __init__(self, model: onnx.ModelProto, *, half: bool) -> None:
        self._wires = Wiring(model)
        self._graph = model.graph
        self._half = half
        self._made: dict[str, _Pair] = {}

    def activation(self, tensor: str, amax: float) -> str:
        return self._pair(tensor, np.array(amax, np.float32), axis=None)

    def weight(self, weight: Weight) -> str:
        amax = _weight_amax(self.values(weight), weight.axis)
        return self._pair(weight.tensor, amax, axis=weight.axis)

    def values(self, weight: Weight) -> Array:
        found = self._wires.constant(weight.tensor)
        assert found is not None, f"{weight.tensor} is no initializer"
        return found

    def among(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        """`nodes` with each pair right after what makes its tensor."""
        after: dict[str, list[onnx.NodeProto]] = {}
        for pair in self._made.values():
            after.setdefault(pair.tensor, []).extend((pair.quantize, pair.dequantize))
        for tensor, pairs in after.items():
            if tensor not in self._wires.producer:
                yield from pairs
        for node in nodes:
            yield node
            for name in node.output:
                yield from after.get(name, ())

    def _pair(self, tensor: str, amax: Array, *, axis: int | None) -> str:
        # A weight may be shared by layers that count its channels along different axes.
        name = tensor if axis is None else f"{tensor}_axis{axis}"
        if name not in self._made:
            scale = scale_of(amax, half=self._half)
            constants = {
                f"{name}_qdq_scale": scale,
                f"{name}_qdq_zero_point": np.zeros(scale.shape, np.int8),
            }
            self._graph.initializer.extend(
                numpy_helper.from_array(values, constant) for constant, values in constants.items()
            )
            between = f"{name}_quantized"
            self._made[name] = _Pair(
                tensor,
                _node("QuantizeLinear", [tensor, *constants], between, axis),
                _node("DequantizeLinear", [between, *constants], quantized(name), axis),
            )
        return quantized(name)


def _node(kind: str, inputs: list[str], output: str, axis: int | None) -> onnx.NodeProto:
    node = helper.make_node(kind, inputs, [output], name=f"{output}_{kind}")
    if axis is not None:
        node.attribute.append(helper.make_attribute("axis", axis))
    return node


def _state_kernel(node: onnx.NodeProto, sizes: Iterable[int]) -> None:
    """Say a convolution's `kernel_shape`, which ONNX lets be left out.

    TensorRT 8.6 takes it from a weight that is a constant, and cannot from one that comes out of a
    DequantizeLinear ("convMultiInput": the spatial sizes do not agree).
    """
    stated = any(one.name == "kernel_shape" for one in node.attribute)
    if node.op_type in _CONVOLUTIONS and not stated:
        node.attribute.append(helper.make_attribute("kernel_shape", list(sizes)))


def _weight_amax(values: Array, axis: int | None) -> Array:
    others = None if axis is None else tuple(n for n in range(values.ndim) if n != axis)
    return np.asarray(np.abs(values).max(axis=others))


def _weights(wires: Wiring) -> Iterator[Weight]:
    for node in wires.nodes:
        if node.op_type not in (*_CONVOLUTIONS, "Gemm", "MatMul") or wires.is_constant(
            node.input[0]
        ):
            continue
        values = wires.constant(node.input[1])
        if values is not None and values.dtype == np.float32 and np.isfinite(values).all():
            yield Weight(layer(node), node.input[1], _axis(node, values))


def _axis(node: onnx.NodeProto, values: Array) -> int | None:
    """The output channels' axis of a weight."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        # Axis 1 counts channels within a group: one scale would serve a channel of each.
        return 1 if _attribute(node, "group", 1) == 1 else None
    if node.op_type == "Gemm":
        return 0 if _attribute(node, "transB", 0) else 1
    return values.ndim - 1 if values.ndim > 1 else None


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((one.i for one in node.attribute if one.name == name), default)


def _residuals(wires: Wiring, weighted: Collection[str]) -> Iterator[Spot]:
    """For an Add that a convolution's kernel takes over: the input that the kernel reads."""
    for node in wires.nodes:
        if node.op_type != "Add" or any(wires.is_constant(name) for name in node.input):
            continue
        fusable = [
            (wires.order[layer(made)], index)
            for index, name in enumerate(node.input)
            if (made := wires.producer.get(name)) is not None
            and made.op_type in _CONVOLUTIONS
            and layer(made) in weighted
            and len(wires.consumers[name]) == 1
            and name not in wires.outputs
        ]
        if fusable:
            # Of two, the later one is computed when the other's result is there to be read.
            other = 1 - max(fusable)[1]
            yield Spot(layer(node), other, node.input[other])


def _pools(wires: Wiring, weighted: Collection[str]) -> Iterator[Spot]:
    for node in wires.nodes:
        if node.op_type not in _POOLS:
            continue
        made = wires.producer.get(node.input[0])
        while made is not None and made.op_type in _FUSED:
            made = wires.producer.get(made.input[0])
        if made is not None and layer(made) in weighted:
            yield Spot(layer(node), 0, node.input[0])
