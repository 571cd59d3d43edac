"""A submission: one JSON file of a training with all its adapters, and what must hold for it to count."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from .. import store
from ..experiment import decode, labels
from ..running import cards
from ..shifts.base import FROST, SYNTHESISED
from .tracks import BOARD, FIXED, fixed, frozen, mismatch, track

SCHEMA = "acclimate.submission/2"
OLD = "acclimate.submission/1"
"""Has the exact hash of each stream and no sketch, so that it holds for the frozen bytes alone."""
CHOICES = {
    "defaults": "the catalogue's defaults",
    "paper": "as the method's paper prints them",
    "validation": "on the clients' validation examples",
}
"""How hyper-parameters may have been chosen. Choosing on test streams is refused."""
ROW = ("adapter", "stream", "seed", "round", "accuracy", "loss", "ece", "per_client")
HEAD: dict[str, Any] = {
    "name": str,
    "version": int,
    "note": str,
    "up_bytes": int | float,
    "down_bytes": int | float,
    "environment": Mapping,
    "refused": Mapping,
}
"""The types of what is shown and not compared with anything."""
ROUNDING = 2e-6
"""How far numbers of six digits may be off."""


class Unfit(ValueError):
    """A submission that does not count, and why."""


def submission(
    run: Path, track_name: str, chosen: str, note: str = "", before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The submission of a run folder, or of a folder with a run per seed; `before` is the one that it supersedes."""
    found = list(store.find_runs(run))
    if left := [f.path.name for f in found if not f.finished]:
        raise Unfit(f"{run}: not finished: {', '.join(left)}; go on with `acclimate resume {run}`")
    runs = sorted((f.load() for f in found), key=lambda r: r["results"]["seed"])
    labels = {r["results"]["label"] for r in runs}
    if len(labels) != 1:
        of = ", ".join(sorted(labels)) or "none"
        raise Unfit(f"{run}: a submission is of one method, with a run per seed in a folder of its own; here are {of}")
    first, refused = runs[0], _refusals(runs)
    body = {
        "schema": SCHEMA,
        "board": BOARD,
        "track": track(track_name).name,
        "name": first["results"]["label"],
        "version": 1 if before is None else before["version"] + 1,
        "supersedes": None if before is None else before["digest"],
        "hyper_parameters": chosen,
        "note": note,
        "config": _settings(first),
        "commit": first["env"].get("commit"),
        "environment": {k: first["env"].get(k) for k in ("acclimate", "torch", "numpy", "platform")},
        "seeds": {str(r["results"]["seed"]): _seed(r) | {"commit": r["env"].get("commit")} for r in runs},
        "up_bytes": first["results"]["cost"]["up_bytes_per_client"],
        "down_bytes": first["results"]["cost"]["down_bytes_per_client"],
        "rows": [{k: _short(t[k]) for k in ROW} for r in runs for t in _answered(r["results"]["table"], refused)],
        "refused": refused,
    }
    body["digest"] = digest(body)
    _same_settings(runs)
    check(body)
    return body


