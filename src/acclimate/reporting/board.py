"""What a report knows of its runs: their tables gathered by method and adapter, with seeds side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ..eval.ranking import RankedRow
from ..eval.same_stream import first_alike
from ..eval.table import RAN_WHERE, concerns
from ..experiment import ConfigError, catalogue, decode, encode, labels
from .style import mean, num

SELECTIONS = {"last": "Last round", "validation": "Validation-selected round"}
IGNORED = {"seed", *RAN_WHERE, "analysis"}
"""Settings in which runs of one row may differ; they may also have other adapters, but not one with other fields.
Those of the experiment alone are meant: a record inside it may have a seed of its own, which is a setting. Where it ran
tells two runs of one seed apart, as `acclimate compare` does."""
OURS = {encode(a)["type"] for a in catalogue.ADAPTERS.values()}
"""Adapter types that are decoded to learn their names; decoding others would import any module that a file names."""
SHOWN = 3
"""How many settings a name has room for."""

Run = Mapping[str, Any]
"""A run folder's content: path, config, results, metrics, env and, where it has one, analysis."""


@dataclass
class BoardRow:
    """One method with one adapter: its table rows by selection, stream and seed, and its cost by seed."""

    name: str
    adapter: str
    tone: int
    place: int = 0
    """The number of the row on the board, by which the page's filters know it."""
    cells: dict[tuple[str, str], dict[Any, Mapping[str, Any]]] = field(default_factory=dict)
    costs: dict[Any, Mapping[str, Any]] = field(default_factory=dict)
    serving: dict[Any, Mapping[str, Any]] = field(default_factory=dict)
    """What serving the adapter took, by seed; older runs did not measure it."""
    tested_on: dict[tuple[Any, str], Any] = field(default_factory=dict)
    """By seed and stream, what names the examples: rows on other examples are not ranked together."""

    @property
    def title(self) -> str:
        """The row in words."""
        return f"{self.name} " + ("without adaptation" if self.adapter == "none" else f"with {self.adapter}")

    def by_seed(self, selection: str, streams: Sequence[str], key: str = "accuracy") -> list[float]:
        """One number per seed, averaged over streams; NaN unless every stream has the same seeds."""
        found = [self.cells.get((selection, s), {}) for s in streams]
        if any(f.keys() != found[0].keys() for f in found):
            return [math.nan]
        return [mean(num(f[seed].get(key)) for f in found) for seed in (found[0] if found else ())]

    def score(self, selection: str, streams: Sequence[str], key: str = "accuracy") -> float:
        """Accuracy, or another number of the table, averaged over seeds and streams."""
        return mean(self.by_seed(selection, streams, key))

    def per_client(self, selection: str, stream: str) -> list[list[float]]:
        """The clients' accuracies, a list per seed; seeds without any are left out."""
        found = [[num(v) for v in t.get("per_client") or ()] for t in self.cells.get((selection, stream), {}).values()]
        return [values for values in found if values]

    def cost(self, key: str) -> float:
        """A number of the cost card, averaged over seeds."""
        return mean(num(c.get(key)) for c in self.costs.values())

    def served(self, key: str) -> float:
        """A number of what serving took, averaged over seeds."""
        return mean(num(c.get(key)) for c in self.serving.values())

    def entry(self, selection: str) -> RankedRow:
        """The row as a ranking takes it; a seed without the accuracies of all clients is left out."""
        cells: dict[str, dict[int, list[float]]] = {}
        for (how, stream), seeds in self.cells.items():
            if how == selection:
                found = {seed: [num(v) for v in t.get("per_client") or ()] for seed, t in seeds.items()}
                cells[stream] = {n: v for n, v in found.items() if v and all(map(math.isfinite, v))}
        return RankedRow(self.title, {s: own for s, own in cells.items() if own}, self.tested_on)


@dataclass
class Board:
    """All that the page shows of several runs, gathered once."""

    runs: Sequence[Run]
    names: list[str]
    rows: list[BoardRow] = field(default_factory=list)
    tones: dict[str, int] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)
    selections: dict[str, str] = field(default_factory=dict)

    @property
    def adapters(self) -> list[str]:
        """The adapters, in order of appearance."""
        return list(dict.fromkeys(r.adapter for r in self.rows))

    @property
    def methods(self) -> list[str]:
        """The names of the rows, in order of appearance."""
        return list(dict.fromkeys(r.name for r in self.rows))

    def tone(self, name: str) -> int:
        """A method's colour: the same in every chart."""
        return self.tones.setdefault(name, len(self.tones))

    def shown(self, selection: str) -> list[BoardRow]:
        """The rows that have results for a selection."""
        return [r for r in self.rows if any(s == selection for s, _ in r.cells)]


