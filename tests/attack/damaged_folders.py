"""Run folders that are damaged in every way that a disk, a crash or a careless hand could: what resume and report say.

`attack` copies a finished run, one that was stopped and a folder of two runs, damages the copy, and counts the answers:
`refused` with a sentence, `same` result as without the damage, `different` without a word, `traceback`, `hang`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import shutil
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from alarm import Hang, at_most

import acclimate as ac
from acclimate import store
from acclimate.experiment.settings import expand
from acclimate.running import run as api

QUICK = ("data.clients=3", "model=mlp", "model.hidden=8", "rounds=2", "method.work.epochs=1", "checkpoint_every=1")
QUICK += ("adapters=none", "streams=original", "device=cpu", "backend=serial")
SENTENCES = (store.RunError, ValueError, FileNotFoundError)
"""What the command line answers with one sentence and exit code 2."""
SECONDS = 30
FILES = ("config.json", "env.json", "metrics.jsonl", "state.safetensors", "pace.json", "results.json", "report.html")
FILES += ("index.json",)


def prepare(root: Path) -> dict[str, Path]:
    """The folders that are damaged, by name: finished, stopped and several."""
    from acclimate.running.watch import Watch

    class Early(Watch):
        def round(self, state):
            if state.round == 1:
                raise KeyboardInterrupt

    first = expand(QUICK)[0]
    api.run(first, root / "finished")
    with contextlib.suppress(api.Interrupted):
        api.run(first, root / "stopped", watch=Early())
    api.run_all(expand([*QUICK, "seed=0,1"]), root / "several")
    return {name: root / name for name in ("finished", "stopped", "several")}


def damage(folder: Path, draw: random.Random) -> str:
    """Do one thing to one file of a run; what was done."""
    there = sorted(p for p in folder.rglob("*") if p.is_file() and p.name in FILES)
    path = draw.choice(there)
    kind = draw.choice(("flip", "flip", "flips", "cut", "delete", "empty", "folder", "garbage", "swap", "pipe", "loop"))
    if path.suffix == ".json" and draw.random() < 0.5:
        kind = draw.choice(("field", "field", "drop", "nest", "digest"))
    raw = path.read_bytes()
    if kind in ("flip", "flips"):
        body = bytearray(raw)
        for _ in range(1 if kind == "flip" else draw.randint(2, 40)):
            if body:
                body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(body))
    elif kind == "cut":
        path.write_bytes(raw[: draw.randrange(len(raw) + 1)])
    elif kind == "garbage":
        path.write_bytes(raw + draw.randbytes(draw.randint(1, 60)))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "swap":
        other = draw.choice(there)
        content = other.read_bytes()
        other.write_bytes(raw)
        path.write_bytes(content)
    elif kind in ("delete", "folder", "pipe", "loop"):
        path.unlink()
        {"delete": lambda: None, "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}.get(
            kind, lambda: path.symlink_to(path.name)
        )()
    else:
        path.write_text(_edited(json.loads(raw), kind, draw))
    return f"{kind} {path.relative_to(folder)}"


def _edited(body: dict, kind: str, draw: random.Random) -> str:
    """The JSON object with one place changed."""
    if kind == "nest":
        deep = "[" * 100_000 + "]" * 100_000
        return json.dumps(body)[:-1] + f', "more": {draw.choice((deep, deep[:500] + deep[-500:], "1" * 6000))}}}'
    if kind == "digest":
        body.pop("digest", None)
        return json.dumps(body)
    at = body
    while True:
        key = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
        inner = at[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.85:
            at = inner
            continue
        if kind == "drop":
            del at[key]
        else:
            at[key] = draw.choice((None, -1, 10**30, 0.5, "", "x", [], {}, True, "../../x", "os:system"))
        return json.dumps(body)


def answer(folder: Path, page: Path, truth: dict) -> tuple[str, str]:
    """What resume and report make of a folder: a word, and the sentence or traceback."""
    try:
        with at_most(SECONDS):
            table = ac.resume(folder)
            ac.report(folder, out=page)
        same = json.loads(json.dumps(list(table.rows))) == truth["rows"] and _content(page) == truth["page"]
        return ("same" if same else "different"), ""
    except SENTENCES as e:
        return "refused", str(e)
    except Hang:
        return "hang", ""
    except Exception:
        return "traceback", traceback.format_exc(limit=-4)


def _content(page: Path) -> str:
    """A report's results, without what may differ between two runs of one experiment: times, and digests of files."""
    text = page.read_text()
    if "<table" not in text:
        return text
    rows = text[text.index("<table") : text.index("</table>")].split("<tr")
    cells = [row.split("<td") for row in rows]
    return "<tr".join("<td".join(c[:-2] + c[-1:] if len(c) > 2 else c) for c in cells)  # the last but one is a time


@dataclass(frozen=True)
class Prepared:
    """Whole run folders, and what resume and report make of them."""

    root: Path
    made: dict[str, Path]
    truth: dict[str, dict]

    @classmethod
    def at(cls, root: Path) -> Prepared:
        made, truth = prepare(root), {}
        for name, path in made.items():
            whole = Path(shutil.copytree(path, root / f"whole-{name}" / name))
            table = ac.resume(whole)
            ac.report(whole, out=root / f"{name}.html")
            truth[name] = {"rows": json.loads(json.dumps(list(table.rows))), "page": _content(root / f"{name}.html")}
        return cls(root, made, truth)


def attack(ready: Prepared, count: int, seed: int = 0) -> dict:
    """Damage so many folders; the counts, and what went wrong."""
    root, draw = ready.root, random.Random(seed)
    counts, kinds, wrong = Counter(), Counter(), []
    for number in range(count):
        name = draw.choice(("finished",) * 6 + ("stopped",) * 2 + ("several",) * 2)
        copy = Path(shutil.copytree(ready.made[name], root / "trial" / name))
        done = damage(copy, draw)
        word, said = answer(copy, root / "trial" / "page.html", ready.truth[name])
        counts[word] += 1
        kinds[done.split()[0]] += 1
        if word not in ("same", "refused"):
            wrong.append({"number": number, "folder": name, "damage": done, "answer": word, "said": said})
        shutil.rmtree(root / "trial")
    words = ("refused", "same", "different", "traceback", "hang")
    return {"tried": sum(counts.values()), **{w: counts[w] for w in words}, "kinds": dict(kinds), "wrong": wrong}


# --- in pieces --------------------------------------------------------------------------------------------------------

PIECE = 50
"""Folders of one piece."""


@functools.cache
def _ready() -> Prepared:
    """The whole folders of this process, which it makes once."""
    root = tempfile.mkdtemp(prefix="acclimate-folders-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return Prepared.at(Path(root))


def piece(number: int) -> dict:
    return attack(_ready(), PIECE, seed=number)


def merged(pieces: list[dict]) -> dict:
    """All pieces in one."""
    words = ("tried", "refused", "same", "different", "traceback", "hang")
    kinds = dict(sum((Counter(p["kinds"]) for p in pieces), Counter()))
    wrong = [w for p in pieces for w in p["wrong"]][:100]
    return {**{w: sum(p[w] for p in pieces) for w in words}, "kinds": kinds, "wrong": wrong}
