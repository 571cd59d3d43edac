"""Settings of the command line and of TOML files: what experiments they describe.

Settings are collected in drafts, and every record is made once, with all of its fields: some fit only together.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..core import Method, Personalizer, check
from ..core.check import FieldError
from ..ops import opening
from . import catalogue, hints, labels, limits, trusted
from .catalogue import nearest
from .encoding import ConfigError
from .record import Experiment, adapters_with

MOST = 10_000
"""The most experiments that settings may describe: sweeps multiply."""


class NoSuchField(ConfigError):
    """A setting of a field that the record does not have: a file's is passed over where another record was chosen."""


def expand(settings: Iterable[str | tuple[str, Any]], base: Experiment | None = None) -> list[Experiment]:
    """The experiments that settings describe: `rounds=5`, `method=fedprox`, `method.mu=0.01,0.1` (a sweep).

    Choices of records come first, then their fields, whatever the order given; each record is made and checked once,
    with all of its fields. Commas make a tuple where the field is one, and a sweep over all combinations where it is
    not.
    """
    pairs = [pair(s) for s in settings]
    _check_personal(dict(pairs))
    drafts = _drafts(pairs, base or Experiment())
    return list(dict.fromkeys(_made(d) for d in drafts))


def values_of(key: str, settings: Iterable[str | tuple[str, Any]]) -> list[Any]:
    """The values that settings give one field, several for a sweep, without making the records they are for.

    So one setting can be read before those are known that it fits together with.
    """
    return [_at(d, key.split(".")) for d in _drafts([pair(s) for s in settings], Experiment())]


def merged(file: Path | None, settings: Sequence[str]) -> list[str | tuple[str, Any]]:
    """The settings of a TOML file and of the command line, which wins."""
    hints.warn_of_twice([pair(s) for s in settings])
    if file is None:
        return list(settings)
    try:
        pairs = flatten_toml(tomllib.loads(opening.text(file)))
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist") from None
    except opening.FileProblem as e:
        raise ConfigError(str(e)) from e
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as e:
        raise ConfigError(f"{file} is not valid TOML: {e}") from e
    for key, value in pairs:
        trusted.check_all(f"{file}: {key}", value)
    return [*_left_by(pairs, [pair(s) for s in settings]), *settings]


