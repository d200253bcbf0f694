"""PyTorch in, ONNX out, together with the module itself as the witness of what is right."""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch

from trtfuse.core.errors import ExportFailed, UnknownName, UsageError
from trtfuse.core.specs import BATCH, Array, Arrays, TensorSpec
from trtfuse.graph.check import Run
from trtfuse.graph.model import opset as opset_of
from trtfuse.graph.model import signature

# Two: an exporter that reads the batch as a number then bakes a 2, which is told from sizes of 1.
TRACED_BATCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A graph made from a module, and the module as a function of named arrays."""

    model: onnx.ModelProto
    run: Run
    inputs: tuple[TensorSpec, ...]
    """What `run` takes: any batch."""
    notes: tuple[str, ...]


class _Flat(torch.nn.Module):
    """A module whose outputs are one tuple of tensors, whatever structure the inner one returns."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors in the order of `_named_outputs`; None members are left out."""
        return tuple(t for _, t in _named_outputs(self.inner(*arrays)) if t is not None)


@contextmanager
def traced(
    factory: str, *, shapes: Sequence[tuple[int, ...]], opset: int, seed: int
) -> Iterator[Traced]:
    """The module that `factory` ("package.module:name") makes, as a graph with a dynamic batch.

    `shapes` has one float32 input each, without the batch. The module is in eval mode inside the
    block; the modes it came with are restored after. Raises `UsageError`, or `ExportFailed` where
    neither of PyTorch's exporters makes a graph.
    """
    module = _made(factory)
    names = _input_names(module, shapes, factory)
    notes = ["the module was in training mode; exported in eval mode"] if module.training else []
    generator = torch.Generator().manual_seed(seed)
    examples = tuple(torch.rand(TRACED_BATCH, *shape, generator=generator) for shape in shapes)
    with _evaluating(module):
        with torch.no_grad():
            found = list(_named_outputs(module(*examples)))
        notes += [f"output {name!r} is None and was dropped" for name, t in found if t is None]
        ends = _Names(names, [name for name, tensor in found if tensor is not None])
        _require_distinct(ends)
        flat = _Flat(module).eval()
        model, exporter = _exported(flat, examples, ends, opset)
        yield Traced(
            model=model,
            run=_runner(flat, ends),
            inputs=tuple(
                TensorSpec(name=name, dtype="float32", shape=(BATCH, *shape))
                for name, shape in zip(names, shapes, strict=True)
            ),
            notes=(*notes, exporter),
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


@dataclass(frozen=True, slots=True)
class _Names:
    inputs: list[str]
    outputs: list[str]


def _made(factory: str) -> torch.nn.Module:
    module_name, _, name = factory.partition(":")
    with _current_folder_importable():
        try:
            python = importlib.import_module(module_name)
        except ImportError as error:
            raise UsageError(f"{factory}: cannot import {module_name} ({error}).") from error
        make = getattr(python, name, None)
        if make is None:
            known = [n for n, value in vars(python).items() if callable(value) and n[0] != "_"]
            raise UnknownName.among(f"factory in {module_name}", name, known)
        made = make() if callable(make) and not isinstance(make, torch.nn.Module) else make
    if not isinstance(made, torch.nn.Module):
        raise UsageError(
            f"{factory}: gave a {type(made).__name__}, needs to be a callable without arguments "
            f"that returns a torch.nn.Module."
        )
    return made


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _input_names(
    module: torch.nn.Module, shapes: Sequence[tuple[int, ...]], factory: str
) -> list[str]:
    """Names of forward's first parameters, one a shape. Raises `UsageError` if too few or many."""
    parameters = [
        parameter
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    needed = [one.name for one in parameters if one.default is one.empty]
    if not len(needed) <= len(shapes) <= len(parameters) or not shapes:
        raise UsageError(
            f"{factory}: forward takes {', '.join(needed) or 'no named input'}; got "
            f"{len(shapes)} shapes. Give one --shape an input, without the batch: --shape 3,256,256"
        )
    return [one.name for one in parameters[: len(shapes)]]


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
            f"output {path or 'output'!r} of the module is a {type(value).__name__}, "
            f"needs to be tensors in dicts, lists or tuples."
        )


def _require_distinct(names: _Names) -> None:
    uses = Counter([*names.inputs, *names.outputs])
    if shared := [name for name, count in uses.items() if count > 1]:
        raise UsageError(
            f"the module uses the name {', '.join(shared)} for more than one of its inputs and "
            f"outputs; ONNX needs different ones. Rename the output's key or forward's parameter."
        )


def _runner(flat: _Flat, names: _Names) -> Run:
    def run(feeds: Arrays) -> dict[str, Array]:
        with torch.no_grad():
            # Copies: a module may write into its input.
            tensors = flat(*(torch.tensor(feeds[name]) for name in names.inputs))
        return {name: t.detach().numpy() for name, t in zip(names.outputs, tensors, strict=True)}

    return run


def _exported(
    flat: _Flat, examples: tuple[torch.Tensor, ...], names: _Names, version: int
) -> tuple[onnx.ModelProto, str]:
    """The first exporter's graph that has a dynamic batch and the wanted opset, else the next best.

    torch.export can answer a request for a dynamic batch with a static graph and no warning, and
    may keep its own opset 18: neither is an error to it, so the graph itself is looked at.
    """
    made: list[tuple[onnx.ModelProto, str]] = []
    reasons: list[str] = []
    for label, exporter in (("torch.export", _with_dynamo), ("TorchScript", _with_torchscript)):
        try:
            with _quiet():
                model = exporter(flat, examples, names, version)
        # Both raise RuntimeError and its kin; TorchScript passes on the module's own errors.
        except (ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            reasons.append(f"{label} failed: {' '.join(str(error).split())[:300]}")
            continue
        if _is_dynamic(model) and opset_of(model) == version:
            return model, "; ".join([f"exported with {label}", *reasons])
        found = f"opset {opset_of(model)}" if _is_dynamic(model) else "a static batch"
        reasons.append(f"{label} gave {found}")
        made.append((model, label))
    if not made:
        raise ExportFailed(f"neither of PyTorch's exporters makes a graph. {'; '.join(reasons)}.")
    model, label = max(made, key=lambda one: _is_dynamic(one[0]))
    return model, "; ".join([f"exported with {label}", *reasons])


def _is_dynamic(model: onnx.ModelProto) -> bool:
    return all(isinstance(tensor.shape[0], str) for tensor in signature(model).inputs)


def _with_dynamo(
    flat: _Flat, examples: tuple[torch.Tensor, ...], names: _Names, version: int
) -> onnx.ModelProto:
    batch = torch.export.Dim(BATCH)
    program = torch.onnx.export(
        flat,
        examples,
        dynamo=True,
        opset_version=version,
        input_names=names.inputs,
        output_names=names.outputs,
        dynamic_shapes=(tuple({0: batch} for _ in examples),),
        verbose=False,
    )
    if program is None:
        raise RuntimeError("returned nothing")
    return program.model_proto


def _with_torchscript(
    flat: _Flat, examples: tuple[torch.Tensor, ...], names: _Names, version: int
) -> onnx.ModelProto:
    buffer = io.BytesIO()
    torch.onnx.export(
        flat,
        examples,
        buffer,  # type: ignore[arg-type]  # its annotation forgets what its docstring allows
        dynamo=False,
        opset_version=version,
        input_names=names.inputs,
        output_names=names.outputs,
        dynamic_axes={name: {0: BATCH} for name in (*names.inputs, *names.outputs)},
    )
    return onnx.load_from_string(buffer.getvalue())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings: what they warn of is checked on the graph they make."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
