"""What comes out of a search: its trials, the best of them, and the files tune.json, best.toml and report.html."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import store
from ..experiment import Experiment, labels
from ..ops.layout import counted
from .search_page import page
from .space import Point, Space, to_toml

SCHEMA = "acclimate.tune/1"
RUN_FILES = ("config.json", "index.json", "results.json")
"""The files by which a run, or a folder of runs, is known."""


@dataclass(frozen=True)
class Trial:
    """One point of the space and how it did."""

    number: int
    values: Point
    score: float | None
    """The mean over seeds; None where the trial failed."""
    seeds: tuple[dict[str, Any], ...]
    """The `seed`, `accuracy`, `round` and `seconds` of every seed."""
    path: str
    """The trial's folder below that of the search."""
    failed: str | None = None
    """Why the trial has no score."""
    same_as: int | None = None
    """An earlier trial with the same values, whose score it has: it was not run."""


@dataclass(frozen=True)
class Search:
    """A search and its trials so far."""

    path: Path
    card: dict[str, Any]
    """The content of tune.json."""

    @property
    def trials(self) -> list[Trial]:
        """The trials in the order in which they were run."""
        return [Trial(**{**t, "seeds": tuple(t["seeds"])}) for t in self.card["trials"]]

    @property
    def best(self) -> Trial | None:
        """The trial with the highest score, the first of equals."""
        scored = [t for t in self.trials if t.score is not None]
        return max(scored, key=lambda t: (t.score, -t.number), default=None)


def begun(path: Path) -> bool:
    """Whether a folder holds a search."""
    return (path / "tune.json").exists()


def read(path: Path) -> dict[str, Any]:
    """The tune.json of a folder."""
    card: dict[str, Any] = store.read_json(path / "tune.json")
    return card


def refuse_another(path: Path, new: dict[str, Any]) -> None:
    """A folder holds one search, and nothing else; more trials of the same search are welcome."""
    if not begun(path):
        if held := [name for name in RUN_FILES if (path / name).exists()]:
            raise store.RunError(f"--out {path} holds a run ({held[0]}); choose another --out")
        return
    old = read(path)
    if old.get("schema") != SCHEMA:
        raise store.RunError(f"{path / 'tune.json'}: schema={old.get('schema')!r} must be '{SCHEMA}'")
    for key in ("settings", "space", "sampler", "seeds", "score"):
        if old[key] != json.loads(json.dumps(new[key])):
            raise store.RunError(
                f"{path} holds another search: {key} was {json.dumps(old[key])}, is {json.dumps(new[key])}; "
                "choose another --out"
            )


def write(path: Path, card: dict[str, Any], space: Space, total: int, done: Sequence[Trial]) -> Search:
    """Write tune.json, best.toml and report.html of the trials that are done."""
    search = Search(path, {**card, "planned": total, "trials": [asdict(t) for t in done]})
    best = search.best
    chosen = None if best is None else {"number": best.number, "values": best.values, "score": best.score}
    search.card["chosen"] = chosen
    search.card["seconds"] = round(sum(s["seconds"] for t in done if t.same_as is None for s in t.seeds), 2)
    store.write(path / "tune.json", json.dumps(search.card, indent=1) + "\n")
    if best is not None:
        score = f"{100 * (best.score or 0):.2f} % on validation data (trial {best.number})"
        settings = with_method(space.settings(best.values))
        store.write(path / "best.toml", to_toml(settings, f"the best of {counted(len(done), 'trial')}: {score}"))
    store.write(path / "report.html", page(search.card))
    return search


def with_method(settings: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """With the method and personaliser that were searched: `acclimate run` without a method compares several."""
    named, default = {key for key, _ in settings}, Experiment()
    if "method" in named:
        return settings
    unnamed = {"method": default.method, "personal": default.personal}
    return [*((key, labels.name(record)) for key, record in unnamed.items() if key not in named), *settings]
