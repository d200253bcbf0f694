"""PyTorch's own files and a user's factories: modules, programs and weights, and no pickle run.

A pickle is a program: whoever loads one runs it. Here nothing is unpickled but tensors.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import struct
import sys
import traceback
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.options import ExportOptions
from trtfuse.core.specs import TensorSpec

# What the code of a user's module may raise, for it is any code.
_FAULTS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, TypeError, ValueError),
)

_WAY_OUT = (
    "Give a factory, as package.module:factory, and its weights with --weights, or save the "
    "module with torch.export.save or torch.jit.save."
)


def module(options: ExportOptions) -> tuple[torch.nn.Module, list[str]]:
    """The module that `options` name, filled with its weights; and what is to be said of it.

    Raises `UsageError`, and `UnknownName` for a factory that is not there.
    """
    path = Path(options.name)
    made = _script(path) if path.suffix in (".pt", ".pth") else _made(options)
    if options.weights:
        _fill(made, options.weights, options.weights_key)
    if away := {str(t.device) for t in made.state_dict().values()} - {"cpu"}:
        raise UsageError(
            f"{options.name}: its weights are on {', '.join(away)}, and export runs it on the CPU. "
            f"Give module.cpu()."
        )
    notes = ["the module was in training mode; exported in eval mode"] if made.training else []
    wide = [n for n, t in (*made.named_parameters(), *made.named_buffers()) if _is_wide(t)]
    if wide:
        made = _narrowed(made)
        notes.append(f"float64 was made float32: {_some(wide)}")
    return made, notes


def input_names(made: torch.nn.Module, options: ExportOptions) -> list[str]:
    """Names of forward's first parameters, one a shape. Raises `UsageError` if too few or many."""
    count = len(options.shapes)
    names, needed = _parameters(made, count, options.name)
    if not needed <= count <= len(names) or not count:
        raise UsageError(
            f"{options.name}: forward takes {', '.join(names[:needed]) or 'no input'}; got "
            f"{count} shapes. Give one --shape an input, without the batch: --shape 3,256,256"
        )
    if unknown := [name for name in options.batch_inputs if name not in names[:count]]:
        raise UnknownName.among("--batch-input", unknown[0], names[:count])
    return names[:count]


def program(path: Path) -> torch.export.ExportedProgram:
    """The program of a .pt2. Raises `UsageError` if it is none, or holds pickled objects."""
    _require_tensors_only(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(str(path))
    except (RuntimeError, ValueError, KeyError, AssertionError, OSError) as error:
        raise UsageError(f"{path}: not a program of torch.export ({_short(error)}).") from error


def program_inputs(loaded: torch.export.ExportedProgram) -> tuple[TensorSpec, ...]:
    """The inputs of a program, in order; open axes by their names."""
    holders = {n.name: n.meta["val"] for n in loaded.graph.nodes if n.op == "placeholder"}
    return tuple(
        TensorSpec(
            name=name,
            dtype=str(holders[name].dtype).removeprefix("torch."),
            shape=tuple(n if isinstance(n, int) else str(n) for n in holders[name].shape),
        )
        for name in loaded.graph_signature.user_inputs
        if isinstance(name, str)
    )


def _made(options: ExportOptions) -> torch.nn.Module:
    if isinstance(options.model, str):
        with _current_folder_importable():
            made = _called(_imported(options.model), options)
    else:
        made = _called(options.model, options)
    if not isinstance(made, torch.nn.Module):
        raise UsageError(
            f"{options.name}: gave a {type(made).__name__}, needs to be a callable that returns "
            f"a torch.nn.Module."
        )
    return made


def _imported(model: str) -> Any:
    """What "package.module:name" names. Raises `UsageError`, `UnknownName`."""
    module_name, _, name = model.partition(":")
    if not module_name or not name:
        raise UsageError(f"{model}: needs a module and a factory, as package.module:factory.")
    try:
        python = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"{model}: cannot import {module_name} ({error}).") from error
    except (SyntaxError, *_FAULTS) as error:
        raise UsageError(f"{model}: cannot import {module_name}; {_raised(error)}.") from error
    found = getattr(python, name, None)
    if found is None:
        known = [n for n, value in vars(python).items() if callable(value) and n[0] != "_"]
        raise UnknownName.among(f"factory in {module_name}", name, known)
    return found


