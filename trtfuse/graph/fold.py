"""BatchNormalization made part of the convolution before it, one weight at a time.

In evaluation it is a factor and an offset a channel. onnxsim folds it too, but needs every weight
of the graph in memory for that, several times over.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from trtfuse.core.specs import Array
from trtfuse.graph.weights import append, array
from trtfuse.graph.wiring import captured, set_nodes

# Which axis of its weight counts the output channels.
_CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1}


@dataclass(frozen=True, slots=True)
class _Pair:
    """A convolution, and the normalization that alone reads what it makes."""

    convolution: onnx.NodeProto
    normalization: onnx.NodeProto

    @property
    def constants(self) -> tuple[str, ...]:
        """Weight, bias if there is one, scale, shift, mean and variance."""
        return (*self.convolution.input[1:], *self.normalization.input[1:])


def has_foldable(model: onnx.ModelProto) -> bool:
    """Whether there is a BatchNormalization that `fold` folds."""
    return next(_pairs(model.graph), None) is not None


def fold(model: onnx.ModelProto, scratch: Path) -> onnx.ModelProto:
    """A copy without BatchNormalization behind convolutions, not yet proven.

    `scratch` holds the large tensors of `model`, and gets those of the copy.
    """
    new = onnx.ModelProto()
    new.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in new.graph.initializer}
    gone = set()
    path = scratch / f"folded-{secrets.token_hex(6)}.data"
    with path.open("wb") as file:
        for pair in list(_pairs(new.graph)):
            made = _folded(pair, [array(stored[name], scratch) for name in pair.constants])
            for values, kind in zip(made, ("weight", "bias"), strict=True):
                name = f"{pair.normalization.output[0]}_{kind}"
                new.graph.initializer.append(numpy_helper.from_array(values, name))
                append(new.graph.initializer[-1], file, path.name)
            gone.add(pair.normalization.output[0])
            pair.convolution.input[1:] = [one.name for one in new.graph.initializer[-2:]]
            pair.convolution.output[0] = pair.normalization.output[0]
    kept = (n for n in new.graph.node if not (_is_normalization(n) and n.output[0] in gone))
    set_nodes(new, list(kept))
    drop_unused(new.graph)
    return new


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove initializers that nothing reads, in place."""
    read = Counter(_read(graph))
    for index, tensor in reversed(list(enumerate(graph.initializer))):
        if tensor.name not in read:
            del graph.initializer[index]


def _pairs(graph: onnx.GraphProto) -> Iterator[_Pair]:
    stored = {tensor.name for tensor in graph.initializer}
    readers = Counter(_read(graph))
    makers = {node.output[0]: node for node in graph.node if _is_plain(node)}
    for node in graph.node:
        made = makers.get(node.input[0]) if _is_normalization(node) else None
        if made is not None and readers[made.output[0]] == 1:
            pair = _Pair(made, node)
            if stored.issuperset(pair.constants):
                yield pair


def _folded(pair: _Pair, constants: list[Array]) -> tuple[Array, Array]:
    """Weight and bias of the convolution that does both."""
    weight, *bias, scale, shift, mean, variance = (one.astype(np.float64) for one in constants)
    factor = scale / np.sqrt(variance + _epsilon(pair.normalization))
    axis = _CHANNEL_AXIS[pair.convolution.op_type]
    form = [-1 if n == axis else 1 for n in range(weight.ndim)]
    offset = (sum(bias) - mean) * factor + shift
    kind = constants[0].dtype
    return (weight * factor.reshape(form)).astype(kind), offset.astype(kind)


def _is_normalization(node: onnx.NodeProto) -> bool:
    return node.op_type == "BatchNormalization" and not any(node.output[1:])


def _is_plain(node: onnx.NodeProto) -> bool:
    """A convolution whose output channels lie on one axis: groups of a ConvTranspose do not."""
    groups = next((one.i for one in node.attribute if one.name == "group"), 1)
    return node.op_type == "Conv" or (node.op_type == "ConvTranspose" and groups == 1)


def _epsilon(node: onnx.NodeProto) -> float:
    return next((one.f for one in node.attribute if one.name == "epsilon"), 1e-5)


def _read(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name that is read, as often as it is: by nodes, by their sub-graphs, from outside."""
    for node in graph.node:
        yield from node.input
        yield from captured(node)
    yield from (value.name for value in graph.output)