def collect(runs: Sequence[Run]) -> Board:
    """Group the runs' tables: one row per method and adapter, seeds side by side; the first of a repeat counts."""
    differences = _differences(runs)
    board = Board(runs, [label(r) + s for r, s in zip(runs, _suffixes(runs, differences), strict=True)])
    adapters = {str(t.get("adapter")) for r in runs for t in r["results"].get("table") or ()}
    suffixes = {a: _suffixes(runs, [[s for s in own if concerns(s, a)] for own in differences]) for a in adapters}
    rows: dict[tuple[str, str], BoardRow] = {}
    known: dict[Any, list[Mapping[str, Any]]] = {}
    for i, run in enumerate(runs):
        results = run["results"]
        for t in results.get("table") or ():
            adapter = str(t.get("adapter"))
            name = joined(t) + suffixes[adapter][i]
            row = rows.setdefault((name, adapter), BoardRow(name, adapter, board.tone(name), len(rows)))
            seed = t.get("seed", results.get("seed"))
            row.cells.setdefault((str(t.get("selection", "last")), str(t.get("stream"))), {}).setdefault(seed, t)
            row.costs.setdefault(seed, results.get("cost") or {})
            row.serving.setdefault(seed, (results.get("serving") or {}).get(adapter) or {})
            at = (seed, str(t.get("stream")))
            if at not in row.tested_on:
                row.tested_on[at] = _examples(results, at[1], known.setdefault(at, []))
    board.rows = list(rows.values())
    keys = [k for r in board.rows for k in r.cells]
    board.streams = list(dict.fromkeys(stream for _, stream in keys))
    found = dict.fromkeys(s for s, _ in keys)
    board.selections = {s: SELECTIONS.get(s, s) for s in sorted(found, key=lambda s: [*SELECTIONS, s].index(s))}
    return board


def _examples(results: Mapping[str, Any], stream: str, known: list[Mapping[str, Any]]) -> str:
    """What names the examples of a stream: the hashes of the data and the splits, as far as known, and a number.

    The number is that of the first such stream, of this name and seed, in the board's runs.
    """
    card = results.get("data") or {}
    splits = {k: (v or {}).get("hash") for k, v in (card.get("splits") or {}).items()}
    return json.dumps([card.get("hash"), splits, first_alike(known, (card.get("streams") or {}).get(stream) or {})])


def ordered(found: Sequence[str], order: Sequence[str]) -> dict[str, int]:
    """The streams that were found, each with its place in the report's order: its colour in every chart."""
    places = {s: i for i, s in enumerate(dict.fromkeys([*order, *found]))}
    return {s: places[s] for s in sorted(set(found), key=places.__getitem__)}


def label(run: Run) -> str:
    """The name that a run has in its results, or else its folder's name."""
    return str(run["results"].get("label") or folder(run))


def folder(run: Run) -> str:
    """The name of a run's folder."""
    return PurePath(str(run.get("path", "run"))).name


def joined(entry: Mapping[str, Any]) -> str:
    """`method` or `method+personal` of a table row or a refusal."""
    method, personal = str(entry.get("method")), entry.get("personal")
    return method if personal in (None, "", "none") else f"{method}+{personal}"


def _settings(value: Any, path: str = "") -> dict[str, str]:
    """A configuration, flat: `method.mu` -> `0.1`."""
    if isinstance(value, Mapping):
        inner = [(k, v) for k, v in value.items() if path or k not in IGNORED]
    elif isinstance(value, list):
        inner = [(str(i), v) for i, v in enumerate(value)]
    else:
        return {path.removesuffix(".type"): value if isinstance(value, str) else json.dumps(value)}
    return {k: v for name, item in inner for k, v in _settings(item, f"{path}.{name}" if path else name).items()}


def _adapters(listed: Sequence[Run]) -> dict[str, Run]:
    """A configuration's adapters, by the names that the table has for them."""
    named = [_adapter_names(a) for a in listed]
    short = [name for name, _ in named]
    return {long if short.count(name) > 1 else name: a for (name, long), a in zip(named, listed, strict=True)}