def _called(make: Any, options: ExportOptions) -> Any:
    given = {name: _value(text) for name, text in options.arguments}
    if isinstance(make, torch.nn.Module) or not callable(make):
        if given:
            raise UsageError(f"--arg: {options.name} is no callable, it takes no arguments.")
        return make
    try:
        inspect.signature(make).bind(**given)
    except TypeError as error:
        raise UsageError(
            f"{options.name}{inspect.signature(make)}: {error}. Give its arguments with "
            f"--arg name=value."
        ) from error
    try:
        return make(**given)
    except _FAULTS as error:
        raise UsageError(f"{options.name}: {_raised(error)}.") from error


def _raised(error: BaseException) -> str:
    """What an error of the user's code is, and where it comes from."""
    (*_, last) = traceback.extract_tb(error.__traceback__)
    place = f"{last.filename}:{last.lineno}"
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    return f"{place} raised {type(error).__name__} ({_short(error)})"


def _value(text: str) -> Any:
    """JSON where it is: 3, 0.5, true, [1, 2], null; else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _script(path: Path) -> torch.nn.Module:
    """A TorchScript file's module. Raises `UsageError` for what else a .pt may hold."""
    if not path.is_file():
        raise UsageError(f"{path}: does not exist.")
    names = _members(path)
    # torch.save and torch.jit.save both write a zip; only the latter has code in it, as text.
    if any("/code/" in name for name in names):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded: torch.nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]
                    str(path), map_location="cpu"
                )
        except RuntimeError as error:
            raise UsageError(f"{path}: not a whole TorchScript file ({_short(error)}).") from error
        return loaded
    try:
        _tensors(path)
    except UnpicklingError as error:
        raise UsageError(
            f"{path}: is a pickled module. To load it is to run the code inside it, and to need "
            f"the sources it was made from; it is not loaded. {_WAY_OUT}"
        ) from error
    raise UsageError(f"{path}: holds weights and no module. {_WAY_OUT}")


def _fill(made: torch.nn.Module, path: Path, key: str | None) -> None:
    """Load a state dict, strictly. Raises `UsageError` with the keys that do not fit."""
    given = _state(path, key)
    own = made.state_dict()
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (
            ("missing", [name for name in own if name not in given]),
            ("unexpected", [name for name in given if name not in own]),
            (
                "of another shape",
                [
                    f"{name} {list(given[name].shape)}, needs {list(own[name].shape)}"
                    for name in own
                    if name in given and own[name].shape != given[name].shape
                ],
            ),
        )
        if names
    ]
    if problems:
        raise UsageError(f"--weights {path}: do not fit the module; {'; '.join(problems)}.")
    made.load_state_dict(given)


def _state(path: Path, key: str | None) -> Mapping[str, torch.Tensor]:
    if not path.is_file():
        raise UsageError(f"--weights {path}: does not exist.")
    if path.suffix == ".safetensors":
        if key is not None:
            raise UsageError("--weights-key: a .safetensors file has no keys above its tensors.")
        return _safetensors(path)
    try:
        found = _tensors(path)
    except UnpicklingError as error:
        raise UsageError(
            f"--weights {path}: holds more than tensors, and is not loaded: a pickle runs code. "
            f"Save the state dict alone: torch.save(module.state_dict(), path)."
        ) from error
    if key is not None:
        if not isinstance(found, Mapping) or key not in found:
            known = map(str, found) if isinstance(found, Mapping) else []
            raise UnknownName.among(f"--weights-key in {path}:", key, known)
        found = found[key]
    if not isinstance(found, Mapping) or not all(map(torch.is_tensor, found.values())):
        keys = _some([str(one) for one in found]) if isinstance(found, Mapping) else type(found)
        raise UsageError(
            f"--weights {path}: is no state dict, it holds {keys}. Name the one inside it with "
            f"--weights-key."
        )
    return found


def _tensors(path: Path) -> Any:
    """What torch.save wrote, if it is tensors and containers of them.

    Raises UnpicklingError for anything else, and `UsageError` for what torch.save did not write.
    """
    is_zip = bool(_members(path))
    with path.open("rb") as file:
        if not is_zip and file.read(1) != b"\x80":  # how every pickle since protocol 2 begins
            raise UsageError(f"{path}: not a file of PyTorch.")
    try:
        return torch.load(path, weights_only=True, map_location="cpu", mmap=is_zip)
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError, struct.error) as error:
        raise UsageError(f"{path}: not a whole file of PyTorch ({_short(error)}).") from error


