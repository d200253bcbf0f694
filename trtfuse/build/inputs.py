"""What `--calib-data` names, as examples: pictures as the card says, arrays, or a script's."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from trtfuse.build.plan import Profile
from trtfuse.calibrate.recipe import Example, Order
from trtfuse.core import files
from trtfuse.core.errors import CardError, ItemError, TrtfuseError, UsageError
from trtfuse.core.flow import Codec, Item
from trtfuse.core.inputs import filled, fixed_batch
from trtfuse.core.specs import BATCH, Array, Arrays, ModelSpec
from trtfuse.io.keys import path_of
from trtfuse.io.opening import open_source
from trtfuse.tasks.table import codec

# Where no inputs were given, halves are measured and judged on so many random ones.
_RANDOM = 16


@dataclass(frozen=True, slots=True)
class Inputs:
    """Examples, and how a recipe chooses among them."""

    examples: tuple[Example, ...]
    order: Order
    real: bool
    """False: random numbers, which say little of ranges."""


def gather(data: Path | None, model: ModelSpec, profile: Profile, scratch: Path) -> Inputs:
    """The examples of `data`; without it, random ones. Nothing is decoded yet.

    Each is one item, or as many copies of it as a fixed batch takes. Raises UsageError, CardError
    where `data` is none of the three kinds or does not fit the model.
    """
    inputs = _gathered(data, model, profile, scratch)
    if (batch := fixed_batch(model.inputs)) is None:
        return inputs
    whole = (replace(one, load=partial(_whole, one.load, batch)) for one in inputs.examples)
    return replace(inputs, examples=tuple(whole))


def _whole(load: Callable[[], Arrays], batch: int) -> dict[str, Array]:
    return dict(filled(load(), batch))


def _gathered(data: Path | None, model: ModelSpec, profile: Profile, scratch: Path) -> Inputs:
    if data is None:
        return Inputs(_random(model, profile), "listed", real=False)
    name, _, function = str(data).partition(".py:")
    if data.suffix == ".py" or function:
        script = Path(f"{name}.py") if function else data
        rows = _script(script, function or "load_data", model, scratch)
        return Inputs(tuple(rows), "listed", real=True)
    if data.suffix == ".npy":
        return Inputs(tuple(_rows(data, model)), "shuffled", real=True)
    return Inputs(tuple(_pictures(data, model, dict(profile))), "shuffled", real=True)


def _pictures(root: Path, model: ModelSpec, profile: Mapping[str, Any]) -> Iterator[Example]:
    if model.card is None:
        raise CardError(
            f"--calib-data {root}: {model.path} has no card, so nothing says what a picture is to "
            f"it. Add one with trtfuse export, or give arrays (.npy)."
        )
    card = model.card.input
    (tensor,) = (one for one in model.inputs if one.name == card.name)
    folder = root if root.is_dir() else root.parent
    encoder = codec(model.card)
    for item in open_source(root):
        if item.frame is None:  # frames of animations come in passing, and once
            load = partial(
                _encoded, encoder, item, tensor.name, np.dtype(tensor.dtype), profile[tensor.name]
            )
            sha256 = files.sha256(folder / path_of(item.key))
            pixels = partial(_pixels, item)
            yield Example(key=item.key, sha256=sha256, load=load, pixels=pixels)


def _pixels(item: Item) -> Array:
    return item.load().pixels


def _encoded(
    encoder: Codec, item: Item, name: str, dtype: np.dtype[Any], accepted: Any
) -> dict[str, Array]:
    picture = item.load()
    geometry = encoder.fit(*picture.pixels.shape[:2])
    shape = (1, *encoder.shape(geometry))
    if not replace(accepted, min=(1, *accepted.min[1:])).holds(shape):
        raise ItemError(f"is {shape[1:]} to the model, outside of --size")
    array = np.empty(shape, dtype)
    encoder.encode(picture, geometry, array[0])
    return {name: array}


def _rows(path: Path, model: ModelSpec) -> Iterator[Example]:
    if len(model.inputs) != 1:
        raise UsageError(
            f"--calib-data {path}: one array, and the model has {len(model.inputs)} inputs. Give "
            f"a script that defines load_data() and yields all of them."
        )
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"--calib-data {path}: not a .npy array ({error}).") from error
    (tensor,) = model.inputs
    _require_fits(f"--calib-data {path}", {tensor.name: array}, model)
    for number in range(len(array)):
        row = array[number : number + 1]
        yield Example(
            key=f"row {number}", sha256=_digest({"": row}), load=partial(_copied, tensor.name, row)
        )


def _copied(name: str, row: Array) -> dict[str, Array]:
    return {name: np.array(row)}


def _script(path: Path, function: str, model: ModelSpec, scratch: Path) -> Iterator[Example]:
    """Every item that the script yields, kept on disk: it is run once."""
    spec = importlib.util.spec_from_file_location("trtfuse_calibration_data", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"--calib-data {path}: is not a script that can be run.")
    module = importlib.util.module_from_spec(spec)
    with _answering_for(path):
        spec.loader.exec_module(module)
    load = getattr(module, function, None)
    if load is None:
        raise UsageError(f"--calib-data {path}: defines no {function}(), which yields the inputs.")
    number = 0
    feeding = _guarded(path, load)
    for feeds in feeding:
        _require_fits(f"--calib-data {path}, item {number}", feeds, model)
        for row in range(len(next(iter(feeds.values())))):
            arrays = {name: np.asarray(one)[row : row + 1] for name, one in feeds.items()}
            kept = scratch / f"script-{number}.npz"
            np.savez(kept, allow_pickle=False, **arrays)
            yield Example(
                key=f"item {number}", sha256=_digest(arrays), load=partial(_restored, kept)
            )
            number += 1


def _guarded(path: Path, load: Callable[[], Iterable[Arrays]]) -> Iterator[Arrays]:
    with _answering_for(path):
        yield from load()


@contextmanager
def _answering_for(path: Path) -> Iterator[None]:
    """Raise UsageError for what a stranger's script raises, with its line."""
    try:
        yield
    except TrtfuseError:
        raise
    except Exception as error:
        lines = [one for one in extract_tb(error.__traceback__) if one.filename == str(path)]
        where = f" in line {lines[-1].lineno}" if lines else ""
        raise UsageError(
            f"--calib-data {path}: raised {type(error).__name__} ({error}){where}."
        ) from error


