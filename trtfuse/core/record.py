"""Frozen dataclasses to JSON and back, strictly: unknown, missing and ill-typed fields are errors.

Reads what our own files hold: str, int, float, bool, None, Path, Enum, Literal, tuple[X, ...],
tuple[X, Y], Mapping[str, X], nested dataclasses, and unions of dataclasses told apart by their
`Literal` field `name`. pydantic does more, and would be the only dependency of `core`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Malformed(ValueError):
    """Where in the document, what stands there, what is needed."""


def to_json(value: object) -> Any:
    """Plain JSON data (dict, list, str, int, float, bool, None) of a record."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_json(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    return value


def from_json(kind: type[T], data: object, *, at: str) -> T:
    """A `kind` read from JSON data. `at` names the document in errors. Raises `Malformed`."""
    return cast(T, _read(kind, data, at))


def _read(kind: Any, data: Any, at: str) -> Any:
    if reader := _CONTAINERS.get(get_origin(kind)):
        return reader(get_args(kind), data, at)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, at)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_one_of(tuple(member.value for member in kind), data, at))
    return _read_scalar(kind, data, at)


def _read_scalar(kind: Any, data: Any, at: str) -> Any:
    # A bool is an int to Python; in a file it is a mistake.
    if kind is float and type(data) is int:
        return float(data)
    if kind is Path and isinstance(data, str):
        return Path(data)
    if type(data) is not kind:
        raise Malformed(f"{at}: needs {getattr(kind, '__name__', kind)}, got {data!r}")
    return data


def _one_of(choices: tuple[Any, ...], data: object, at: str) -> object:
    if data not in choices:
        raise Malformed(f"{at}: needs one of {', '.join(map(str, choices))}; got {data!r}")
    return data


def _read_tuple(kinds: tuple[Any, ...], data: object, at: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise Malformed(f"{at}: needs a list, got {data!r}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(data)
    if len(kinds) != len(data):
        raise Malformed(f"{at}: needs a list of {len(kinds)}, got {len(data)} values")
    return tuple(
        _read(kind, one, f"{at}[{i}]")
        for i, (kind, one) in enumerate(zip(kinds, data, strict=True))
    )


def _read_mapping(kinds: tuple[Any, ...], data: object, at: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Malformed(f"{at}: needs an object, got {data!r}")
    return {str(key): _read(kinds[1], one, f"{at}.{key}") for key, one in data.items()}


def _read_union(kinds: tuple[Any, ...], data: object, at: str) -> object:
    if data is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        return _read(kinds[0], data, at)
    if isinstance(data, dict) and all(dataclasses.is_dataclass(kind) for kind in kinds):
        return _read(_told_apart(kinds, data, at), data, at)
    errors = []
    for kind in kinds:
        try:
            return _read(kind, data, at)
        except Malformed as error:
            errors.append(str(error).removeprefix(f"{at}: "))
    raise Malformed(f"{at}: {', or '.join(errors)}")


def _told_apart(kinds: tuple[Any, ...], data: Mapping[str, object], at: str) -> Any:
    """The one of `kinds` whose Literal field `name` holds `data["name"]`."""
    by_name = {get_args(get_type_hints(kind)["name"])[0]: kind for kind in kinds}
    return by_name[_one_of(tuple(by_name), data.get("name"), f"{at}.name")]


def _read_dataclass(kind: Any, data: object, at: str) -> object:
    if not isinstance(data, dict):
        raise Malformed(f"{at}: needs an object, got {data!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(data) - set(fields)):
        raise Malformed(f"{at}: unknown {', '.join(unknown)}. Known: {', '.join(fields)}")
    hints = get_type_hints(kind)
    required = [f.name for f in fields.values() if _is_required(f)]
    if missing := [name for name in required if name not in data]:
        raise Malformed(f"{at}: missing {', '.join(missing)}")
    values = {name: _read(hints[name], value, f"{at}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise Malformed(f"{at}: {error}") from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


_CONTAINERS: dict[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    Union: _read_union,
    types.UnionType: _read_union,
    Literal: _one_of,
    tuple: _read_tuple,
    Mapping: _read_mapping,
}
