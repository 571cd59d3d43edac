"""What a strategy chose in finished runs, as rows that can be compared, and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import store
from ..eval import Selection
from ..ops.selection import STRATEGIES


def rows_of(run: Mapping[str, Any], strategy: str | None) -> list[dict[str, Any]]:
    """A run's choices by one strategy as rows of its table, which name the strategy in the place of the adapter; none
    where the run did not choose by it."""
    results = run["results"]
    found = [r for r in (results.get("selected") or {}).get("rows", ()) if r["strategy"] == strategy]
    if not found or not results["table"]:
        return []
    known = {k: results["table"][0][k] for k in ("method", "personal", "settings", "seed")}
    return [{**known, **r, "adapter": r["strategy"], "selection": "last"} for r in found]


def check(runs: Sequence[Mapping[str, Any]], strategy: str | None) -> None:
    """An error where a strategy is unknown, or where no run chose by it."""
    if strategy is None:
        return
    if strategy not in STRATEGIES:
        raise ValueError(f"select={strategy!r} is not possible; allowed: {', '.join(STRATEGIES)}")
    if not any(rows_of(run, strategy) for run in runs):
        raise ValueError(f"select={strategy}: no run here chose so; run the experiment with select={strategy}")


def words(name: str, choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence per stream: what was chosen, and how far that is below the oracle; over all seeds."""
    out = []
    for stream in dict.fromkeys(r["stream"] for r in choices):
        rows = [r for r in choices if r["stream"] == stream]
        names: Counter[str] = Counter()
        for row in rows:
            names.update(row["chosen"])
        gap = 100 * sum(r["gap"] for r in rows) / len(rows)
        who = f"{rows[0]['strategy']} chose{' by test labels' if rows[0]['strategy'] == 'oracle' else ''}"
        out.append(f"On {stream}, {who} {', '.join(names)} for {name}: {gap:.1f} points below the oracle.")
    return out


def tables(path: Path) -> dict[str, Selection]:
    """The choices of the finished runs at or below a folder: of all seeds together, by the runs' labels."""
    out: dict[str, Selection] = {}
    for run in (folder.load() for folder in store.find_runs(path) if folder.finished):
        if kept := run["results"].get("selected"):
            found = Selection(tuple(kept["rows"]), tuple(kept["candidates"]), tuple(kept["left_out"]))
            label = run["results"]["label"]
            out[label] = out.get(label, Selection()) + found
    return out
