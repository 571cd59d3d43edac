"""Faults by the hundred in fleets of real processes: is a round lost, does anything hang, are the bits the same?

    python tests/attack/faults.py --faults 1000 --jobs 2 --out results/attack/faults.json

An episode is one training of four clients at two nodes, disturbed ten times at random moments and left alone after
that. A round wants every client, so that nothing may be lost. At its end the server's state, the versions of private
states, what the intake remembers and the private states at the nodes must be those of the same training undisturbed,
to the bit. An episode leaves one JSON file in the folder of parts; what is there is not run again, so the program may
be stopped at any time (`--seconds`), go on, and run at several places. Needs torch, numpy, safetensors, scikit-learn's
file of digits, and Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from attacked import experiment
from fleet_processes import Processes
from pieces import commit

from acclimate import store
from acclimate.backends.flower.engine import Flower
from acclimate.experiment import Experiment
from acclimate.filters import Masked
from acclimate.ops.hashing import content_hash
from acclimate.running import run as api

NODES, CLIENTS, ROUNDS, EACH = 2, 4, 16, 10
DEADLINE = 4.0
"""Seconds that nodes have for a step, unless `--deadline` says otherwise: more where a machine is busy."""
LIMIT = 300.0
"""Seconds without a new round after which an episode counts as one that hangs."""
GAP = 0.5
"""Seconds between two faults, on average."""
KINDS = ("node", "link", "server", "deadline", "disk of the server", "disk of a node", "half-written")
SETTINGS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "fedavg": ("fedavg", ()),
    "scaffold": ("scaffold", ()),
    "secure sum": ("fedavg", (Masked(threshold=0.75),)),
}


def made(name: str) -> Experiment:
    method, filters = SETTINGS[name]
    more = ("data.fraction=0.1", f"rounds={ROUNDS}", f"eval_every={ROUNDS}", "checkpoint_every=1")
    e = experiment(method, *more, "adapters=none", "streams=original", clients=CLIENTS, filters=filters)
    return replace(e, backend=Flower(deadline=DEADLINE, patience=20.0, quorum=1.0, tries=1000))


def patient(seconds: float) -> None:
    """Set the deadline of all episodes."""
    global DEADLINE
    DEADLINE = seconds


# --- what one training ends with ------------------------------------------------------------------------------------


def ends_with(folder: Path) -> dict[str, str]:
    """Hashes of all that must be the same: by name."""
    meta, flat = store.read_tensors(folder / "run" / "state.safetensors")
    kept = {k: v for k, v in flat.items() if k.split("/")[0] in ("server", "mine", "intake")}
    out = {"rounds": str(meta["round"]), **{k: content_hash(v) for k, v in kept.items()}}
    for path in sorted(folder.glob(f"site*/runs/run/mine/*/{ROUNDS:06d}.safetensors")):
        own = store.read_tensors(path)[1]
        out["/".join(path.parts[-2:])] = content_hash(*(own[k] for k in sorted(own)))
    return out


def rounds_done(folder: Path) -> int:
    path = folder / "run" / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0


def reference(name: str, parts: Path) -> dict[str, str]:
    """What the training ends with where nothing disturbs it; made once per folder of parts."""
    path = parts / f"reference-{name.replace(' ', '-')}.json"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            fleet = opened(Path(folder), made(name))
            try:
                finish(fleet, Tally())
                store.write(path, json.dumps(ends_with(Path(folder)), indent=1) + "\n")
            finally:
                fleet.kill_all()
    found: dict[str, str] = store.read_json(path)
    return found


# --- faults ---------------------------------------------------------------------------------------------------------


class Tally:
    """What happened in one episode."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        self.killed = self.stops = self.hangs = 0
        """Processes ended by a signal; ends of the server by itself, which a resume mends; trainings that hang."""
        self.why: list[str] = []


def opened(folder: Path, e: Experiment) -> Processes:
    store.RunFolder.create(folder / "run", e, api.device_of("cpu"))
    fleet = Processes(folder, e, NODES)
    fleet.start_all()
    return fleet


