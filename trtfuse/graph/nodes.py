"""New nodes of a graph, one after the other, and whole numbers written as arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtfuse.core.specs import Array


@dataclass
class Nodes:
    """Nodes in the making, each reading what the one before made."""

    prefix: str
    last: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op_type: str, *others: str, **attributes: Any) -> str:
        """A node on `last` and `others`; the name of what it makes, which is `last` from now on."""
        self.last = self.make(op_type, self.last, *others, **attributes)
        return self.last

    def make(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node on `inputs` alone."""
        name = f"{self.prefix}_{len(self.nodes)}_{op_type}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def store(self, values: Array) -> str:
        """The name of a constant."""
        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def number(self, value: float) -> str:
        """The name of a constant float32."""
        return self.store(np.array(value, np.float32))

    def whole(self, *values: int) -> Whole:
        """A vector of constants."""
        return Whole(self, self.store(np.array(values)))


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor of whole numbers: its arithmetic makes nodes."""

    made: Nodes
    name: str
    narrow: bool = False
    """int32, as device memory holds them; else int64, as shapes are counted."""

    def __add__(self, other: Whole | int) -> Whole:
        return self._with("Add", other)

    def __sub__(self, other: Whole | int) -> Whole:
        return self._with("Sub", other)

    def __mul__(self, other: Whole | int) -> Whole:
        return self._with("Mul", other)

    def __floordiv__(self, other: Whole | int) -> Whole:
        """For numbers from 0 on: ONNX cuts towards zero."""
        return self._with("Div", other)

    def at_least(self, other: Whole | int) -> Whole:
        """The larger of two."""
        return self._with("Max", other)

    def at_most(self, other: Whole | int) -> Whole:
        """The smaller of two."""
        return self._with("Min", other)

    def test(self, op_type: str, other: Whole) -> str:
        """What a comparison says, as bool."""
        return self.made.make(op_type, self.name, other.name)

    def count(self) -> Whole:
        """0, 1 and so on, as many as this one number says."""
        start, step = (self.made.store(np.array(n)) for n in (0, 1))
        return self._made("Range", start, self.made.make("Squeeze", self.name), step)

    def upright(self) -> Whole:
        """A vector as a column."""
        return self._made("Unsqueeze", self.name, self.made.whole(1).name)

    def at(self, places: Whole, *, axis: int) -> Whole:
        """What is at `places` of an axis."""
        return self._made("Gather", self.name, places.name, axis=axis)

    def narrowed(self) -> Whole:
        """The same numbers as int32."""
        return Whole(self.made, self.made.make("Cast", self.name, to=TensorProto.INT32), True)

    def over(self, other: Whole) -> str:
        """The quotient, as float32."""
        casts = (self.made.make("Cast", one.name, to=TensorProto.FLOAT) for one in (self, other))
        return self.made.make("Div", *casts)

    def _with(self, op_type: str, other: Whole | int) -> Whole:
        if isinstance(other, int):
            values = np.array([other], np.int32 if self.narrow else np.int64)
            return self._made(op_type, self.name, self.made.store(values))
        return self._made(op_type, self.name, other.name)

    def _made(self, op_type: str, *inputs: str, **attributes: Any) -> Whole:
        return Whole(self.made, self.made.make(op_type, *inputs, **attributes), self.narrow)