def _restored(path: Path) -> dict[str, Array]:
    with np.load(path) as held:
        return dict(held)


def _random(model: ModelSpec, profile: Profile) -> tuple[Example, ...]:
    from trtfuse.graph import probe

    shapes = dict(profile)
    tensors = [replace(one, shape=(BATCH, *shapes[one.name].opt[1:])) for one in model.inputs]
    card = model.card.input if model.card else None
    items = probe.random_items(tensors, count=_RANDOM, seed=0, card=card)
    rows = [items.rows(n, n + 1) for n in range(_RANDOM)]
    return tuple(
        Example(key=f"random {n}", sha256=_digest(row), load=partial(dict, row))
        for n, row in enumerate(rows)
    )


def _require_fits(what: str, feeds: Arrays, model: ModelSpec) -> None:
    """Raise UsageError unless `feeds` are batches of the model's inputs."""
    known = {one.name: one for one in model.inputs}
    if feeds.keys() != known.keys():
        raise UsageError(f"{what}: has {sorted(feeds)}, needs the inputs {sorted(known)}.")
    for name, array in feeds.items():
        tensor = known[name]
        fits = array.ndim == len(tensor.shape) and all(
            isinstance(need, str) or need == got
            for need, got in zip(tensor.shape[1:], array.shape[1:], strict=True)
        )
        if not fits or array.dtype != tensor.dtype:
            raise UsageError(
                f"{what}: input {name!r} is {array.dtype} {list(array.shape)}, "
                f"needs {tensor.dtype} {[BATCH, *tensor.shape[1:]]}."
            )


def _digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
