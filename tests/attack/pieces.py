"""An attack in pieces: done by several processes and on several machines, stopped at any time, and put together.

Every piece has a number, which is its seed. `run` appends a line of JSON for every piece that is done to a file in a
folder, and skips the pieces that any file there has; `merged` makes one record of the lines of several folders.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[2]
PROCESS = secrets.token_hex(4)
"""A name of this process, which no process of another machine has."""


class Attack(NamedTuple):
    """Where the pieces of an attack are made, by names, so that a process imports what it needs alone."""

    module: str
    piece: str
    """A function of a number."""
    merged: str
    """A function of the pieces in their order."""
    count: int
    about: str
    first: tuple[Any, ...] = ()
    """What the functions take before that."""

    def function(self, name: str) -> Callable[..., dict[str, Any]]:
        return functools.partial(getattr(importlib.import_module(self.module), name), *self.first)


@functools.cache
def code() -> str:
    """A digest of the code that is attacked and of the attack: git need not be there where it runs."""
    files = sorted(p for place in ("src/acclimate", "tests/attack") for p in (ROOT / place).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def commit() -> str:
    """The commit, with `-dirty` where files differ from it; where there is no repository the caller may say it."""
    if said := os.environ.get("ACCLIMATE_COMMIT"):
        return said
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except OSError:
        return ""


def one(job: tuple[Attack, int, float]) -> dict[str, Any] | None:
    """One piece; None where the time is over."""
    attack, number, end = job
    if time.time() > end:
        return None
    torch.set_num_threads(1)
    began, used = time.time(), time.process_time()
    found = attack.function(attack.piece)(number)
    at = {"process": PROCESS, "began": round(began, 1), "core_seconds": round(time.process_time() - used, 2)}
    return {"piece": number, **at, "found": found}


def results(jobs: Sequence[tuple[Attack, int, float]], processes: int) -> Iterator[dict[str, Any] | None]:
    if processes == 1:
        yield from map(one, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(one, jobs)


def run(name: str, attack: Attack, out: Path, numbers: range, processes: int, seconds: float) -> tuple[int, int]:
    """Do the pieces of these numbers that the folder does not have; how many were done, and how many are left."""
    have = {line["piece"] for line in lines([out], name)}
    todo = [(attack, number, time.time() + seconds) for number in numbers if number not in have]
    origin = {"code": code(), "commit": commit(), "machine": f"{platform.machine()}, torch {torch.__version__}"}
    out.mkdir(parents=True, exist_ok=True)
    done, file = 0, out / f"{name}-{numbers.start}-{numbers.stop - 1}-{PROCESS}.jsonl"
    for found in results(todo, processes):
        if found is not None:
            with file.open("a") as f:
                f.write(json.dumps({**found, **origin}) + "\n")
            done += 1
    return done, len(todo) - done


def lines(folders: Sequence[Path], name: str) -> list[dict[str, Any]]:
    """The pieces of an attack that folders have, by their numbers, each once: the last that was done, so that a piece
    which found something can be done again. Half a line of a kill does not count."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(p for folder in folders for p in folder.glob(f"{name}-*.jsonl")):
        for text in path.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if line["began"] >= found.get(line["piece"], line)["began"]:
                found[line["piece"]] = line
    return [found[number] for number in sorted(found)]


def merged(attack: Attack, pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One record of all pieces, with where they come from."""
    memory: dict[str, list[float]] = {}
    for line in sorted(pieces, key=lambda line: line["began"]):
        if "memory_mb" in line["found"]:
            memory.setdefault(line["process"], []).append(line["found"]["memory_mb"])
    origin = {key: sorted({line[key] for line in pieces}) for key in ("code", "commit", "machine")}
    return {
        "what": attack.about,
        **origin,
        "pieces": len(pieces),
        "pieces_asked_for": attack.count,
        "processes": len({line["process"] for line in pieces}),
        "core_seconds": round(sum(line["core_seconds"] for line in pieces), 1),
        **attack.function(attack.merged)([line["found"] for line in pieces]),
        **({"memory_mb": _flat(list(memory.values()))} if memory else {}),
    }


def _flat(held: Sequence[Sequence[float]]) -> dict[str, float]:
    """Memory of processes after their pieces: the extremes, and the most that one of them grew by after the first."""
    grown = [own[-1] - own[0] for own in held]
    all_of_them = [x for own in held for x in own]
    return {"least": min(all_of_them), "most": max(all_of_them), "most_grown": round(max(grown), 1)}