def _adapter_names(adapter: Run) -> tuple[str, str]:
    """An adapter's name, and the one that tells it from others of that name; its class where it is not acclimate's."""
    kind = str(adapter.get("type"))
    if kind in OURS:
        with suppress(ConfigError):  # written by another version
            record = decode(adapter)
            return labels.name(record), labels.label(record)
    return kind.rpartition(":")[2], json.dumps(adapter)


def _differences(runs: Sequence[Run]) -> list[list[str]]:
    """For every run the `key=value` that tell it from others of its label, where they differ in more than the seed."""
    flat: dict[str, list[dict[str, str]]] = {}
    mine = []
    for run in runs:
        experiment = (run.get("config") or {}).get("experiment") or {}
        mine.append(_settings({**experiment, "adapters": _adapters(experiment.get("adapters") or ())}))
        flat.setdefault(label(run), []).append(mine[-1])
    paths = {name: _differing(kinds) for name, kinds in flat.items()}
    said = [
        [f"{p}={own.get(p, 'unset')}" for p in paths[label(run)] if _has(own, p)]
        for run, own in zip(runs, mine, strict=True)
    ]
    said = [[*own, *more] for own, more in zip(said, _other_data(runs, said), strict=True)]
    return [[*own, *more] for own, more in zip(said, _other_places(runs, said), strict=True)]


def _other_places(runs: Sequence[Run], said: Sequence[Sequence[str]]) -> list[list[str]]:
    """For every run where it was computed, if a run with the same settings and seed was computed elsewhere."""
    configs = [(run.get("config") or {}).get("experiment") or {} for run in runs]
    places = [_settings({"at": {k: e[k] for k in RAN_WHERE if k in e}}) for e in configs]
    kinds: dict[Any, dict[Any, list[dict[str, str]]]] = {}
    for run, own, place in zip(runs, said, places, strict=True):
        kinds.setdefault((label(run), *own), {}).setdefault(run["results"].get("seed"), []).append(place)
    out = []
    for run, own, place in zip(runs, said, places, strict=True):
        by_seed = kinds[(label(run), *own)].values()
        apart = dict.fromkeys(p for found in by_seed for p in _differing(found))
        out.append([f"{p.removeprefix('at.')}={place.get(p, 'unset')}" for p in apart])
    return out


def _other_data(runs: Sequence[Run], said: Sequence[Sequence[str]]) -> list[list[str]]:
    """For every run the hash of its examples, where a run with the same settings and seed has others: files of one name
    in two folders, or one that was changed since."""
    kinds: dict[Any, dict[Any, set[Any]]] = {}
    for run, own in zip(runs, said, strict=True):
        by_seed = kinds.setdefault((label(run), *own), {})
        by_seed.setdefault(run["results"].get("seed"), set()).add(_data_hash(run))
    several = {kind for kind, by_seed in kinds.items() if any(len(found) > 1 for found in by_seed.values())}
    return [
        [f"data.hash={str(_data_hash(run))[:8]}"] * ((label(run), *own) in several)
        for run, own in zip(runs, said, strict=True)
    ]


def _data_hash(run: Run) -> Any:
    return (run["results"].get("data") or {}).get("hash")


def _differing(kinds: Sequence[Mapping[str, str]]) -> list[str]:
    """The settings that have several values."""
    paths = dict.fromkeys(p for own in kinds for p in own)
    return [p for p in paths if len({own.get(p) for own in kinds if _has(own, p)}) > 1]


def _has(own: Mapping[str, str], path: str) -> bool:
    """Whether a run has a setting; fields of an adapter that it did not test do not count as unset."""
    return path in own or not path.startswith("adapters.")


def _suffixes(runs: Sequence[Run], differences: Sequence[Sequence[str]]) -> list[str]:
    """The differences as they follow names: ` [rounds=5]`. Where there are too many, a number follows the first few."""
    kinds: dict[str, list[Sequence[str]]] = {}
    for run, own in zip(runs, differences, strict=True):
        known = kinds.setdefault(label(run), [])
        known += [own] * (own not in known)
    out = []
    for run, own in zip(runs, differences, strict=True):
        shown = [*own[:SHOWN], *[f"variant {kinds[label(run)].index(own) + 1}"] * (len(own) > SHOWN)]
        out.append(f" [{', '.join(shown)}]" if shown else "")
    return out