def _refusals(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Why an adapter has no rows: the first reason, of however many streams; where it failed with some seeds alone, the
    reason names the first of them."""
    found: dict[str, list[tuple[int, str]]] = {}
    for r in runs:
        for t in r["results"]["refused"]:
            found.setdefault(t["adapter"], []).append((r["results"]["seed"], t["reason"]))
    return {
        name: why[0][1] if len({seed for seed, _ in why}) == len(runs) else f"{why[0][1]}, with seed {why[0][0]}"
        for name, why in found.items()
    }


def _answered(table: Iterable[Mapping[str, Any]], refused: Container[str]) -> list[Mapping[str, Any]]:
    """The rows of the last round, without adapters that failed somewhere: a mean over the rest would flatter them."""
    return [t for t in table if t["selection"] == "last" and t["adapter"] not in refused]


def _seed(run: Mapping[str, Any]) -> dict[str, Any]:
    results = run["results"]
    known = ("hash", "examples", "sketch")
    cards_of = results["data"]["streams"]
    if files := next((s for s, c in cards_of.items() if c.get("frost", SYNTHESISED) != SYNTHESISED), None):
        raise Unfit(f"stream {files}: its frost is of the data root's files; run the track with {FROST}={SYNTHESISED}")
    streams = {s: {k: c[k] for k in known if k in c} for s, c in cards_of.items()}
    seconds = {k: results["timings"].get(f"{k}_seconds") for k in ("train", "evaluate")}
    seconds["trained_together"] = results["timings"].get("trained_together", 1)
    return {"data": cards.data(run), "streams": streams, "seconds": seconds, "serving": results.get("serving") or {}}


def commits(body: Mapping[str, Any]) -> list[Any]:
    """What its seeds were run from: one commit, or several where runs went on later."""
    return list(dict.fromkeys([body["commit"], *(own.get("commit", body["commit"]) for own in body["seeds"].values())]))


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration, less the seed, where it ran, and where the data lay."""
    found = {k: v for k, v in run["config"]["experiment"].items() if k not in ("seed", "device", "backend")}
    return found | {"data": {k: v for k, v in found["data"].items() if k != "root"}}


def _same_settings(runs: Sequence[Mapping[str, Any]]) -> None:
    """Seeds of one submission differ in the seed, and in where they ran."""
    kinds = [_settings(r) for r in runs]
    if any(k != kinds[0] for k in kinds):
        raise Unfit("the seeds were not run with the same settings")


def text(body: Mapping[str, Any]) -> str:
    """The file of a submission."""
    return store.json_text(body, indent=1) + "\n"


def digest(body: Mapping[str, Any]) -> str:
    """A hash of all of a submission but the hash itself."""
    rest = {k: v for k, v in body.items() if k != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check(body: Mapping[str, Any]) -> None:
    """Refuse a submission that is not of the track, or whose numbers do not fit together; the reason is the error."""
    try:
        _check_head(body)
        known = frozen(str(body["track"]))
        _check_config(body)
        _check_seeds(body, known)
        _check_rows(body, known)
    except Unfit:
        raise
    except ValueError as e:  # a track or a record that there is not
        raise Unfit(str(e)) from e
    except (KeyError, TypeError, AttributeError, OverflowError) as e:
        raise Unfit(f"a field is missing, or holds what it cannot: {type(e).__name__} {e}") from e


def _check_head(body: Mapping[str, Any]) -> None:
    """What names it is there, was not changed, and says how settings were chosen and where it can be run again."""
    for field, wanted in (("schema", (SCHEMA, OLD)), ("board", (BOARD,))):
        if body.get(field) not in wanted:
            raise Unfit(f"{field}={body.get(field)!r} must be {' or '.join(map(repr, wanted))}")
    if body.get("digest") != digest(body):
        raise Unfit("the digest does not fit the content: the file was changed after it was written")
    if body.get("hyper_parameters") not in CHOICES:
        raise Unfit(
            f"hyper_parameters={body.get('hyper_parameters')!r} must be one of {', '.join(CHOICES)}: "
            "what was chosen on the test streams is no result"
        )
    for field, kind in HEAD.items():
        if not isinstance(body[field], kind):
            raise Unfit(f"{field}={body[field]!r} must be of type {getattr(kind, '__name__', kind)}")
    for commit in commits(body):
        if not isinstance(commit, str) or not commit or commit.endswith("-dirty"):
            raise Unfit(f"commit={commit!r}: run from a clean commit of a clone, so that others can run it again")


def _check_config(body: Mapping[str, Any]) -> None:
    """The configuration is that of the track, but for what the track leaves free."""
    experiment = decode(body["config"])
    if body["name"] != experiment.label:
        raise Unfit(f"name={body['name']!r}, and the configuration is of {experiment.label!r}")
    given, wanted = fixed(experiment), fixed(track(body["track"]).experiment())
    if other := next((d for name in FIXED if (d := _difference(name, given[name], wanted[name]))), None):
        raise Unfit(
            f"config: {other}; `python -m acclimate.leaderboard run {body['track']} SETTINGS` runs the track's own"
        )
    if "oracle" in (body["config"].get("select") or ()):
        raise Unfit("config: select=oracle chooses adapters by test labels")


def _difference(name: str, given: Any, wanted: Any) -> str:
    """The first value in which a part of a configuration is not the track's, with its place; empty where none is."""
    if given == wanted:
        return ""
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(given, Mapping) and isinstance(wanted, Mapping) and given.get("type") == wanted.get("type"):
        parts = [(f"{name}.{k}", given.get(k), wanted.get(k)) for k in dict.fromkeys((*wanted, *given))]
    elif isinstance(given, list) and isinstance(wanted, list) and _told(given) == _told(wanted):
        parts = [(f"{name}[{i}]", *both) for i, both in enumerate(zip(given, wanted, strict=True))]
    if inside := next((d for part in parts if (d := _difference(*part))), ""):
        return inside
    return f"{name} is {_told(given)}, and the track's is {_told(wanted)}"


def _told(value: Any) -> str:
    """A value of a configuration, a record by its type alone."""
    if isinstance(value, list):
        return f"[{', '.join(map(_told, value))}]"
    kind = value.get("type") if isinstance(value, Mapping) else None
    return str(kind).rpartition(":")[2] if kind else json.dumps(value)


def _check_seeds(body: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """The seeds are the track's, and so is what they were run on."""
    if sorted(body["seeds"]) != sorted(known["seeds"]):
        raise Unfit(f"seeds {sorted(body['seeds'])} must be {sorted(known['seeds'])}")
    for seed, own in known["seeds"].items():
        given = body["seeds"][seed]
        if not all(isinstance(cost, Mapping) for cost in given["serving"].values()):
            raise Unfit(f"seed {seed}: serving must have a table for every adapter")
        streams = {s: c if isinstance(c, Mapping) else {"hash": c} for s, c in given["streams"].items()}  # as in OLD
        if why := mismatch({"data": given["data"], "streams": streams}, own):
            raise Unfit(f"seed {seed}: {why}")


def _check_rows(body: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Every adapter has one row per stream and seed, with possible accuracies of all clients; there are no others."""
    rows = {(r["adapter"], r["stream"], str(r["seed"])): r for r in body["rows"]}
    if len(rows) != len(body["rows"]):
        raise Unfit(f"rows: {len(body['rows']) - len(rows)} rows are there twice")
    adapters = dict.fromkeys(a for a, _, _ in rows)
    experiment = decode(body["config"])
    if strange := [a for a in adapters if a not in labels.distinct(experiment.adapters)]:
        raise Unfit(f"rows: adapter {strange[0]} is not in the configuration")
    wanted = {(a, s, n) for a in adapters for n, own in known["seeds"].items() for s in own["streams"]}
    if not rows:
        raise Unfit("rows: there are none")
    if extra := sorted(rows.keys() - wanted):
        raise Unfit(f"rows: {' / '.join(extra[0])} is not of the track")
    if missing := sorted(wanted - rows.keys()):
        raise Unfit(f"rows: {' / '.join(missing[0])} is missing; an adapter is submitted with all streams and seeds")
    for (adapter, stream, seed), row in rows.items():
        where = f"rows: {adapter} / {stream} / {seed}"
        _check_row(row, known["seeds"][seed]["streams"][stream]["sizes"], where)
        if row["round"] != experiment.rounds:
            raise Unfit(f"{where}: it is of round {row['round']}, and the track tests round {experiment.rounds}")


def _check_row(row: Mapping[str, Any], sizes: Sequence[int], where: str) -> None:
    own = row["per_client"]
    if set(row) != set(ROW) or len(own) != len(sizes):
        raise Unfit(f"{where}: {len(own)} clients and the fields {', '.join(row)}; it must have {len(sizes)} and {ROW}")
    if not all(math.isfinite(v) and 0 <= v <= 1 for v in own):
        raise Unfit(f"{where}: an accuracy is not between 0 and 1")
    for client, (value, size) in enumerate(zip(own, sizes, strict=True)):
        if abs(value * size - round(value * size)) > ROUNDING * size:
            raise Unfit(f"{where}: client {client} has {size} examples and cannot have accuracy {value}")
    if not (math.isfinite(row["loss"]) and row["loss"] >= 0 and 0 <= row["ece"] <= 1):
        raise Unfit(f"{where}: loss {row['loss']} and ece {row['ece']} are not possible")
    if abs(fmean(own) - row["accuracy"]) > ROUNDING:
        raise Unfit(f"{where}: accuracy {row['accuracy']} is not the mean over clients, {fmean(own):.6f}")
