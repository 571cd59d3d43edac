"""Records as plain JSON, and back: every class is written by its public name, and nothing else is ever imported."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from . import catalogue


class ConfigError(ValueError):
    """A setting that cannot be: says which, what it was, and what is allowed."""


def encode(value: Any, hint: Any = Any) -> Any:
    """A record as plain JSON; `type` names its class (`module:Class` for classes that are not acclimate's).

    `hint` is the type of the field that holds the value: a whole number in a field of floats is written as a float,
    because it is read back as one, and a record and its copy from a file must have one hash.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        body = {f.name: encode(getattr(value, f.name), hints.get(f.name, Any)) for f in dataclasses.fields(value)}
        return {"type": _class_name(type(value)), **body}
    if isinstance(value, list | tuple):
        return [encode(v, h) for v, h in zip(value, _hints_inside(hint, len(value)), strict=True)]
    if isinstance(value, int) and not isinstance(value, bool) and _is_float(hint):
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"type": "python", "name": catalogue.identity(value)}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of a record's fields; none where a user's own annotations cannot be read."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, None apart."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return tuple(t for t in typing.get_args(hint) if t is not type(None)) if union else (hint,)


def _is_float(hint: Any) -> bool:
    """Whether a field holds floats, or nothing: not where whole numbers are allowed by name."""
    return _options(hint) == (float,)


def _hints_inside(hint: Any, length: int) -> list[Any]:
    """The types of the entries of a tuple."""
    own = [o for o in _options(hint) if typing.get_origin(o) in (tuple, list)]
    inner = typing.get_args(own[0]) if len(own) == 1 else ()
    if len(inner) == 1 or inner[1:] == (...,):
        return [inner[0]] * length
    return list(inner) if len(inner) == length else [Any] * length


def by_name(value: Any) -> Any:
    """The encoded record without the fingerprints of Python objects."""
    if isinstance(value, dict):
        if value.get("type") == "python":
            return {**value, "name": value["name"].partition("#")[0]}
        return {k: by_name(v) for k, v in value.items()}
    return [by_name(v) for v in value] if isinstance(value, list) else value


def _class_name(cls: type) -> str:
    module = cls.__module__.removeprefix("acclimate.") if cls.__module__.startswith("acclimate.") else cls.__module__
    return f"{module}:{cls.__qualname__}"


def decode(value: Any, hint: Any = Any, where: str = "experiment") -> Any:
    """The inverse of `encode`, with every field checked."""
    if isinstance(value, Mapping):
        if value.get("type") == "python":
            raise ConfigError(
                f"{where}: {value['name']} was given as a Python object, which a file cannot hold; "
                f"pass it again, e.g. ac.load(path, {where.split('.')[-1]}=...)"
            )
        cls = _resolve(str(value.get("type", "")), where)
        hints = typing.get_type_hints(cls)
        fields = {k: v for k, v in value.items() if k != "type"}
        if unknown := [k for k in fields if k not in {f.name for f in dataclasses.fields(cls)}]:
            raise ConfigError(f"{where}: {cls.__name__} has no field '{unknown[0]}'; written by another version?")
        return _make(cls, {k: decode(v, hints[k], f"{where}.{k}") for k, v in fields.items()}, where)
    if isinstance(value, list):
        inner = enumerate(zip(value, _hints_inside(hint, len(value)), strict=True))
        return tuple(decode(v, h, f"{where}[{i}]") for i, (v, h) in inner)
    if isinstance(value, int) and not isinstance(value, bool) and _is_float(hint):
        return float(value)
    return value


def _resolve(name: str, where: str) -> type:
    module, _, qualname = name.partition(":")
    if not qualname:
        raise ConfigError(f"{where}: '{name}' must be 'module:Class'")
    for full in (f"acclimate.{module}", module):
        try:
            cls = getattr(importlib.import_module(full), qualname, None)
        except ImportError:
            continue
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            return cls
    raise ConfigError(f"{where}: cannot find the record '{name}'; is its module on the Python path?")


def _make(cls: type, fields: dict[str, Any], where: str) -> Any:
    try:
        return cls(**fields)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{where}: {e}") from e
