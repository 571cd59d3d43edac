"""Whose settings may name a user's own classes, `module:Class`: typed ones may, those of files and messages not."""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import re
import traceback
from collections.abc import Iterator
from typing import Any

from . import catalogue
from .encoding import ConfigError
from .names import ALLOW, may_import

_foreign: contextvars.ContextVar[bool] = contextvars.ContextVar("foreign", default=False)
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@contextlib.contextmanager
def foreign() -> Iterator[None]:
    """While this lasts, settings come from somebody else: classes that are not allowed are not imported."""
    token = _foreign.set(True)
    try:
        yield
    finally:
        _foreign.reset(token)


def own_record(name: str, kind: catalogue.Kind, key: str) -> Any:
    """A user's own record. Their code may fail in any way: the error names the place, and is chained to theirs."""
    if _foreign.get():
        _check(key, name)
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"{key}: cannot import '{name}': {e}") from e
    except Exception as e:
        raise ConfigError(f"{key}: cannot import '{name}': {_place(e)}{type(e).__name__}: {_words(e)}") from e
    try:
        chosen = found() if isinstance(found, type) else found
    except Exception as e:
        where = "" if isinstance(e, TypeError | ValueError) else _place(e)
        raise ConfigError(
            f"{key}: cannot make '{name}' without arguments: {where}{_words(e)}; every field needs a default that is "
            "possible, or name a record of it instead of the class"
        ) from e
    if not isinstance(chosen, kind.base):
        raise ConfigError(f"{key}: '{name}' is a {type(chosen).__name__}, not a {kind.base.__name__}")
    return chosen


def _words(error: Exception) -> str:
    """What an error says, without the place that a syntax error adds."""
    return str(error.msg if isinstance(error, SyntaxError) else error)


def _place(error: Exception) -> str:
    """`file, line 3: ` of the code that failed."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: "
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}: "


def check_all(key: str, value: Any) -> None:
    """An error where a value of a file, which may name several, names a class that is not allowed."""
    items = value if isinstance(value, list) else re.split("[,+]", value) if isinstance(value, str) else []
    for item in items:
        if isinstance(item, str) and _CLASS.fullmatch(item.strip()) and not key.endswith(": device"):
            _check(key, item.strip())


def _check(key: str, name: str) -> None:
    if not may_import(name):
        raise ConfigError(
            f"{key}: '{name}' is not acclimate's, and what a file or a message names is not imported; if it is your "
            f"own, trust it: --trust, or `{ALLOW}={name}`"
        )
