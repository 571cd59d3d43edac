"""The catalogue as a file, so that `list`, `show`, `data list` and completion need no torch.

    python -m acclimate.cli.index

writes it anew from the records; a test says when that is due.
"""

from __future__ import annotations

import difflib
import functools
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ops import layout

FILE = Path(__file__).with_name("index.json")
SCHEMA = "acclimate.index/1"
KEYS = {
    "method": "methods",
    "personal": "personals",
    "adapters": "adapters",
    "streams": "streams",
    "model": "models",
    "data": "datasets",
    "data.partition": "partitions",
    "data.split": "splits",
    "data.augment": "augments",
    "backend": "backends",
    "filters": "filters",
    "method.opt": "optimizers",
}
"""Settings whose values are names, and the kind of these."""


def build() -> dict[str, Any]:
    """What there is, from the records themselves."""
    import dataclasses

    from ..experiment import Experiment, catalogue, labels
    from ..experiment.catalogue_data import DATASETS, GROUPS
    from ..recipes import RECIPES
    from .data_files import figures
    from .describe import details, sentence

    kinds = {k.plural: {n: sentence(n, r) for n, r in k.entries.items()} for k in catalogue.KINDS if k.entries}
    names = {n: r for k in reversed(catalogue.KINDS) for n, r in k.entries.items()}
    groups = {n: [labels.label(r) for r in records] for n, records in GROUPS.items()}
    fields = {
        f"{k.plural}/{n}": [f.name for f in dataclasses.fields(r)]
        for k in catalogue.KINDS
        for n, r in k.entries.items()
    }
    return {
        "schema": SCHEMA,
        "kinds": kinds,
        "groups": groups,
        "settings": [f.name for f in dataclasses.fields(Experiment)],
        "fields": fields,
        "recipes": list(RECIPES),
        "datasets": {n: figures(r) for n, r in DATASETS.items()},
        "details": {n: details(n) for n in sorted(names)},
    }


@functools.cache
def read() -> dict[str, Any]:
    """The file."""
    return dict(json.loads(FILE.read_text()))


def listing(kind: str | None = None) -> str:
    """All names of a kind, each with what it is, as wide as the window; whole lines where there is none."""
    found: dict[str, dict[str, str]] = read()["kinds"]
    if kind is not None and kind not in found:
        raise ValueError(f"there is no kind '{kind}'; {near(kind, list(found))}allowed: {', '.join(found)}")
    room = layout.room()
    out = []
    for plural, entries in found.items():
        if kind not in (None, plural):
            continue
        width = max(map(len, entries))
        out.append(f"{plural}:")
        lines = [f"  {name.ljust(width)}  {text}" for name, text in entries.items()]
        if plural == "streams":
            lines += [f"  {n.ljust(width)}  Several: {', '.join(members)}." for n, members in read()["groups"].items()]
        out += [_wrapped(line, width + 4, room) for line in lines]
    return "\n".join(out)


def _wrapped(line: str, indent: int, room: int) -> str:
    if room <= indent + 20:
        return line
    return textwrap.fill(line, room, subsequent_indent=" " * indent, break_on_hyphens=False)


def details(name: str) -> str:
    """A record's class, paper and fields."""
    found: dict[str, str] = read()["details"]
    if name not in found:
        inner = name.removeprefix("guarded-")
        if inner != name and inner in read()["kinds"]["adapters"]:
            return (
                f"adapter {name}: `{inner}` with a guard around it, see `acclimate show guarded-tent`\n\n{found[inner]}"
            )
        raise ValueError(f"there is no '{name}'; {_meant(name, found)}`acclimate list` names all that there is")
    return found[name]


def _meant(name: str, found: Mapping[str, str]) -> str:
    """What may have been meant by a name: a record that it is a field of, all records of a kind, or a near one."""
    if name.partition(".")[0] in found:
        return f"`acclimate show {name.partition('.')[0]}` has its fields; "
    kinds = KEYS | {form: kind for kind in read()["kinds"] for form in (kind, kind.removesuffix("s"))}
    return f"`acclimate list {kinds[name]}` has all of this kind; " if name in kinds else near(name, list(found))


def near(word: str, allowed: list[str]) -> str:
    """`did you mean 'fedbn'? `: the nearest names, those first that begin alike; empty where none is near."""
    close = difflib.get_close_matches(word, allowed, n=3)

    def likeness(other: str) -> tuple[float, int]:
        alike = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), len(word))
        return difflib.SequenceMatcher(None, word, other).ratio(), alike

    close.sort(key=likeness, reverse=True)
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def complete(begun: str, before: list[str]) -> list[str]:
    """What a setting that was begun may be: names of fields before the `=`, and of records after it."""
    key, equals, value = begun.partition("=")
    if equals:
        names = list(read()["kinds"].get(KEYS.get(key, ""), ())) + (list(read()["groups"]) if key == "streams" else [])
        head, comma, last = value.rpartition(",")
        return [f"{key}={head}{comma}{n}" for n in names if n.startswith(last)]
    part, dot, field = key.rpartition(".")
    if not dot:
        return [f"{n}=" for n in read()["settings"] if n.startswith(key)]
    chosen = [s.partition("=")[2] for s in before if s.startswith(f"{part}=")] or [_usual(part)]
    name = chosen[-1].partition("+")[0].partition(",")[0]
    return [f"{part}.{f}=" for f in read()["fields"].get(f"{KEYS.get(part, '')}/{name}", ()) if f.startswith(field)]


def _usual(part: str) -> str:
    return {"method": "fedavg", "data": "digits", "model": "cnn-small", "data.partition": "dirichlet"}.get(part, "")


if __name__ == "__main__":
    from .. import store

    store.write(FILE, json.dumps(build(), indent=0, ensure_ascii=False) + "\n")
    print(f"wrote {FILE}")