# The format's own names of types: https://huggingface.co/docs/safetensors
_SAFE_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    """8 bytes of length, that much JSON, then the tensors. No package is needed to read that."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise UsageError(f"--weights {path}: not a safetensors file, or cut short.")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            data = torch.from_file(str(path), size=size, dtype=torch.uint8)[8 + length :]
            return {name: _cut(data, one) for name, one in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise UsageError(
                f"--weights {path}: not a safetensors file, or cut short ({_short(error)})."
            ) from error


def _cut(data: torch.Tensor, entry: Mapping[str, Any]) -> torch.Tensor:
    first, last = entry["data_offsets"]
    if not 0 <= first <= last <= len(data):
        raise ValueError(f"bytes {first} to {last} of {len(data)}")
    # A copy: the bytes lie in the file where they lie, aligned or not.
    return data[first:last].clone().view(_SAFE_DTYPES[entry["dtype"]]).reshape(entry["shape"])


def _require_tensors_only(path: Path) -> None:
    """Raise `UsageError` for a .pt2 that torch would unpickle objects of."""
    if not path.is_file():
        raise UsageError(f"{path}: does not exist.")
    names = _members(path)
    if not any(name.split("/", 1)[-1].startswith("models/") for name in names):
        raise UsageError(f"{path}: not a program of torch.export.")
    with zipfile.ZipFile(path) as archive:
        for name in names:
            if fault := _pickled(archive, name):
                raise UsageError(
                    f"{path}: {name} is {fault}. To load it is to run the code inside it; it is "
                    f"not loaded. Export the program without custom objects."
                )


def _pickled(archive: zipfile.ZipFile, name: str) -> str | None:
    last = name.rsplit("/", 1)[-1]
    if last.startswith(("custom_obj", "opaque_obj")) or "/aotinductor/" in name:
        return "a custom object or compiled code"
    if last.endswith("config.json") and b'"use_pickle": true' in archive.read(name):
        return "a list of pickled tensors"
    if last.endswith(".pt"):
        try:
            torch.load(io.BytesIO(archive.read(name)), weights_only=True)
        except (UnpicklingError, RuntimeError, EOFError, ValueError):
            return "a pickle of more than tensors"
    return None


def _members(path: Path) -> list[str]:
    """Names in a zip; none where the file is no zip, as PyTorch's files before 1.6 are not."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _parameters(made: torch.nn.Module, count: int, source: str) -> tuple[list[str], int]:
    """Names of forward's parameters, and how many of them have no default.

    What is left of `count` goes to a `*parameter`, numbered. Raises `UsageError` for one that
    needs its keyword, which an exporter does not pass.
    """
    if isinstance(made, torch.jit.ScriptModule):
        method: Any = made.forward
        arguments = method.schema.arguments[1:]  # without self
        required = [one for one in arguments if not one.has_default_value()]
        return [one.name for one in arguments], len(required)
    every = inspect.signature(made.forward).parameters.values()
    if keyed := [p.name for p in every if p.kind is p.KEYWORD_ONLY and p.default is p.empty]:
        raise UsageError(
            f"{source}: forward needs {', '.join(keyed)} by keyword, which no graph can take. Give "
            f"it a default, or wrap the module in one whose forward sets it."
        )
    found = [one for one in every if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names = [one.name for one in found]
    for one in every:
        if one.kind is one.VAR_POSITIONAL:
            names += [f"{one.name}_{n}" for n in range(max(1, count - len(found)))]
    return names, sum(one.default is one.empty for one in found)


def _narrowed(made: torch.nn.Module) -> torch.nn.Module:
    """A copy whose float64 is float32, and whose other types stay."""
    new: Any = deepcopy(made)
    narrowed: torch.nn.Module = new._apply(lambda t: t.float() if _is_wide(t) else t)
    return narrowed


def _is_wide(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float64


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _some(names: Sequence[str]) -> str:
    """The first of `names`, and how many more."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{', '.join(names[:8])}{more}"
