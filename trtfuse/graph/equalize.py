"""Channels of like size in front of depthwise convolutions, where one INT8 scale serves them all.

A depthwise convolution reads each channel by itself. Where one of them is a hundred times smaller
than the largest, the scale of the tensor leaves it two levels, and its kernel sees noise: that is
most of what nets of the MobileNet kind lose. So a small channel is made larger where it is made,
and smaller again in the weight that reads it:

    conv (w, b) ─► Relu ─► depthwise (v)     =     conv (2ᵏ w, 2ᵏ b) ─► Relu ─► depthwise (2⁻ᵏ v)

Powers of two leave every product and sum the same but for its exponent, so that FP32 answers do not
change in a single bit. INT8 weights have a scale for each channel, so that they lose nothing. What
sums over channels would pay with the precision of its weights, and is left alone.

After Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction",
4.1, with the sizes that calibration has seen in place of those of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from trtfuse.core.specs import Array
from trtfuse.graph import wiring
from trtfuse.graph.wiring import FLOAT, Wiring

# f(2 x) = 2 f(x) for every x.
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu"})
# 2 ** 4: a channel that calibration saw little of may be larger elsewhere, and is clipped there.
_MOST = 4


@dataclass(frozen=True, slots=True)
class _Link:
    """A tensor, the convolution that makes its channels, and the depthwise ones that read them."""

    tensor: str
    maker: onnx.NodeProto
    readers: tuple[onnx.NodeProto, ...]


def tensors(model: onnx.ModelProto) -> tuple[str, ...]:
    """The activations whose channels can be equalized: (batch, channels, ...)."""
    return tuple(link.tensor for link in _links(wiring.copy(model)))


def exponents(reach: Array) -> tuple[int, ...]:
    """k of each channel, from its largest magnitude: it comes to the largest's half at least.

    Channels that never moved stay; none is raised by more than 16.
    """
    moved = np.where(reach > 0, reach, reach.max())
    ratio = np.divide(reach.max(), moved, out=np.ones(reach.shape), where=moved > 0)
    return tuple(int(k) for k in np.minimum(np.floor(np.log2(ratio)), _MOST))


def equalize(model: onnx.ModelProto, exponents: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """A copy whose channels are larger by 2 ** k, for the tensors and channels of `exponents`."""
    new = wiring.copy(model)
    scaled = _Scaled(new)
    for link in _links(new):
        if link.tensor not in exponents:
            continue
        factors = np.exp2(np.array(exponents[link.tensor], np.float32))
        scaled.multiply(link.maker.input[1], factors, axis=_out_axis(link.maker))
        if len(link.maker.input) > 2 and link.maker.input[2]:
            scaled.multiply(link.maker.input[2], factors, axis=0)
        for reader in link.readers:
            scaled.multiply(reader.input[1], 1 / factors, axis=0)
    return new


class _Scaled:
    """The initializers of a graph, to be changed in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._held = {tensor.name: tensor for tensor in model.graph.initializer}

    def multiply(self, name: str, factors: Array, *, axis: int) -> None:
        """Each index of `axis` by its factor; of a depthwise weight, all outputs of a channel."""
        values = numpy_helper.to_array(self._held[name])
        each = np.repeat(factors, values.shape[axis] // len(factors))
        shape = [-1 if n == axis else 1 for n in range(values.ndim)]
        self._held[name].CopyFrom(numpy_helper.from_array(values * each.reshape(shape), name))


def _links(model: onnx.ModelProto) -> Iterator[_Link]:
    wires = Wiring(model)
    floats = {one.name for one in model.graph.initializer if one.data_type == FLOAT}
    alone = {name for name in floats if len(wires.consumers.get(name, ())) == 1}
    for node in wires.nodes:
        if not _is_maker(node) or not alone.issuperset(filter(None, node.input[1:])):
            continue
        tensor = _end(node, wires)
        readers = tuple(wires.consumers.get(tensor, ()))
        free = all(_is_depthwise(one, wires) and one.input[1] in alone for one in readers)
        if readers and free and tensor not in wires.outputs:
            yield _Link(tensor, node, readers)


def _is_maker(node: onnx.NodeProto) -> bool:
    """The axis of a ConvTranspose's channels counts them within a group."""
    return node.op_type == "Conv" or (node.op_type == "ConvTranspose" and _group(node) == 1)


def _is_depthwise(node: onnx.NodeProto, wires: Wiring) -> bool:
    if node.op_type != "Conv" or _group(node) == 1:
        return False
    weight = wires.constant(node.input[1])
    return weight is not None and weight.shape[1] == 1


def _end(node: onnx.NodeProto, wires: Wiring) -> str:
    """The tensor behind the activations that follow a convolution and take a factor through."""
    tensor: str = node.output[0]
    while tensor not in wires.outputs:
        after = wires.consumers.get(tensor, [])
        if len(after) != 1 or after[0].op_type not in _HOMOGENEOUS:
            break
        tensor = after[0].output[0]
    return tensor


def _group(node: onnx.NodeProto) -> int:
    return next((one.i for one in node.attribute if one.name == "group"), 1)


def _out_axis(node: onnx.NodeProto) -> int:
    return 0 if node.op_type == "Conv" else 1
