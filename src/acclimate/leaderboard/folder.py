"""Submissions on disk: TRACK/NAME.vN.json, of which the last version counts and none is ever edited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import store
from ..experiment import decode
from ..running import run as api
from ..running.watch import Watch
from .submission import Unfit, check, submission, text
from .tracks import as_frozen, track

MATCH = 0.02
"""How far a rerun's mean over clients may be off: another processor rounds otherwise, and training makes more of it."""


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All submissions below a folder by name, versions in order; refuses what does not hold, with the file's name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.v*.json")):
        body = store.read_json(path)
        try:
            check(body)
            if path.name != file_name(body):
                raise Unfit(f"the file must be called {file_name(body)}")
        except Unfit as e:
            raise Unfit(f"{path}: {e}") from e
        found.setdefault(body["name"], []).append(body)
    for name, versions in found.items():
        versions.sort(key=lambda b: b["version"])
        _check_versions(name, versions)
    return found


def _check_versions(name: str, versions: list[dict[str, Any]]) -> None:
    """Versions count from one, and each names the one before by its digest: an edited or deleted one is found out."""
    before = None
    for number, body in enumerate(versions, 1):
        if body["version"] != number or body.get("supersedes") != before:
            raise Unfit(f"{name}: version {body['version']} must supersede version {number - 1} as it was written")
        before = body["digest"]


def file_name(body: Mapping[str, Any]) -> str:
    """What the file of a submission is called."""
    safe = "".join(c if c.isalnum() or c in "+-." else "_" for c in body["name"])
    return f"{safe}.v{body['version']}.json"


def submit(run: Path, track_name: str, chosen: str, folder: Path, note: str = "") -> Path:
    """Write a run's submission below `folder`; a name that is there already gets a new version."""
    draft = submission(run, track_name, chosen, note)
    place = folder / draft["track"]
    versions = read(place).get(draft["name"], []) if place.exists() else []
    body = submission(run, track_name, chosen, note, versions[-1]) if versions else draft
    out = place / file_name(body)
    if out.exists():
        raise Unfit(f"{out} exists; submissions are never edited")
    store.write(out, text(body))
    return out


@as_frozen()
def train(
    track_name: str, settings: tuple[str, ...], out: Path, watch: Watch | None = None, device: str = "auto"
) -> Path:
    """Run an experiment of a track with all its seeds, into a folder that `submit` takes."""
    of = track(track_name)
    first = replace(of.experiment(*settings), device=device)
    api.run_all([replace(first, seed=s) for s in of.seeds], out, watch=watch)
    return out


@dataclass(frozen=True)
class Rerun:
    """How near a second run of one row comes to the first, by stream."""

    equal: bool
    """To the last digit of every client."""
    gaps: Mapping[str, float]
    """The difference of the means over clients."""
    missing: tuple[str, ...] = ()
    """Streams that the second run has no number of: there the adapter was refused, or diverged."""

    @property
    def matches(self) -> bool:
        """Whether all means are there, and near enough."""
        return not self.missing and all(abs(gap) <= MATCH for gap in self.gaps.values())

    @property
    def said(self) -> str:
        """The differences in points, and what is missing."""
        gaps = ", ".join(f"{s} {100 * gap:+.2f}" for s, gap in self.gaps.items())
        gone = f"; no number on {', '.join(self.missing)}" if self.missing else ""
        return f"differences in points: {gaps or 'none'}{gone}"


@as_frozen()
def rerun(body: Mapping[str, Any], adapter: str, seed: int) -> Rerun:
    """Train and test one row of a submission again."""
    check(body)
    experiment = replace(decode(body["config"]), seed=seed, device="cpu")
    named = api.by_name(experiment.adapters)
    if adapter not in named:
        raise ValueError(f"adapter={adapter!r} is not in the submission; it has {', '.join(named)}")
    stored = {r["stream"]: r for r in body["rows"] if (r["adapter"], r["seed"]) == (adapter, seed)}
    if not stored:
        why = body["refused"].get(adapter, f"it has seeds {', '.join(body['seeds'])}")
        raise ValueError(f"adapter={adapter!r}, seed={seed} has no rows in the submission: {why}")
    fit = api.train(replace(experiment, adapters=(named[adapter],)))
    table = api.evaluate(fit).where(selection="last")
    fit.engine.close()
    gaps = {r["stream"]: r["accuracy"] - stored[r["stream"]]["accuracy"] for r in table.rows}
    missing = tuple(s for s in stored if s not in gaps)
    same = all([round(v, 6) for v in r["per_client"]] == stored[r["stream"]]["per_client"] for r in table.rows)
    return Rerun(same and not missing, gaps, missing)
