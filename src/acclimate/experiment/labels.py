"""What records are called in tables, folders and settings: catalogue names, and how a record differs from them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from ..adapters import Guarded
from ..ops.hashing import fingerprint
from .catalogue import GUARDED, KINDS


def entry_of(record: Any) -> tuple[str, list[str]]:
    """The catalogue name of a record, and the `field=value` settings in which it differs from that entry.

    A class has one entry, or a first one and presets. A record is of the preset with most settings of its own that the
    record shares (see `_shares`), and else of the first entry. A user's own class has its own name.
    """
    if isinstance(record, Guarded):
        inside, changes = entry_of(record.adapter)
        own_changes = differences(Guarded(), dataclasses.replace(record, adapter=Guarded().adapter))
        return GUARDED + inside, own_changes + [f"adapter.{c}" for c in changes]
    same = {n: e for kind in KINDS for n, e in kind.entries.items() if type(e) is type(record)}
    if not same:
        return type(record).__name__, _own_changes(record)
    first, *presets = same
    own = {n: presets_settings(same[first], same[n]) for n in presets}
    fitting = [n for n in presets if _shares(same[first], record, own[n])]
    word = max(fitting, key=lambda n: (same[n] == record, len(own[n])), default=first)
    return word, differences(same[word], record)


def presets_settings(first: Any, preset: Any, path: str = "") -> dict[str, Any]:
    """The settings, by dotted path, that make a preset out of its class's first entry."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(preset):
        a, b = getattr(first, f.name), getattr(preset, f.name)
        if a != b and dataclasses.is_dataclass(b) and type(a) is type(b):
            out |= presets_settings(a, b, f"{path}{f.name}.")
        elif a != b:
            out[path + f.name] = b
    return out


def _shares(first: Any, record: Any, settings: dict[str, Any]) -> bool:
    """Whether a record has these settings of a preset: the same words and switches, whatever the other numbers.

    A number that one of preset and first entry sets to nothing (0 or None) is a switch: FedTTA-Prox is FedTTA with any
    `mu` but 0. Where a preset has no word and no switch of its own, its numbers must be the same.
    """
    switches = {p: v for p, v in settings.items() if not _is_number(v) or not v or not _at(first, p)}
    for path, value in (switches or settings).items():
        own = _at(record, path)
        if dataclasses.is_dataclass(value):
            if type(own) is not type(value):
                return False
        elif own != value and not (path in switches and _is_number(value) and value and own):
            return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at(record: Any, path: str) -> Any:
    """The value at a dotted path; None where the record there is of another kind."""
    for part in path.split("."):
        record = getattr(record, part, None)
    return record


def _own_changes(record: Any) -> list[str]:
    """The settings of a user's own record that differ from its defaults; all of them where it has no defaults."""
    if not dataclasses.is_dataclass(record):
        return []
    cls: Any = type(record)
    try:
        return differences(cls(), record)
    except TypeError:
        return [f"{f.name}={text(getattr(record, f.name))}" for f in dataclasses.fields(record)]


def name(record: Any) -> str:
    """The catalogue name of a record, whatever its settings; the class name of a user's own."""
    return entry_of(record)[0]


def label(record: Any) -> str:
    """A record in one word, settings included: `fedprox(mu=0.5)`."""
    word, changes = entry_of(record)
    return f"{word}({', '.join(changes)})" if changes else word


def distinct(records: Sequence[Any]) -> list[str]:
    """Names of records that stand side by side: short where that is enough to tell them apart."""
    short = [name(r) for r in records]
    return [label(r) if short.count(n) > 1 else n for n, r in zip(short, records, strict=True)]


def differences(old: Any, new: Any) -> list[str]:
    """`field=value` for every field, at any depth, in which two records of one type differ."""
    out: list[str] = []
    for f in dataclasses.fields(new):
        a, b = getattr(old, f.name), getattr(new, f.name)
        if a == b:
            continue
        if dataclasses.is_dataclass(b) and type(a) is type(b):
            out += [f"{f.name}.{d}" for d in differences(a, b)]
        else:
            out.append(f"{f.name}={text(b)}")
    return out


def text(value: Any) -> str:
    """A value as a setting shows it: records by name, Python objects by their class or function and a fingerprint."""
    if dataclasses.is_dataclass(value):
        return label(value)
    if value is None or isinstance(value, bool | int | float | str | tuple | list):
        return without_place(repr(value))
    return identity(value)


_WHOLE = re.compile(
    r"(?P<key>[\w.]+=)?(?P<quote>['\"]?)(?:/|~|[A-Za-z]:\\)[^\n,]*[/\\](?P<last>[^/\\\n,]+?)[/\\]*(?P=quote)"
)
_QUOTED = re.compile(r"(['\"])(?:/|~/|[A-Za-z]:\\)[^'\"\n]*[/\\]([^'\"/\\\n]+)[/\\]*\1")
_WORD = re.compile(r"(?<![\w.\-/~:])(?:/|~/|[A-Za-z]:\\)(?:[^\s/\\'\",;]+[/\\]+)+([^\s/\\'\",;)]+)[/\\]*")


def without_place(words: str) -> str:
    """A text in which files go by the last part of their path: where they lie may name a user or a machine."""
    if words.startswith("data:"):  # a picture
        return words
    if whole := _WHOLE.fullmatch(words):
        return f"{whole['key'] or ''}{whole['quote']}{whole['last']}{whole['quote']}"
    return _WORD.sub(r"\1", _QUOTED.sub(r"\1\2\1", words))


def identity(value: Any) -> str:
    """`module:name#hash` of a function, class or module: two objects that compute differently have different ones."""
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}:{kind.__qualname__}#{fingerprint(value)[:12]}"
