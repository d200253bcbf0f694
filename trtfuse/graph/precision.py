"""The one door to precision: a graph in FP32 becomes one that says in what numbers it computes.

TensorRT 11 and TensorRT-RTX take precision from the graph alone, and older releases read it from
there too; so does ONNX Runtime. Nothing below decides by device or release.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.specs import Precision
from trtfuse.graph import equalize, half, qdq, wiring
from trtfuse.graph.half import BF16, FP16, Half
from trtfuse.graph.model import NotApplied, opset
from trtfuse.graph.opset import convert
from trtfuse.graph.wiring import Wiring, layer

# The first operator set whose Q/DQ pairs take scales that are not float32.
_HALF_SCALES = 19

_UNCHECKED = "nothing is known of its values in fp32: whether some overflow was not checked"

_HALVES = {Precision.FP16: FP16, Precision.BF16: BF16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of the activations in FP32, by tensor name."""

    amax: Mapping[str, float] = field(default_factory=dict)
    """The magnitude that becomes INT8's level 127; above 0. What is not in it is not quantized."""
    reach: Mapping[str, float] = field(default_factory=dict)
    """The largest magnitude seen."""
    exponents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of tensors whose channels are equalized for INT8: `equalize.equalize`. All that is measured
    belongs to the graph that this makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The tensors to be measured before a precision can be written."""

    amax: tuple[str, ...] = ()
    reach: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    """Tensors whose channels can be equalized, before the others are measured."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Layers, one after the other in the graph, that compute in `precision` for a reason."""

    layers: tuple[str, ...]
    precision: Precision
    reason: str

    def __str__(self) -> str:
        """ "Pow_1..Sqrt_3 in fp32: …"."""
        span = "..".join(dict.fromkeys((self.layers[0], self.layers[-1])))
        return f"{span} in {self.precision.value}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A graph with its precision in it, and what stayed out."""

    model: onnx.ModelProto
    quantized: tuple[str, ...] = ()
    """Layers with an INT8 input."""
    kept: tuple[Kept, ...] = ()
    notes: tuple[str, ...] = ()


def carried(model: onnx.ModelProto) -> Precision:
    """The precision that the graph itself was exported in: by a quantizer, in halves, or FP32."""
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node):
        return Precision.INT8
    counts = half.sizes(model)
    return max(counts, key=lambda kind: counts[kind])


def layers(model: onnx.ModelProto) -> tuple[str, ...]:
    """The layers that INT8 would quantize: what `keep` chooses from. Empty if it is carried."""
    if carried(model) is Precision.INT8:
        return ()
    return qdq.place(wiring.copy(model)).layers


def require_layers(model: onnx.ModelProto, precision: Precision, keep: Collection[str]) -> None:
    """Raise UnknownName for a name in `keep` that is no layer, or with INT8 none it quantizes."""
    chosen = layers(model) if precision is Precision.INT8 else ()
    known = chosen or {layer(node) for node in model.graph.node}
    for name in keep:
        if name not in known:
            raise UnknownName.among("--keep", name, known)


def needs(model: onnx.ModelProto, precision: Precision, *, rest: Precision) -> Needs:
    """What `write` has to know for the same arguments; nothing for what the graph carries."""
    source = wiring.copy(model)
    own = carried(model)
    quantizes = precision is Precision.INT8 and own is not Precision.INT8
    halves = own not in _HALVES and (precision in _HALVES or rest in _HALVES)
    return Needs(
        amax=qdq.place(source).tensors if quantizes else (),
        reach=wiring.float_activations(source) if halves else (),
        channels=equalize.tensors(source) if quantizes else (),
    )


