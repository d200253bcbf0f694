"""PyTorch in, ONNX out, together with the module itself as the witness of what is right."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from trtfuse.core.card import InputCard
from trtfuse.core.errors import ExportFailed, UnknownName, UsageError
from trtfuse.core.options import ExportOptions, Sizes
from trtfuse.core.specs import BATCH, Array, Arrays, TensorSpec
from trtfuse.graph import torchfiles
from trtfuse.graph.card import AXES
from trtfuse.graph.check import Run
from trtfuse.graph.model import opset as opset_of
from trtfuse.graph.model import signature
from trtfuse.graph.probe import require_room
from trtfuse.graph.target import version
from trtfuse.graph.wire import outline

# Two: an exporter that reads the batch as a number then bakes a 2, which is told from sizes of 1.
TRACED_BATCH = 2

# Of axes that are open, when a module is traced: unequal, and no power of two alone.
_TRACED_SIZES = (96, 160)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A graph made from a module, and the module as a function of named arrays."""

    path: Path
    """The graph, with external data beside it; in the scratch folder."""
    run: Run
    inputs: tuple[TensorSpec, ...]
    """What `run` takes."""
    shapes: tuple[Sizes, ...]
    """Sizes for a proof, one an input without the batch."""
    notes: tuple[str, ...]


# What a module that does not fit its inputs raises, and what exporters pass on.
_FAULTS = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


# What NumPy, and thus the proof, has too.
_DTYPES = (
    *("float16", "float32", "float64", "bool"),
    *("uint8", "int8", "int16", "int32", "int64"),
)


class _Flat(torch.nn.Module):
    """A module whose outputs are one tuple of tensors, whatever structure the inner one returns."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors in the order of `_named_outputs`; None members are left out."""
        return tuple(t for _, t in _named_outputs(self.inner(*arrays)) if t is not None)


@contextmanager
def traced(options: ExportOptions, card: InputCard | None, scratch: Path) -> Iterator[Traced]:
    """What `options.model` names, as a graph with a dynamic batch; written below `scratch`.

    The module is in eval mode inside the block; the modes it came with are restored after. Raises
    `UsageError`, or `ExportFailed` where neither of PyTorch's exporters makes a graph.
    """
    if options.name.endswith(".pt2"):
        yield _program(options, scratch)
        return
    module, notes = torchfiles.module(options)
    inputs = _inputs(options, torchfiles.input_names(module, options), card)
    examples = tuple(_example(one, options.seed + n) for n, one in enumerate(inputs))
    with _evaluating(module):
        found = list(_named_outputs(_answered(module, examples, inputs, options, notes)))
        notes += [f"output {name!r} is None and was dropped" for name, t in found if t is None]
        outputs = [name for name, tensor in found if tensor is not None]
        if not outputs:
            raise UsageError(
                f"{options.name}: forward returns no tensor; there is nothing to export."
            )
        _require_distinct([one.name for one in inputs], outputs)
        job = _Trace(
            _Flat(module).eval(), examples, inputs, outputs, version(options.target, options.opset)
        )
        path, exporter = _exported(job, scratch)
        yield Traced(
            path=path,
            run=_runner(job.module, [one.name for one in inputs], outputs),
            inputs=tuple(one.taken for one in inputs),
            shapes=tuple(one.sizes for one in inputs),
            notes=(*notes, exporter),
        )


def _answered(
    module: torch.nn.Module,
    examples: Sequence[torch.Tensor],
    inputs: Sequence[_Input],
    options: ExportOptions,
    notes: Sequence[str],
) -> Any:
    """What the module says to the examples. Raises `UsageError` where it does not take them."""
    try:
        with torch.no_grad():
            return module(*examples)
    except _FAULTS as error:
        given = ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in inputs)
        raise UsageError(
            f"{options.name}: the module itself fails on random {given}: {_short(error)}. "
            f"{''.join(f'Before, {note}. ' for note in notes)}"
            f"Is that what --shape should say, and --batch-input?"
        ) from error


