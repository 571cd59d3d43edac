"""Range checks for the fields of records: every message names the record, the field, the value and what is allowed.

Also how a record gets a field that files of earlier versions do not have.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar

T = TypeVar("T")
LATER = "later"
"""The mark of a field that files of earlier versions do not have."""


class FieldError(ValueError):
    """Fields of a record hold what they may not; `fields` names them, so that a reader of settings can say which."""

    def __init__(self, message: str, *fields: str) -> None:
        super().__init__(message)
        self.fields = fields


def later(default: T) -> T:
    """A field that a record got after files of it had been written: a file without it means `default`, for good.

    It is written where it is another, so that the hashes of earlier files stay as they are.
    """
    found: T = dataclasses.field(default=default, kw_only=True, metadata={LATER: True})
    return found


def _fail(record: Any, field: str, allowed: str) -> None:
    raise FieldError(f"{type(record).__name__}: {field}={getattr(record, field)!r} must be {allowed}", field)


def _number(value: Any) -> bool:
    return isinstance(value, Real)


def positive(record: Any, field: str) -> None:
    """The field is a finite number above zero."""
    value = getattr(record, field)
    if not (_number(value) and math.isfinite(value) and value > 0):
        _fail(record, field, "a finite number above 0")


def at_least(record: Any, field: str, low: float) -> None:
    """The field is a finite number not below `low`."""
    value = getattr(record, field)
    if not (_number(value) and math.isfinite(value) and value >= low):
        _fail(record, field, f"a finite number of at least {low}")


def all_finite(record: Any, *fields: str) -> None:
    """The fields hold finite numbers only: NaN passes comparisons that look for what is wrong."""
    for field in fields:
        if not all(math.isfinite(value) for value in getattr(record, field)):
            _fail(record, field, "finite numbers")


def within(record: Any, field: str, low: float, high: float) -> None:
    """The field lies in [low, high]."""
    value = getattr(record, field)
    if not (_number(value) and low <= value <= high):
        _fail(record, field, f"between {low} and {high}")


def whole(record: Any, field: str, low: int | None = None, high: int | None = None) -> None:
    """The field is a whole number, not below `low` and not above `high` where these are given."""
    value = getattr(record, field)
    number = isinstance(value, Integral) and not isinstance(value, bool)  # True is 1 to Python, but not to a reader
    if not (number and (low is None or value >= low) and (high is None or value <= high)):
        _fail(record, field, "a whole number" + _bounds(low, high))


def _bounds(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f" between {low} and {high}"
    if low is not None:
        return f" of at least {low}"
    return "" if high is None else f" of at most {high}"


def one_of(record: Any, field: str, allowed: Sequence[Any]) -> None:
    """The field is one of the allowed values."""
    if getattr(record, field) not in allowed:
        _fail(record, field, "one of " + ", ".join(repr(a) for a in allowed))


def several(record: Any, *fields: str) -> None:
    """The fields are tuples, or what becomes one, not a single value; of a text every letter would be one."""
    for field in fields:
        value = getattr(record, field)
        if isinstance(value, str) or not isinstance(value, Iterable):
            said = f"{value!r}"[:60]
            raise FieldError(f"{type(record).__name__}: {field}={said} must be a tuple; write ({said},)", field)


def choices(record: Any) -> None:
    """Every field whose type is a `Literal`, or one or None, holds one of the values that the type names."""
    kind: Any = type(record)
    for field, allowed in _choices(kind).items():
        one_of(record, field, allowed)


def hints(cls: Any) -> dict[str, Any]:
    """The types of a record's fields; Any where a class of a user has annotations that cannot be read.

    Those of a type checker's imports, for example, mean nothing while a program runs.
    """
    return _hints(cls)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        inherited = {name: hint for base in reversed(cls.__bases__) for name, hint in _hints(base).items()}
        return inherited | dict.fromkeys(vars(cls).get("__annotations__", {}), Any)


@functools.cache
def _choices(cls: Any) -> dict[str, tuple[Any, ...]]:
    """The values that a record's `Literal` fields allow."""
    out: dict[str, tuple[Any, ...]] = {}
    for field, hint in hints(cls).items():
        options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
        named = [o for o in options if typing.get_origin(o) is Literal]
        if named and all(o in named or o is type(None) for o in options):
            values = tuple(v for o in named for v in typing.get_args(o))
            out[field] = values if len(named) == len(options) else (*values, None)
    return out


def steady(record: Any, *fields: str) -> None:
    """The optimisers in these fields have no schedule: where they are used no clock runs, and one would do nothing."""
    for field in fields:
        schedule = getattr(record, field).schedule
        if type(schedule).__name__ != "Constant":
            where = f"{type(record).__name__}: {field}.schedule={schedule!r}"
            raise ValueError(f"{where} must be Constant(): this rate does not change with time")
