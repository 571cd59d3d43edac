"""Records as plain JSON, and back: every class is written by its public name, and nothing else is ever imported."""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core import check
from ..core.check import LATER
from . import kinds, labels, limits, names


class ConfigError(ValueError):
    """A setting that cannot be: says which, what it was, and what is allowed."""


def encode(value: Any, hint: Any = Any, former: bool = False) -> Any:
    """A record as plain JSON; `type` names its class (see `names`).

    `hint` is the type of the field that holds the value: a whole number in a field of floats is written as a float,
    because it is read back as one, and a record and its copy from a file must have one hash. With `former`, classes
    have the names that version 0.1.0.dev0 gave them, which the hashes in its files are made of.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = check.hints(type(value))
        body = {n: encode(v, hints[n], former) for n, v in _fields(value).items()}
        return {"type": _name(type(value), former), **body}
    if isinstance(value, list | tuple):
        inner = zip(value, _hints_inside(hint, len(value)), strict=True)
        return [encode(v, h, former) for v, h in inner]
    if isinstance(value, int) and not isinstance(value, bool) and _is_float(hint):
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"type": "python", "name": labels.identity(value)}


REVISION = "revision"
"""The field that names the version in which data is dealt or changed. A file without it means revision 1."""


def _fields(record: Any) -> dict[str, Any]:
    """The fields that are written: all but those that files of earlier versions do not name, with what these mean."""
    known = [(f, getattr(record, f.name)) for f in dataclasses.fields(record)]
    return {f.name: v for f, v in known if not _implied(f, v)}


def _implied(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a file without the field means this value."""
    return bool(value == 1 if field.name == REVISION else LATER in field.metadata and value == field.default)


def _name(cls: type, former: bool) -> str:
    """What a class is called in a file. A user's own class is known from then on: the user passed it."""
    name = names.name_of(cls)
    if former:
        return names.FORMER.get(name, name)
    if not names.is_known(cls):
        names.allow(cls)
    return name


def renamed(value: Any) -> Any:
    """An encoded record whose classes have their public names, whatever version wrote it."""
    if isinstance(value, Mapping):
        name = value.get("type")
        own = {"type": names.OLD.get(name, name)} if isinstance(name, str) else {}
        return {k: renamed(v) for k, v in value.items()} | own
    return [renamed(v) for v in value] if isinstance(value, list) else value


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


def decode(
    value: Any, hint: Any = Any, where: str = "experiment", strict: bool = False, given: Sequence[str] = ()
) -> Any:
    """The inverse of `encode`, with every field checked.

    With `strict`, every field must be there but those that files leave out by their nature, and those `given` apart.
    """
    if isinstance(value, Mapping):
        if value.get("type") == "python":
            raise ConfigError(
                f"{where}: {value.get('name')} was given as a Python object, which a file cannot hold; "
                f"pass it again, e.g. ac.load(path, {_field(where)}=...)"
            )
        cls = _resolve(str(value.get("type", "")), where)
        hints = check.hints(cls)
        fields = {k: v for k, v in value.items() if k != "type"}
        known = {f.name: f for f in dataclasses.fields(cls)}
        if REVISION in hints:
            fields.setdefault(REVISION, 1)
        if unknown := [k for k in fields if k not in known]:
            raise ConfigError(f"{where}: {cls.__name__} has no field '{unknown[0]}'; written by another version?")
        missing = [n for n, f in known.items() if n not in fields and n not in given and LATER not in f.metadata]
        if strict and missing:
            raise ConfigError(f"{where}.{missing[0]} is missing; restore it, or start a new run")
        return _make(cls, {k: decode(v, hints[k], f"{where}.{k}", strict) for k, v in fields.items()}, where)
    if isinstance(value, list):
        inner = enumerate(zip(value, _hints_inside(hint, len(value)), strict=True))
        return tuple(decode(v, h, f"{where}[{i}]", strict) for i, (v, h) in inner)
    return _checked(value, hint, where)


def settle(record: Any, *path: str) -> None:
    """Give the plain fields of a record, and of those inside it, the types that they have when it is read from a file.

    Numbers out of arrays become Python's own, lists tuples, and paths in fields of text text. What a file could not be
    read with is refused before it is written. `path` leads to the record.
    """
    hints = check.hints(type(record))
    for f in dataclasses.fields(record):
        old = getattr(record, f.name)
        new = _settled(old, hints[f.name], (*path, f.name))
        if new is not old:
            object.__setattr__(record, f.name, new)


def _settled(value: Any, hint: Any, path: tuple[str, ...]) -> Any:
    if type(value) in (float, bool, str) and type(value) is hint:  # almost always
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        settle(value, *path)
        return value
    if isinstance(value, list | tuple):
        new = tuple(_settled(v, h, path) for v, h in zip(value, _hints_inside(hint, len(value)), strict=True))
        same = isinstance(value, tuple) or not any(typing.get_origin(o) is tuple for o in _options(hint))
        return value if same and all(a is b for a, b in zip(value, new, strict=True)) else new
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, os.PathLike) and str in _options(hint):
        value = os.fspath(value)
    try:
        return _checked(value, hint, ".".join(path))
    except ConfigError as e:
        raise check.FieldError(str(e), *path) from None


def _checked(value: Any, hint: Any, where: str) -> Any:
    """A plain value, if the field may hold such a one."""
    if isinstance(value, int) and not isinstance(value, bool) and _is_float(hint):
        return float(value) if abs(value) < 2**1000 else math.inf
    if reason := limits.refusal(where.rpartition(".")[2], value):
        raise ConfigError(f"{where}: {reason}")
    options = _options(hint)
    if value is not None and all(o in (bool, int, float, str) for o in options) and type(value) not in options:
        words = " or ".join(o.__name__ for o in options)
        raise ConfigError(f"{where}: {limits.shown(value)} must be of type {words}")
    if isinstance(value, str | int | float | type) and all(dataclasses.is_dataclass(o) for o in options):
        owner, _, field = where.rpartition(".")
        kinds.one(owner, field, value, options[0])
    return value


def _field(where: str) -> str:
    """The field of an experiment that a place in it belongs to: `ac.load` takes whole fields."""
    return [*where.split("."), ""][1].partition("[")[0] or where


def _resolve(name: str, where: str) -> type:
    """The class that a file names, out of those that may be named."""
    module, colon, _ = name.partition(":")
    if not colon:
        raise ConfigError(f"{where}: '{name}' must be 'module:Class'")
    try:
        cls = names.class_of(name)
    except (ImportError, AttributeError, TypeError) as e:
        raise ConfigError(f"{where}: cannot find the record '{name}', which {names.ALLOW} names: {e}") from e
    except Exception as e:  # a user's own code may fail in any way
        raise ConfigError(f"{where}: cannot import '{name}': {type(e).__name__}: {e}") from e
    if cls is not None:
        return cls
    raise ConfigError(
        f"{where}: cannot find the record '{name}': it is not acclimate's, and what a file names is not imported. If "
        f"it is your own, trust it: --trust, trust=True, `{names.ALLOW}={name}` (with `{module}` on the Python path) "
        "or `acclimate.allow(...)`; or pass it again"
    )


def _make(cls: type, fields: dict[str, Any], where: str) -> Any:
    try:
        return cls(**fields)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, ArithmeticError, RecursionError) as e:
        raise ConfigError(f"{where}: {e}") from e