def mend(fleet: Processes, tally: Tally) -> bool:
    """Start the server again where it has ended by itself; whether the training is over."""
    if (code := fleet.ended("server")) is None:
        return False
    if code == 0:
        return True
    tally.stops += 1
    tally.why.append(last_words(fleet))
    fleet.start("server")
    return False


def last_words(fleet: Processes) -> str:
    """The end of the server's log; nothing where a full disk took that too."""
    return (fleet.folder / "server.log").read_text(errors="replace").strip()[-300:]


def finish(fleet: Processes, tally: Tally) -> None:
    """Wait for the end. No progress for LIMIT seconds is a hang."""
    size, since = -1, time.monotonic()
    while not mend(fleet, tally):
        if (now := progress(fleet)) != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > LIMIT:
            tally.hangs += 1
            tally.why.insert(0, last_words(fleet))
            return
        time.sleep(0.05)


def progress(fleet: Processes) -> int:
    state = fleet.run / "state.safetensors"
    return (state.stat().st_mtime_ns if state.exists() else 0) + rounds_done(fleet.folder)


def again(fleet: Processes, tally: Tally, name: str, chance: random.Random) -> None:
    fleet.kill(name)
    tally.killed += 1
    time.sleep(chance.uniform(0, 0.5))
    fleet.start(name)


def stopped(fleet: Processes, tally: Tally, name: str, chance: random.Random) -> None:
    """It stands still for longer than a round's deadline, and then goes on as if nothing were."""
    os.kill(fleet.pids[name], signal.SIGSTOP)
    time.sleep(DEADLINE + chance.uniform(0.1, 1.0))
    os.kill(fleet.pids[name], signal.SIGCONT)


def full(fleet: Processes, tally: Tally, name: str, chance: random.Random) -> None:
    """The kernel takes no more than some bytes of every file that it writes: writes break off in the middle."""
    pid, (_, most) = fleet.pids[name], resource.prlimit(fleet.pids[name], resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (chance.choice([0, 100, 1000, 5000]), most))
    end = time.monotonic() + 2.0
    while time.monotonic() < end and not (name == "server" and fleet.ended_now(name)):
        time.sleep(0.05)
    if name in fleet.pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def half_written(fleet: Processes, tally: Tally, name: str, chance: random.Random) -> None:
    """The server is killed, and what a crash in the middle of a write leaves is there when it starts again."""
    fleet.kill("server")
    tally.killed += 1
    rubbish = chance.randbytes(chance.randrange(1, 4000))
    (fleet.run / f".state.safetensors.{chance.getrandbits(32):08x}").write_bytes(rubbish)
    (fleet.run / f".results.json.{chance.getrandbits(32):08x}").write_bytes(rubbish[:20])
    with (fleet.run / "metrics.jsonl").open("ab") as f:
        f.write(b'{"round": 7, "val_accu')
    for mine in fleet.folder.glob("site*/runs/run/mine/*"):
        (mine / f".{chance.randrange(ROUNDS):06d}.safetensors.{chance.getrandbits(32):08x}").write_bytes(rubbish)
    fleet.start("server")


ACTS: dict[str, tuple[Callable[..., None], str]] = {
    "node": (again, "node"),
    "link": (again, "link"),
    "server": (again, "server"),
    "deadline": (stopped, "node"),
    "disk of the server": (full, "server"),
    "disk of a node": (full, "node"),
    "half-written": (half_written, "server"),
}


