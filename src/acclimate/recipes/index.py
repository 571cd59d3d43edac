"""The index of a folder of results: what was reproduced, on what device, at what commit, and how far from the paper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import store
from ..ops import layout
from .pages import size, summary
from .records import TRAINING_SCHEMA
from .results import RESULT_SCHEMA

LONG = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{33}\b")
"""A commit's whole name, of which seven digits tell enough."""


@dataclass(frozen=True)
class Entry:
    """One line of the index."""

    what: str
    """`fedthe/table1`."""
    scale: str
    """With the rounds and the share of the data, where they are not the recipe's own."""
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
    lines += layout.table(head, [[*vars(e).values()] for e in entries])
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
        if schema == RESULT_SCHEMA:
            entries.append(_result(body, name))
        elif schema != TRAINING_SCHEMA:
            other.append(name)
    return sorted(entries, key=lambda e: (e.what, e.scale, e.file)), other


def _result(body: Mapping[str, Any], name: str) -> Entry:
    rows, env = _distinct(c["row"] for c in body["cells"]), body["environment"]
    scale = ", ".join(_distinct((body["scale"], size(body))))
    seeds, device = ", ".join(map(str, body["seeds"])), env.get("device", "")
    commit = LONG.sub(r"\1", env.get("commit") or "")
    return Entry(body["recipe"], scale, str(len(rows)), seeds, device, commit, summary(body), name)


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(v for v in values if v))
