"""The index of a folder of results: what was reproduced, on what device, at what commit, and how far from the paper.

Reads what `acclimate reproduce` writes, and the records of the repository's benchmarks as far as they say which row,
seed and device they are of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from .. import store
from . import brfl, fedicon, fedpcl, fedspl, fedtta, published
from .federations import DIGIT5, OFFICE10
from .record import Key, key
from .results import RESULT_SCHEMA
from .runner import TRAINING_SCHEMA
from .table import apart, grid, summary

BENCHMARKS = {"acclimate.fedthe/": "FedTHE", "acclimate.fedtta/": "FedTTA", "acclimate.fedicon/": "FedICON"}
BENCHMARKS |= {"acclimate.fedpcl/": "FedPCL", "acclimate.fedspl/": "FedSPL"}
"""Schemas of the benchmarks' results, and the paper they are of."""


@dataclass(frozen=True)
class Entry:
    """One line of the index."""

    what: str
    """`fedthe/table1`, or the paper whose rows a benchmark's file holds."""
    scale: str
    rows: str
    seeds: str
    device: str
    commit: str
    apart: str
    """How far from the paper."""
    file: str


def index(folder: Path) -> str:
    """A Markdown page over all results below a folder, made from their JSON."""
    if not folder.is_dir():
        raise store.RunError(f"{folder} is not a folder; name one that holds results of `acclimate reproduce`")
    entries, other = collected(folder)
    if not entries:
        raise store.RunError(f"{folder} holds no results; run `acclimate reproduce NAME --out {folder}` first")
    head = ["what", "scale", "rows", "seeds", "device", "commit", "how far from the paper", "file"]
    lines = ["# Reproduced", "", "Made by `acclimate reproduce index` from the JSON files of this folder.", ""]
    lines += grid(head, [[_cell(v) for v in (*vars(e).values(),)] for e in entries])
    if other:
        lines += ["", "Other files: " + ", ".join(f"`{name}`" for name in other) + "."]
    return "\n".join(lines) + "\n"


def collected(folder: Path) -> tuple[list[Entry], list[str]]:
    """The entries of a folder, sorted by what they are of, and the JSON files that hold something else."""
    entries, other = [], []
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        try:
            body = json.loads(path.read_text())
        except (OSError, ValueError):
            other.append(name)
            continue
        schema = str(body.get("schema", "")) if isinstance(body, dict) else ""
        paper = next((p for start, p in BENCHMARKS.items() if schema.startswith(start)), None)
        if schema == RESULT_SCHEMA:
            entries.append(_result(body, name))
        elif paper is not None and isinstance(body.get("records"), list):
            entries.append(_benchmark(paper, body, name))
        elif schema != TRAINING_SCHEMA:
            other.append(name)
    return sorted(entries, key=lambda e: (e.what, e.scale, e.file)), other


def _result(body: Mapping[str, Any], name: str) -> Entry:
    rows, env = _distinct(c["row"] for c in body["cells"]), body["environment"]
    seeds, device = ", ".join(map(str, body["seeds"])), env.get("device", "")
    return Entry(
        body["recipe"], body["scale"], str(len(rows)), seeds, device, env.get("commit") or "", summary(body), name
    )


def _benchmark(paper: str, body: Mapping[str, Any], name: str) -> Entry:
    """A benchmark's file: which rows and seeds, where, and how far from the paper."""
    records = body["records"]
    envs = [r.get("environment", body.get("environment", {})) for r in records]
    rows = _distinct(x for r in records for x in _row_names(r))
    rounds = _distinct(f"{r['rounds']} rounds" for r in records if "rounds" in r)
    return Entry(
        f"{paper}, benchmark",
        ", ".join(rounds),
        str(len(rows)),
        ", ".join(_distinct(str(r["seed"]) for r in records if "seed" in r)),
        ", ".join(_distinct(e.get("device", "") for e in envs)),
        ", ".join(_distinct(e.get("commit") or "" for e in envs)),
        _apart(paper, records),
        name,
    )


