"""What is said of a name that a package does not have: the catalogue of the command line may know it."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import sys
from dataclasses import dataclass
from typing import Any, NoReturn


def explain(package: str) -> None:
    """Let a package say what to write in the place of a name that it does not have."""

    def absent(name: str) -> NoReturn:
        raise AttributeError(Absent(package, name))

    sys.modules[package].__getattr__ = absent  # type: ignore[method-assign]  # a function would hide errors from mypy


@dataclass(frozen=True)
class Absent:
    """The sentence, made when somebody reads it: `hasattr`, which every import of a submodule calls, loads nothing."""

    package: str
    name: str

    def __str__(self) -> str:
        said = f"{self.package} has no '{self.name}'"
        top, _, own = self.package.partition(".")
        kinds = importlib.import_module(f"{top}.experiment.catalogue").KINDS  # by its name: it lies above
        entries = [(n, call(r)) for kind in kinds for n, r in kind.entries.items() if _plain(n) == _plain(self.name)]
        for entry, written in sorted(entries, key=lambda one: not one[1].startswith(f"ac.{own}.")):
            return f"{said}; the catalogue's '{entry}' is {written}"
        near = difflib.get_close_matches(self.name, sys.modules[self.package].__all__, n=1)
        return f"{said}; did you mean '{near[0]}'?" if near else said


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def call(record: Any) -> str:
    """A record as Python writes it: with the fields in which it differs from their defaults."""
    cls, own = type(record), dataclasses.fields(record)
    _, part, *inside = cls.__module__.split(".")
    place = {"core": inside[:1], "ops": [part, *inside]}.get(part, [part])
    given = {f.name: value for f in own if (value := getattr(record, f.name)) != _default(f)}
    fields = [f"{n}={call(v) if dataclasses.is_dataclass(v) else repr(v)}" for n, v in given.items()]
    return f"{'.'.join(('ac', *place, cls.__name__))}({', '.join(fields)})"


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default
