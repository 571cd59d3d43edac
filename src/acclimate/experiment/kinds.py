"""What the fields of an experiment may hold: records, not their names or classes, and several of them as a tuple."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..core import check
from . import catalogue


def one(owner: str, field: str, value: Any, base: type) -> None:
    """Refuse what is no record of this kind, with the call that makes one."""
    if not isinstance(value, base):
        said = value.__name__ if isinstance(value, type) else f"{value!r}"[:60]
        raise check.FieldError(f"{owner}: {field}={said} must be a record such as {_call(value, base)}", field)


def several(owner: str, field: str, value: Any, base: type) -> tuple[Any, ...]:
    """A tuple of records of this kind; refuses a single record, and what is no record."""
    if isinstance(value, base | str | type) or not isinstance(value, Iterable):
        said = value.__name__ if isinstance(value, type) else f"{value!r}"[:60]
        raise check.FieldError(f"{owner}: {field}={said} must be a tuple of records, ({_call(value, base)},)", field)
    records = value if isinstance(value, tuple) else tuple(value)
    for record in records:
        one(owner, field, record, base)
    return records


def _call(value: Any, base: type) -> str:
    """How a record is written that was named, or whose class was given; else any of its kind."""
    if isinstance(value, base):
        return f"{type(value).__name__}(...)"
    if isinstance(value, type) and issubclass(value, base):
        return f"{value.__name__}()"
    kind = catalogue.kind_of(base)
    entries = kind.entries if kind else {}
    meant = entries.get(value) if isinstance(value, str) else None
    if not entries:
        return f"{base.__name__}()"
    return f"{type(meant if meant is not None else list(entries.values())[-1]).__name__}()"
