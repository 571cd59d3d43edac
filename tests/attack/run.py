"""All attacks at full size, as `make attack` runs them: JSON files with the figures, the command and the commit.

python tests/attack/run.py --messages 1000000 --jobs 2 --out results/attack
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import shlex
import subprocess
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(Path(__file__).parent)]

import malformed  # noqa: E402
import malicious  # noqa: E402

DEFAULT = (
    "weight 2^62",
    "number 10^9",
    "share 1e30",
    "loss 1e38",
    "delta 3e38",
    "control 1e38",
    "flood",
    "hello hijack",
)
"""Attacks that the defaults of a network must bear."""
ROBUST = ("sign flip", "scaled by -4", "scaled by 100", "label flip")
"""Attacks of the right form, for which the robust reducers are."""
SHOWN = ("masked + 2^18", *ROBUST)
"""Attacks that are also run with the defaults, to show what these do not promise."""


def share(job: tuple[int, int]) -> tuple[malformed.Tally, list[float], int]:
    """One process's part of the malformed messages."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count, seed = job
    made = malformed.targets()
    tally, memory = malformed.bombard(made, count, seed)
    return tally, memory, len(made)


def messages(count: int, jobs: int) -> dict[str, Any]:
    """Malformed messages at every method and filter."""
    began, parts = time.time(), [(count // jobs + (i < count % jobs), i) for i in range(jobs)]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        done = pool.map(share, parts)
    total = malformed.Tally()
    for tally, _, _ in done:
        total.add(tally)
    return {
        "what": "malformed messages of one of four clients, at every method and filter of the catalogue in turn",
        "targets": done[0][2],
        "seeds": list(range(jobs)),
        **{k: dict(v) if isinstance(v, dict) else v for k, v in asdict(total).items()},
        "memory_mb": [memory for _, memory, _ in done],
        "seconds": round(time.time() - began, 1),
    }


def liars() -> dict[str, Any]:
    """Malicious clients: accuracy with them, and of the same training without them."""
    rows = []
    for clients, count in ((4, 1), (10, 3)):
        known: dict[tuple[str, str, bool], float] = {}
        for attack in (*DEFAULT, *SHOWN):
            for name, filters in malicious.defences(clients, count).items():
                if name != "default" and attack not in ROBUST:
                    continue
                row = malicious.run(attack, clients, count, filters)
                place = (row["method"], name, attack == "hello hijack")
                if place not in known:
                    known[place] = malicious.without(attack, clients, count, filters)
                rows.append({**row, "defence": name, "without": known[place]})
                print(json.dumps(rows[-1]), flush=True)
    return {
        "what": "malicious clients among honest ones; `without`: the same training in which they send nothing",
        "rows": rows,
    }


def stamped(found: dict[str, Any]) -> dict[str, Any]:
    """The figures with where they come from."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "src", "tests/attack"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    command = shlex.join(["python", "tests/attack/run.py", *sys.argv[1:]])
    machine = f"{platform.machine()}, torch {torch.__version__}"
    return {"command": command, "commit": commit, "changed_since": bool(changed), "machine": machine, **found}


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--messages", type=int, default=1_000_000)
    ask.add_argument("--jobs", type=int, default=2)
    ask.add_argument("--out", type=Path, default=ROOT / "results" / "attack")
    ask.add_argument("--only", choices=("messages", "liars"))
    given = ask.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, found in (("liars", liars), ("messages", lambda: messages(given.messages, given.jobs))):
        if given.only in (None, name):
            (given.out / f"{name}.json").write_text(json.dumps(stamped(found()), indent=1) + "\n")


if __name__ == "__main__":
    main()