def write(
    model: onnx.ModelProto,
    precision: Precision,
    measured: Measured,
    *,
    rest: Precision = Precision.FP32,
    keep: Collection[str] = (),
) -> Written:
    """`model` in `precision`, with the inputs and outputs it has.

    `rest` is what INT8's other layers compute in: FP32, FP16 or BF16. `keep` names layers that do
    not take part: with INT8 they compute in `rest`, with FP16 and BF16 in FP32. With halves,
    layers whose FP32 values would leave their range stay in FP32, and are named in the result.

    INT8 with `rest` FP32, and FP16, keep the operator set and IR version, so that TensorRT 8.6
    reads them; INT8 with FP16 needs operator set 19 (half scales), BF16 needs 22.

    Raises UsageError where the graph is in another precision already, or an operator cannot be
    brought to the operator set; UnknownName for a layer in `keep` that the graph has not.
    """
    _require(model, precision, keep)
    own, source = carried(model), wiring.copy(model)
    if own is precision and own is not Precision.INT8:
        note = () if own is Precision.FP32 else (f"the graph is in {own.value} already",)
        return Written(model=model, notes=note)
    written = Written(model=source)
    if precision is Precision.INT8:
        written = _quantized(source, measured, rest, keep)
    target = _HALVES.get(rest if precision is Precision.INT8 else precision)
    if target is None or own in _HALVES:
        return written
    return _halved(written, target, precision, measured, keep)


def _require(model: onnx.ModelProto, precision: Precision, keep: Collection[str]) -> None:
    own = carried(model)
    require_layers(model, precision, keep)
    if own not in (Precision.FP32, precision):
        raise UsageError(
            f"--precision {precision.value}: the graph is in {own.value} already. Build it with "
            f"--precision {own.value}, or export the model in fp32."
        )


def _quantized(
    source: onnx.ModelProto, measured: Measured, rest: Precision, keep: Collection[str]
) -> Written:
    if carried(source) is Precision.INT8:
        return Written(model=source, notes=("the graph has its Q/DQ pairs already",))
    source = equalize.equalize(source, measured.exponents)
    whole = qdq.place(source)
    able = whole.having(measured.amax)
    placement = able.of([name for name in able.layers if name not in keep])
    unmeasured = [name for name in whole.layers if name not in able.layers and name not in keep]
    chosen = [name for name in whole.layers if name in keep]
    return Written(
        model=qdq.insert(source, placement, measured.amax, half=rest is Precision.FP16),
        quantized=placement.layers,
        kept=(
            *(Kept((name,), rest, "asked for") for name in chosen),
            *(Kept((name,), rest, "no range of its input") for name in unmeasured),
        ),
    )


def _halved(
    written: Written,
    target: Half,
    precision: Precision,
    measured: Measured,
    keep: Collection[str],
) -> Written:
    needed = max(target.opset, _HALF_SCALES if precision is Precision.INT8 else 1)
    model = _at_opset(written.model, needed)
    # A pair's result reaches as far as what it read.
    reach = dict(measured.reach) | {qdq.quantized(k): v for k, v in measured.reach.items()}
    reasons = half.overflowing(model, reach, target)
    if precision is not Precision.INT8:
        reasons |= dict.fromkeys(keep, "asked for")
    return Written(
        model=half.convert(model, target, keep=reasons),
        quantized=written.quantized,
        kept=(*written.kept, *_blocks(model, reasons)),
        notes=written.notes if reach else (*written.notes, _UNCHECKED),
    )


def _at_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    if opset(model) >= version:
        return model
    try:
        return convert(model, version)
    except NotApplied as error:
        raise UsageError(
            f"this precision needs operator set {version}: {error}. Export the model with it."
        ) from error


def _blocks(model: onnx.ModelProto, reasons: Mapping[str, str]) -> list[Kept]:
    """The kept layers, those that feed each other together, in the graph's order."""
    wires = Wiring(model)
    blocks: list[list[str]] = []
    for node in (node for node in wires.nodes if layer(node) in reasons):
        makers = {layer(wires.producer[name]) for name in node.input if name in wires.producer}
        home = next((block for block in blocks if makers & set(block)), None)
        if home is None:
            blocks.append([layer(node)])
        else:
            home.append(layer(node))
    return [Kept(tuple(block), Precision.FP32, reasons[block[0]]) for block in blocks]