@dataclass(frozen=True, slots=True)
class _Input:
    """An input of a module, and which of its axes are dynamic."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """As traced, batch included."""
    axes: dict[int, str]
    """Names of the dynamic axes."""

    @property
    def taken(self) -> TensorSpec:
        """What the module takes: the sizes it is traced at, any batch."""
        shape = (BATCH if self.axes.get(n) == BATCH else size for n, size in enumerate(self.shape))
        return TensorSpec(name=self.name, dtype=self.dtype, shape=tuple(shape))

    @property
    def sizes(self) -> Sizes:
        """The traced sizes, without the batch."""
        return self.shape[1:] if self.axes.get(0) == BATCH else self.shape


@dataclass(frozen=True, slots=True)
class _Trace:
    """All that an exporter is given."""

    module: _Flat
    examples: tuple[torch.Tensor, ...]
    inputs: tuple[_Input, ...]
    outputs: list[str]
    opset: int


def _inputs(
    options: ExportOptions, names: Sequence[str], card: InputCard | None
) -> tuple[_Input, ...]:
    dtypes = options.dtypes or ("float32",) * len(names)
    inputs = []
    for name, dtype, given in zip(names, dtypes, options.shapes, strict=True):
        batched = not options.static_batch and name in (options.batch_inputs or names)
        shape: Sizes = (TRACED_BATCH, *given) if batched else given
        axes = {n: size for n, size in enumerate(shape) if isinstance(size, str)}
        if batched:
            axes[0] = BATCH
        if card and card.name == name and card.size == "dynamic" and len(shape) == 4:
            axes |= zip(AXES[card.layout][1:], ("height", "width"), strict=True)
        traced_sizes = iter(_TRACED_SIZES * len(shape))
        sizes = tuple(next(traced_sizes) if isinstance(n, str) else n for n in shape)
        inputs.append(_Input(name, dtype, sizes, axes))
    return tuple(inputs)


def _example(one: _Input, seed: int) -> torch.Tensor:
    if one.dtype not in _DTYPES:
        known = UnknownName.among("type in --shape", one.dtype, _DTYPES)
        raise UnknownName(f"{known} Write TYPE:SIZES, as in int64:77; one --shape an input.")
    require_room(one.taken, one.shape)
    dtype: torch.dtype = getattr(torch, one.dtype)
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.rand(one.shape, generator=generator).to(dtype)
    end = 2 if dtype == torch.bool else 10
    return torch.randint(0, end, one.shape, generator=generator).to(dtype)


def _program(options: ExportOptions, scratch: Path) -> Traced:
    """A .pt2: its sizes, types and open axes are those it was exported with."""
    program = torchfiles.program(Path(options.name))
    inputs = torchfiles.program_inputs(program)
    module = _Flat(program.module())
    sizes = [tuple(n if isinstance(n, int) else 3 for n in one.shape) for one in inputs]
    examples = [
        _example(_Input(one.name, one.dtype, size, {}), options.seed)
        for one, size in zip(inputs, sizes, strict=True)
    ]
    with torch.no_grad():
        found = list(_named_outputs(program.module()(*examples)))
    outputs = [name for name, tensor in found if tensor is not None]
    names = [one.name for one in inputs]
    _require_distinct(names, outputs)
    path = scratch / "program.onnx"
    with _quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=version(options.target, options.opset),
            input_names=names,
            output_names=outputs,
            verbose=False,
        )
        if made is None:
            raise ExportFailed(f"{options.name}: torch.onnx.export returned nothing.")
        made.save(str(path), external_data=True)
    dropped = [f"output {name!r} is None and was dropped" for name, t in found if t is None]
    return Traced(
        path=path,
        run=_runner(module, names, outputs),
        inputs=inputs,
        shapes=options.shapes,
        notes=(*dropped, "exported with torch.export"),
    )


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """In eval mode inside the block; each part's own mode is restored after."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _named_outputs(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor | None]]:
    """Tensors of nested dicts, lists and tuples, named by their way: "boxes", "scores.0"."""
    if value is None or isinstance(value, torch.Tensor):
        yield path or "output", value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _named_outputs(member, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from _named_outputs(member, f"{path or 'output'}.{index}")
    else:
        raise UsageError(
            f"output {path or 'output'!r} of the module is of type {type(value).__name__}, "
            f"needs to be tensors in dicts, lists or tuples."
        )


def _require_distinct(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    uses = Counter([*inputs, *outputs])
    if shared := [name for name, count in uses.items() if count > 1]:
        raise UsageError(
            f"the module uses the name {', '.join(shared)} for more than one of its inputs and "
            f"outputs; ONNX needs different ones. Rename the output's key or forward's parameter."
        )


def _runner(flat: _Flat, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    def run(feeds: Arrays) -> dict[str, Array]:
        with torch.no_grad():
            # Copies: a module may write into its input.
            tensors = flat(*(torch.tensor(feeds[name]) for name in inputs))
        return {name: t.detach().numpy() for name, t in zip(outputs, tensors, strict=True)}

    return run


def _exported(job: _Trace, scratch: Path) -> tuple[Path, str]:
    """The first exporter's graph that has a dynamic batch and the wanted opset, else the next best.

    torch.export can answer a request for a dynamic batch with a static graph and no warning, and
    may keep its own opset 18: neither is an error to it, so the graph itself is looked at.
    """
    made: list[tuple[bool, Path, str]] = []
    reasons: list[str] = []
    exporters: tuple[tuple[str, Callable[[_Trace, Path], None]], ...] = (
        ("torch.export", _with_dynamo),
        ("TorchScript", _with_torchscript),
    )
    for label, exporter in exporters:
        path = scratch / f"{label}.onnx"
        try:
            with _quiet():
                exporter(job, path)
        # Both raise RuntimeError and its kin; TorchScript passes on the module's own errors.
        except (ImportError, *_FAULTS) as error:
            reasons.append(f"{label} failed: {_short(error.__cause__ or error)}")
            continue
        model = outline(path)
        opened = _opened(signature(model).inputs, job.inputs)
        if opened and opset_of(model) == job.opset:
            return path, "; ".join([f"exported with {label}", *reasons])
        found = f"opset {opset_of(model)}" if opened else "a static axis"
        reasons.append(f"{label} gave {found}")
        made.append((opened, path, label))
    if not made:
        raise ExportFailed(f"neither of PyTorch's exporters makes a graph. {'; '.join(reasons)}.")
    _, path, label = max(made, key=lambda one: one[0])
    return path, "; ".join([f"exported with {label}", *reasons])


def _opened(tensors: Sequence[TensorSpec], inputs: Sequence[_Input]) -> bool:
    """Whether every axis that was asked to be dynamic is."""
    axes = {one.name: one.axes for one in inputs}
    return all(isinstance(one.shape[n], str) for one in tensors for n in axes[one.name])


def _with_dynamo(job: _Trace, path: Path) -> None:
    dims = {name: torch.export.Dim(name) for one in job.inputs for name in one.axes.values()}
    program = torch.onnx.export(
        job.module,
        job.examples,
        dynamo=True,
        opset_version=job.opset,
        input_names=[one.name for one in job.inputs],
        output_names=job.outputs,
        dynamic_shapes=(tuple({n: dims[a] for n, a in one.axes.items()} for one in job.inputs),),
        verbose=False,
    )
    if program is None:
        raise RuntimeError("returned nothing")
    program.save(str(path), external_data=True)


def _with_torchscript(job: _Trace, path: Path) -> None:
    batched = any(one.axes.get(0) == BATCH for one in job.inputs)
    module: torch.nn.Module = job.module
    if isinstance(job.module.inner, torch.jit.ScriptModule):
        # The exporter's own tracing does not go into a script; this one does.
        module = torch.jit.trace(  # type: ignore[no-untyped-call]
            job.module, job.examples, check_trace=False
        )
    torch.onnx.export(
        module,
        job.examples,
        str(path),
        dynamo=False,
        opset_version=job.opset,
        input_names=[one.name for one in job.inputs],
        output_names=job.outputs,
        dynamic_axes={one.name: one.axes for one in job.inputs}
        | ({name: {0: BATCH} for name in job.outputs} if batched else {}),
    )


def _short(error: BaseException) -> str:
    """The words of an error of PyTorch in one line, without its colours and its manual."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return shorten(plain, 300, placeholder=" …").rstrip(".")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings: what they warn of is checked on the graph they make.

    torch.export prints, too, the graph that it was at when it gave up.
    """
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
