"""What a setting that cannot be read may have meant."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from . import catalogue, labels
from .encoding import ConfigError

log = logging.getLogger("acclimate")

FIELDS = {"method": "method", "personal": "personal", "adapter": "adapters", "model": "model", "data set": "data"}
FIELDS |= {"stream": "streams", "backend": "backend", "filter": "filters"}
"""The fields of an experiment that hold a record, by the kind of the record."""
SEVERAL = ("adapters", "streams", "filters")
"""The fields that hold several records, of which each is addressed by its name."""

OPTIONS = {"seeds": "--seeds 3", "out": "-o FOLDER", "config": "-c FILE", "overwrite": "--overwrite", "quiet": "-q"}
OPTIONS |= {"track": "--track tensorboard", "trust": "--trust", "json": "--json"}
"""Options of the command line that look like settings of an experiment, as they are written."""


def assignment(word: str) -> str:
    """How a word without `=` is written as a setting: `fedavg` as `method=fedavg`."""
    kinds = [k for k in catalogue.KINDS if k.name in FIELDS]
    for kind in kinds:
        if word in kind.entries:
            return f"{FIELDS[kind.name]}={word}"
    named = next((k for k in kinds if word in (FIELDS[k.name], k.name, k.plural)), None)
    return f"{FIELDS[named.name]}={list(named.entries)[1]}" if named else "rounds=5"


def elsewhere(word: str) -> str:
    """Where a name that was looked for in the wrong field belongs: `tent` to `adapters=tent`. Empty: nowhere."""
    found = [FIELDS[k.name] for k in catalogue.KINDS if k.name in FIELDS and word in k.entries and word != "none"]
    return f"write {' or '.join(f'{field}={word}' for field in found)}; " if found else ""


def below(values: Mapping[str, Any], name: str, prefix: str = "") -> list[str]:
    """The settings that end in this name, in the records that fields hold: `lr` is `method.opt.lr`."""
    out = []
    for own, value in values.items():
        path = f"{prefix}{own}."
        if isinstance(value, tuple):
            out += below({labels.name(v): v for v in value if dataclasses.is_dataclass(v)}, name, path)
        elif dataclasses.is_dataclass(value):
            inner = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            out += [f"{path}{name}"] * (name in inner) + below(inner, name, path)
    return sorted(out, key=lambda setting: setting.count("."))


def own_data(name: str) -> str:
    """How a file or folder in the place of a data set is written; empty where it is none."""
    end = name.lower().removesuffix(".gz").rpartition(".")[2] if "." in name else ""
    if end in ("csv", "tsv", "parquet", "pq"):
        return (
            f"'{name}' is a file; write data=table data.file={name} data.label=COLUMN; or for texts data=text "
            f"data.file={name} data.text=COLUMN data.label=COLUMN"
        )
    if end in ("txt", "npz"):
        return f"'{name}' is a file; write data={'text' if end == 'txt' else 'arrays'} data.file={name}"
    return f"'{name}' is a folder; write data=image-folder data.path={name}" if os.path.isdir(name) else ""


def having(key: str) -> str:
    """Which records of the same kind have the field that a setting names, such as `data.file`: of a field nobody has,
    and of one further down, nothing."""
    part, _, name = key.partition(".")
    kind = next((k for k in catalogue.KINDS if FIELDS.get(k.name) == part), None)
    found = [n for n, r in kind.entries.items() if name in {f.name for f in _fields(r)}] if kind and name else []
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"it is a field of {part}={', '.join(found[:5])}{more}; " if found else ""


def addressed(key: str) -> str:
    """How a field is written that was looked for under its record's own name: `tent.steps` as `adapters.tent.steps`."""
    word, _, field = key.partition(".")
    kind = next((k for k in catalogue.KINDS if k.name in FIELDS and field and word in k.entries), None)
    if kind is None:
        return ""
    part = FIELDS[kind.name]
    path = f"{part}.{word}" if part in SEVERAL else part
    return f"did you mean '{path}.{field}', with {part}={word}? "


def inside(records: Sequence[Any], name: str, key: str) -> str:
    """The field of an entry that was meant where no entry has this name: `streams.severity`; then the entries."""
    entries = {labels.name(r): r for r in records}
    return meant(below(entries, name, key.partition(name)[0])) + catalogue.nearest(name, list(entries))


def meant(settings: Sequence[str]) -> str:
    """A question for the first two of them; nothing where there is none."""
    return f"did you mean {' or '.join(map(repr, settings[:2]))}? " if settings else ""


def _fields(record: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(record) if dataclasses.is_dataclass(record) else ()


def unswept(name: str, key: str, values: list[Any]) -> list[Any]:
    """The values of a setting; refuses several columns of labels, which may be meant as several labels per row and
    whose runs cannot be compared."""
    if name != "label" or len(values) < 2:
        return values
    raise ConfigError(
        f"{key}: {','.join(map(str, values))!r} names {len(values)} columns; one class per row is supported, several "
        "labels per row are not: name one column, and run the command again for another. Rename a column that has a "
        "comma in its name"
    )


def warn_of_twice(typed: Sequence[tuple[str, Any]]) -> None:
    """Say which of two values of a setting counts, the last one: that both are wanted is as likely."""
    seen: dict[str, Any] = {}
    for key, value in typed:
        if seen.setdefault(key, value) != value:
            _once(f"{key} is given twice, and {value} counts; for both, write {key}={seen[key]},{value}")
            seen[key] = value


@cache
def _once(text: str) -> None:
    """A command reads its settings several times."""
    log.warning(text)