def episode(number: int, parts: Path) -> dict[str, Any]:
    """One training with ten faults, and how it ended."""
    chance, name = random.Random(f"faults {number}"), list(SETTINGS)[number % len(SETTINGS)]
    expected, tally, begun = reference(name, parts), Tally(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fleet = opened(Path(folder), made(name))
        try:
            for kind in chance.choices(KINDS, k=EACH):
                time.sleep(chance.expovariate(1 / GAP))
                if mend(fleet, tally):
                    break
                act, who = ACTS[kind]
                act(fleet, tally, who if who != "node" else f"node{chance.randrange(NODES)}", chance)
                tally.faults[kind] += 1
            if "server" in fleet.pids:
                finish(fleet, tally)
            got = {} if tally.hangs else ends_with(Path(folder))
            asked_again = (Path(folder) / "server.log").read_text(errors="replace").count(" needed (")
        finally:
            fleet.kill_all()
    return {
        "episode": number,
        "training": name,
        "faults": dict(tally.faults),
        "processes_killed": tally.killed,
        "rounds": int(got.get("rounds", 0)),
        "lost_rounds": ROUNDS - int(got.get("rounds", 0)),
        "hangs": tally.hangs,
        "same_bits": got == expected,
        "different": sorted(k for k in expected.keys() | got.keys() if expected.get(k) != got.get(k))[:5],
        "ends_by_itself": tally.stops,
        "why": tally.why[:3],
        "asked_again": asked_again,
        "deadline": DEADLINE,
        "seconds": round(time.monotonic() - begun, 1),
        "commit": commit(),
        "machine": f"{platform.machine()}, torch {torch.__version__}",
    }


# --- many of them ---------------------------------------------------------------------------------------------------


def part(number: int, parts: Path) -> Path:
    return parts / f"episode-{number:04d}.json"


def happened(parts: Path) -> int:
    """Faults so far: fewer than ten in an episode that was over before the tenth."""
    return sum(sum(store.read_json(p)["faults"].values()) for p in parts.glob("episode-*.json"))


def worker(first: int, step: int, faults: int, parts: Path, end: float) -> None:
    """Every `step`-th episode, until there have been enough faults or the time is up."""
    number = first
    while happened(parts) < faults and time.monotonic() < end:
        if not part(number, parts).exists():
            told = episode(number, parts)
            store.write(part(number, parts), json.dumps(told) + "\n")
            print(json.dumps(told), flush=True)
        number += step


def merged(*parts: Path) -> dict[str, Any]:
    """All episodes so far as one, of several machines where there are several folders."""
    done = [store.read_json(p) for folder in parts for p in sorted(folder.glob("episode-*.json"))]
    slowest = max((d["deadline"] for d in done), default=DEADLINE)
    return {
        "what": f"trainings of {CLIENTS} clients at {NODES} nodes, {ROUNDS} rounds each, in real processes, disturbed",
        "command": f"python tests/attack/faults.py --faults 1000 --jobs 2 --deadline {slowest:g} --out FILE",
        "commits": sorted({d["commit"] for d in done}),
        "episodes": len(done),
        "faults": sum(sum(d["faults"].values()) for d in done),
        "by_kind": dict(sum((Counter(d["faults"]) for d in done), Counter())),
        "processes_killed": sum(d["processes_killed"] for d in done),
        "rounds": sum(d["rounds"] for d in done),
        "lost_rounds": sum(d["lost_rounds"] for d in done),
        "hangs": sum(d["hangs"] for d in done),
        "other_bits": sum(not d["same_bits"] for d in done),
        "ends_by_itself": sum(d["ends_by_itself"] for d in done),
        "asked_again": sum(d["asked_again"] for d in done),
        "by_training": {n: sum(d["training"] == n for d in done) for n in SETTINGS},
        "amiss": [d for d in done if d["hangs"] or d["lost_rounds"] or not d["same_bits"]][:5],
        "deadlines": sorted({d["deadline"] for d in done}),
        "seconds_of_episodes": round(sum(d["seconds"] for d in done), 1),
        "machines": sorted({d["machine"] for d in done}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=1000, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="episodes side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no episode after so long")
    parser.add_argument("--parts", type=Path, default=Path("runs/faults"), help="one file per episode; goes on from it")
    parser.add_argument(
        "--also", type=Path, nargs="*", default=[], help="folders of parts of other machines, for --out"
    )
    parser.add_argument("--out", type=Path, help="all episodes as one JSON file")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds that nodes have for a step")
    given = parser.parse_args()
    patient(given.deadline)
    torch.set_num_threads(1)
    given.parts.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.seconds
    for name in SETTINGS:
        reference(name, given.parts)
    pids = []
    for job in range(given.jobs):
        if (pid := os.fork()) == 0:
            try:
                worker(job, given.jobs, given.faults, given.parts, end)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    told = merged(given.parts, *given.also)
    print(json.dumps(told, indent=1))
    if given.out is not None:
        store.write(given.out, json.dumps(told, indent=1) + "\n")
    sys.exit(any(codes) or bool(told["amiss"]))


if __name__ == "__main__":
    main()