def _apart(paper: str, records: Sequence[Mapping[str, Any]]) -> str:
    """The means over seeds against the published numbers."""
    found: dict[tuple[str, Key], list[float]] = {}
    try:
        for record in records:
            for place, value in READ[paper](record) if paper in READ else ():
                found.setdefault(place, []).append(value)
    except (KeyError, TypeError) as e:
        return f"not compared: a record without {e}"
    if not found:
        return "not compared"
    numbers = {place: published.find(*place) for place in found}
    return apart([fmean(found[p]) - n.mean for p, n in numbers.items() if n is not None], len(found))


Numbers = Iterator[tuple[tuple[str, Key], float]]
"""The file and key of a published number, and ours in %."""


def _fedthe(record: Mapping[str, Any]) -> Numbers:
    printed = {row: name for name, row in brfl.PRINTED.items()}
    where = f"dir({record['alpha']:.1f})"
    for row in record["rows"] if record["rounds"] == 100 and record["fraction"] == 1 else ():
        for stream, found in row["streams"].items():
            if row["row"] in printed:
                place = key(method=printed[row["row"]], partition=where, stream=stream)
                yield ("fedthe/table1", place), 100 * found["accuracy"]


def _fedtta(record: Mapping[str, Any]) -> Numbers:
    names = {_plain(name): name for name in fedtta.SMOKE_RATES}
    sets = {_plain(name): name for name in fedtta.WORLDS}
    for row in record["rows"]:
        if _plain(row["row"]) in names and _plain(record["data"]) in sets:
            shared = {"method": names[_plain(row["row"])], "dataset": sets[_plain(record["data"])]}
            for split, ours in (("validation", "validation"), ("test", "new")):
                yield ("fedtta/table1", key(**shared, split=split)), 100 * row["best"][ours]


def _plain(word: str) -> str:
    return word.lower().replace("-", "")


def _fedicon(record: Mapping[str, Any]) -> Numbers:
    tables = {("digit5", "covariate"): "1", ("office10", "domain"): "2", ("office10", "covariate"): "5"}
    table = tables.get((record["set"], record["shift"]), "7")
    printed = {row: name for name, row in fedicon.PRINTED.items()}
    kit = DIGIT5 if record["set"] == "digit5" else OFFICE10
    domains = {own: name for name, own in kit.domains.items()}
    for row in record["rows"] if record["rounds"] == 100 and record["fraction"] == 1 else ():
        for domain, accuracy in row["accuracy"].items():
            if row["row"] in printed:
                place = key(method=printed[row["row"]], domain=domains[domain])
                yield (f"fedicon/table{table}", place), 100 * accuracy


def _fedspl(record: Mapping[str, Any]) -> Numbers:
    held = record["held"]
    for row in record["rows"] if record["fraction"] == 1 else ():
        if row["row"] in fedspl.ROWS:
            place = key(method=row["row"], dataset="PACS", domain=held)
            yield ("fedspl/table1", place), 100 * row["accuracy"][held]


def _fedpcl(record: Mapping[str, Any]) -> Numbers:
    printed = {m.name: row for row, m in fedpcl.ROWS.items()}
    row, kind = printed.get(record.get("row", "")), {"s": "single", "m": "multi"}.get(record.get("backbones", ""))
    if row is None or kind is None:
        return
    value, data = 100 * record["accuracy"], {"digit5": "Digit-5", "office": "Office-10"}[record["data"]]
    if record["setting"] == "feature" and data == "Digit-5":
        place = key(method=row.replace("Per-FedAvg", "PerFedAvg"), backbone=kind, domain="Avg")
        yield ("fedpcl/table2", place), value
    elif record["setting"] in ("label", "both"):
        shift = fedpcl.SHIFTS[record["setting"]]
        yield ("fedpcl/table11", key(method=row, shift=shift, backbone=kind, dataset=data)), value


READ: dict[str, Callable[[Mapping[str, Any]], Numbers]] = {
    "FedTHE": _fedthe,
    "FedTTA": _fedtta,
    "FedICON": _fedicon,
    "FedPCL": _fedpcl,
    "FedSPL": _fedspl,
}
"""How the records of each benchmark are read."""


def _row_names(record: Mapping[str, Any]) -> list[str]:
    rows = record.get("rows")
    return [r["row"] for r in rows] if isinstance(rows, list) else [record["row"]] if "row" in record else []


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(v for v in values if v))


def _cell(value: str) -> str:
    return value.replace("|", "\\|")
