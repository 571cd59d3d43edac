"""All attacks at full size, as `make attack` runs them: JSON files with the figures, the command and the commit.

python tests/attack/run.py --messages 1000000 --jobs 2 --out results/attack
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
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
ROBUST = ("scaled by -4", "label flip", "sign flip")
"""Attacks of the right form, for which the robust reducers are."""
SHOWN = ("scaled by 100", "masked + 2^18", *ROBUST)
"""Attacks that are also run with the defaults, to show what these do not promise."""


Write = Callable[[dict[str, Any]], None]
CHUNK = 2000
"""Malformed messages after which a process tells what it has."""


@functools.cache
def targets() -> list[malformed.Target]:
    """Every method and filter; each process makes them once."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return malformed.targets()


def share(job: tuple[int, int]) -> tuple[malformed.Tally, int, list[float], int]:
    """One process's part of the malformed messages, and the memory of that process at the end of each tenth."""
    count, seed = job
    tally, memory = malformed.bombard(targets(), count, seed)
    return tally, os.getpid(), memory, len(targets())


def messages(count: int, jobs: int, write: Write) -> None:
    """Malformed messages at every method and filter. Every chunk has a seed of its own."""
    began, total, memory = time.time(), malformed.Tally(), {}
    parts = [(min(CHUNK, count - first), first // CHUNK) for first in range(0, count, CHUNK)]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for done, (tally, process, held, size) in enumerate(pool.imap_unordered(share, parts), 1):
            total.add(tally)
            memory.setdefault(process, []).append(held[-1])
            write(
                {
                    "what": "malformed messages of one of four clients, at every method and filter in turn",
                    "targets": size,
                    "asked_for": count,
                    "chunks_of": CHUNK,
                    "chunks_done": done,
                    **{k: dict(v) if isinstance(v, dict) else v for k, v in vars(total).items()},
                    "memory_mb": list(memory.values()),
                    "seconds": round(time.time() - began, 1),
                }
            )


def liar(job: tuple[str, int, int, str]) -> dict[str, Any]:
    """One training with liars, or with the same clients silent."""
    torch.set_num_threads(1)
    attack, clients, count, name = job
    filters = malicious.defences(clients, count)[name]
    row = malicious.run(attack, clients, count, filters)
    return {**row, "defence": name, "without": silent(row["method"], attack == "hello hijack", clients, count, name)}


@functools.cache
def silent(method: str, first: bool, clients: int, count: int, name: str) -> float:
    """The same training without the liars: the same for all attacks on one method."""
    attack = next(a for a in (*DEFAULT, *SHOWN) if malicious.method_of(a) == method and (a == "hello hijack") == first)
    return malicious.without(attack, clients, count, malicious.defences(clients - count, 0)[name])


def liars(clients: int, count: int, jobs: int, write: Write) -> None:
    """Malicious clients: accuracy with them, and of the same training without them."""
    robust = [name for name in malicious.defences(clients, count) if name != "default"]
    plan = [(attack, clients, count, name) for attack in ROBUST for name in ("default", *robust)]
    plan += [(attack, clients, count, "default") for attack in (*DEFAULT, *SHOWN) if attack not in ROBUST]
    what = "malicious clients among honest ones; `without`: the same training in which they send nothing"
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for row in pool.imap(liar, plan):
            rows.append(row)
            write({"what": what, "rounds": malicious.ROUNDS, "rows_asked_for": len(plan), "rows": rows})


def stamped() -> dict[str, Any]:
    """Where the figures come from."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "src", "tests/attack"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    command = shlex.join(["python", "tests/attack/run.py", *sys.argv[1:]])
    machine = f"{platform.machine()}, torch {torch.__version__}"
    return {"command": command, "commit": commit, "changed_since": bool(changed), "machine": machine}


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--messages", type=int, default=1_000_000)
    ask.add_argument("--jobs", type=int, default=2)
    ask.add_argument("--out", type=Path, default=ROOT / "results" / "attack")
    ask.add_argument("--only", choices=("messages", "liars"))
    ask.add_argument("--clients", type=int, choices=(4, 10), help="malicious clients of one federation alone")
    given = ask.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    origin = stamped()

    def write(name: str, found: dict[str, Any]) -> None:
        (given.out / f"{name}.json").write_text(json.dumps({**origin, **found}, indent=1) + "\n")

    if given.only != "messages":
        for clients, count in ((4, 1), (10, 3)):
            if given.clients in (None, clients):
                liars(clients, count, given.jobs, functools.partial(write, f"liars-{clients}"))
    if given.only != "liars":
        messages(given.messages, given.jobs, functools.partial(write, "messages"))


if __name__ == "__main__":
    main()