def _left_by(pairs: list[tuple[str, Any]], typed: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """A file's settings that the command line leaves.

    Not those it gives itself, nor the fields of a record in whose place it puts one that has no such field.
    """
    kept: list[tuple[str, Any]] = []
    for path, value in sorted(pairs, key=_depth):
        over = [p for p in typed if any(_is_over(key, path) for key in _keys(p))]
        if any(path in _keys(p) for p in over):
            continue
        above = [p for p in kept if _is_over(p[0], path)]
        if not over or not all(_lacks(d, path, value) for d in _drafts([*above, *over], Experiment())):
            kept.append((path, value))
    return kept


def _keys(pair: tuple[str, Any]) -> list[str]:
    """The fields that a setting chooses: `method=fedavg+finetune` chooses two."""
    both = pair[0] == "method" and _names_personal(pair[1])
    return ["method", "personal"] if both else [pair[0]]


def _is_over(key: str, path: str) -> bool:
    """Whether a setting of `key` changes what `path` means, or is it."""
    return f"{path}.".startswith(f"{key}.")


def _lacks(draft: _Draft, path: str, value: Any) -> bool:
    """Whether the record at `path` has no such field; any other mistake is found, and named, later."""
    try:
        _assign(draft, path.split("."), value, path)
    except NoSuchField:
        return True
    except ConfigError:
        return False
    return False


def flatten_toml(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """A TOML table as settings: `[method] name = "fedprox"` is `method=fedprox`."""
    out: list[tuple[str, Any]] = []
    for k, v in table.items():
        if isinstance(v, Mapping):
            if "name" in v:
                out.append((prefix + k, v["name"]))
            out += flatten_toml({a: b for a, b in v.items() if a != "name"}, f"{prefix}{k}.")
        else:
            out.append((prefix + k, v))
    return out


def pair(setting: str | tuple[str, Any]) -> tuple[str, Any]:
    """Key and value of a setting as it is typed; a pair is one already."""
    if isinstance(setting, tuple):
        return setting
    path, equals, value = setting.partition("=")
    if not equals or not path:
        said = f"'{setting}' must be key=value, for example {hints.assignment(setting.strip())}"
        raise ConfigError(hints.own_data(setting.strip()) or said)
    return path.strip(), value.strip()


@dataclass(frozen=True)
class _Draft:
    """A record and the settings for it, not made yet: fields that fit only together must not be set one by one."""

    record: Any
    fields: dict[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    """The keys of the settings that concern it, as they were typed."""

    def get(self, name: str) -> Any:
        """The field's value so far, itself perhaps a draft."""
        return self.fields[name] if name in self.fields else getattr(self.record, name)

    def put(self, name: str, value: Any, key: str) -> _Draft:
        """A copy with this field set."""
        return _Draft(self.record, {**self.fields, name: value}, (*self.keys, key))


def _drafts(pairs: Iterable[tuple[str, Any]], base: Any) -> list[_Draft]:
    """What the settings make of `base`: one draft, or several for a sweep, the deepest setting fastest."""
    out = [_Draft(base)]
    for path, value in sorted(pairs, key=_depth):
        out = list(itertools.chain.from_iterable(_assign(d, path.split("."), value, path) for d in out))
        if len(out) > MOST:
            raise ConfigError(f"{path}: the settings describe more than {MOST:,} experiments")
    return out


def _at(value: Any, path: Sequence[str]) -> Any:
    """What drafts hold at a path, entries of tuples by their catalogue names."""
    if not path:
        return value.record if isinstance(value, _Draft) else value
    if isinstance(value, tuple):
        return _at(next(d for d in map(_drafted, value) if labels.name(d.record) == path[0]), path[1:])
    return _at(_drafted(value).get(path[0]), path[1:])


def _depth(pair: tuple[str, Any]) -> int:
    return pair[0].count(".")


def _made(value: Any) -> Any:
    """The record that a draft describes, its inner records first."""
    if isinstance(value, tuple):
        return tuple(_made(v) for v in value)
    if not isinstance(value, _Draft):
        return value
    if not value.fields:
        return value.record
    fields = {name: _made(v) for name, v in value.fields.items()}
    try:
        return replace(value.record, **fields)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{', '.join(_concerned(value, e))}: {e}") from e


def _concerned(draft: _Draft, error: Exception) -> list[str]:
    """The settings of the fields that an error is about, or else all that concern the record."""
    fields = error.fields if isinstance(error, FieldError) else ()
    own = [key for key in draft.keys if key.rpartition(".")[2] in fields]
    return list(dict.fromkeys(own or draft.keys))


def _assign(draft: _Draft, path: list[str], value: Any, key: str) -> list[_Draft]:
    """Copies of `draft` with the field at `path` set: one, or several for a sweep."""
    name, rest = path[0], path[1:]
    names = [f.name for f in dataclasses.fields(draft.record)]
    if name not in names:
        raise NoSuchField(f"{key}: {type(draft.record).__name__} has no '{name}'; {_meant(draft, names, key, name)}")
    old, news = draft.get(name), list[Any]()
    if rest and name == "adapters" and isinstance(draft.record, Experiment):  # as long as no setting names some
        old = adapters_with(old, _chosen(draft.get("method")))
    if rest and isinstance(old, tuple):
        news = _assign_inside(old, rest, value, key)
    elif rest:
        inner = _drafted(old)
        if not dataclasses.is_dataclass(inner.record):
            raise NoSuchField(f"{key}: '{name}' is {old!r}, which has no fields")
        news = _assign(inner, rest, value, key)
    elif name == "method" and _names_personal(value):
        return _with_personal(draft, value, key)
    else:
        news = hints.unswept(name, key, _parse(value, check.hints(type(draft.record))[name], key))
    return [draft.put(name, n, key) for n in news]


def _meant(draft: _Draft, names: list[str], key: str, name: str) -> str:
    """The nearest field, or one of that name in a record further down; then all that are allowed."""
    told = nearest(name, names)
    if key in hints.OPTIONS:
        return f"it is an option of the command line, written {hints.OPTIONS[key]}"
    found = hints.below({n: _chosen(draft.get(n)) for n in names}, name, key.removesuffix(name))
    if told.startswith("did"):
        return told
    return hints.meant(found) + told if found else (hints.having(key) or hints.addressed(key)) + told


def _chosen(value: Any) -> Any:
    """The record of a draft, without the settings for it."""
    return tuple(map(_chosen, value)) if isinstance(value, tuple) else _drafted(value).record


def _drafted(value: Any) -> _Draft:
    return value if isinstance(value, _Draft) else _Draft(value)


def _check_personal(last: Mapping[str, Any]) -> None:
    """Refuse two places that name a personaliser: which one was meant cannot be known."""
    if "personal" in last and _names_personal(last.get("method")):
        method, personal = (
            ",".join(map(str, v)) if isinstance(v, list) else v for v in (last["method"], last["personal"])
        )
        raise ConfigError(f"method={method} and personal={personal} both name a personaliser; leave one of them out")


def _names_personal(method: Any) -> bool:
    """Whether a value of `method` is, or has among others, one of the form `method+personal`."""
    return "+" in str(method)


def _with_personal(draft: _Draft, value: Any, key: str) -> list[_Draft]:
    """`method=fedavg+finetune,fedbn`: a method with its personaliser."""
    out = []
    for item in value if isinstance(value, list) else str(value).split(","):
        method, plus, personal = str(item).partition("+")
        if plus and not personal:
            names = ", ".join(catalogue.PERSONALS)
            raise ConfigError(f"{key}: '{item}' must name a personaliser after the '+'; allowed: {names}")
        chosen = draft.put("method", _lookup(method, catalogue.kind_of(Method), key), key)
        if personal:
            chosen = chosen.put("personal", _lookup(personal, catalogue.kind_of(Personalizer), key), key)
        out.append(chosen)
    return out


def _assign_inside(items: tuple[Any, ...], path: list[str], value: Any, key: str) -> list[tuple[Any, ...]]:
    """`adapters.tent.steps=2`: the entries of a tuple are addressed by their catalogue names."""
    drafts = [_drafted(i) for i in items]
    entries = [labels.name(d.record) for d in drafts]
    if path[0] not in entries:
        told = hints.inside([d.record for d in drafts], path[0], key)
        raise NoSuchField(f"{key}: no entry '{path[0]}' to set a field of; {told}")
    if len(path) < 2:
        names = [f.name for f in dataclasses.fields(drafts[entries.index(path[0])].record)]
        raise ConfigError(f"{key}: set its fields instead, {key}.FIELD=...; allowed: {', '.join(names) or 'none'}")
    pairs = zip(drafts, entries, strict=True)
    return list(itertools.product(*(_assign(d, path[1:], value, key) if n == path[0] else [d] for d, n in pairs)))


def _parse(value: Any, hint: Any, key: str) -> list[Any]:
    """All values that a setting names for a field of this type: several make a sweep."""
    hint = catalogue.option_of(hint, value)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        items = value if isinstance(value, list) else [v for v in str(value).split(",") if v != ""]
        return [tuple(r for v in items for r in catalogue.group_of(v, inner) or (_one(v, inner, key),))]
    items = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else [value]
    if not items:
        raise ConfigError(f"{key}: [] must have at least one value")
    return [_one(v, hint, key) for v in items]


def _one(value: Any, hint: Any, key: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if type(None) in options and (value is None or str(value).lower() == "none"):
            return None
        return _one(value, next(o for o in options if o is not type(None)), key)
    if origin is Literal:
        allowed = {str(a): a for a in typing.get_args(hint)}  # a whole number is text on the command line
        if str(value) not in allowed:
            raise ConfigError(f"{key}: {value!r} is not possible; {nearest(str(value), list(allowed))}")
        return allowed[str(value)]
    if kind := catalogue.kind_of(hint):
        return _lookup(value, kind, key)
    if hint in (bool, int, float, str):
        return _scalar(value, hint, key)
    if not (fields := dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else ()):
        raise ConfigError(f"{key}: {limits.shown(value)} is text, and what this holds is made in Python alone")
    raise ConfigError(f"{key}: set its fields instead, for example {key}.{fields[0].name}=...")


def _scalar(value: Any, hint: type, key: str) -> Any:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    try:
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]
        if isinstance(value, bool) and hint is not str:
            raise ValueError
        if hint is int and isinstance(value, float) and value != int(value):
            raise ValueError
        made = hint(value)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise ConfigError(f"{key}: {limits.shown(value)} is not {words[hint]}") from None
    if reason := limits.refusal(key.rpartition(".")[2], made):
        raise ConfigError(f"{key}: {reason}")
    return made


def _lookup(name: Any, kind: catalogue.Kind | None, key: str) -> Any:
    """A record by its catalogue name, or a user's own by `module:Class`."""
    assert kind is not None
    own = " (or your own as module:Class)"
    if not isinstance(name, str):
        raise ConfigError(f"{key}: {name!r} is not a name; allowed: {', '.join(kind.entries)}{own}")
    if ":" in name:
        return trusted.own_record(name, kind, key)
    if kind.name == "adapter" and (made := catalogue.guarded(name)):
        return made
    if name not in kind.entries:
        if kind.name == "data set" and (told := hints.own_data(name)):
            raise ConfigError(f"{key}: {told}")
        near = f"{hints.elsewhere(name)}{nearest(name, list(kind.entries))}{own}"
        raise ConfigError(f"{key}: there is no {kind.name} '{name}'; {near}")
    return kind.entries[name]
