"""Many clients: seconds per round and memory of 1,000 to 1,000,000 clients with private heads, cohorts of 100.

With private state and examples in memory-mapped files (`mapped`), and for comparison with all of it on the device
(`plain`: the smallest, or those of --plain); both must agree on the smallest. Federations take turns, round by round,
and the memory of the largest is measured in a process of its own. Peak host memory counts the pages of mapped files
that were touched. Where a file of all images would be too large, clients share those that there are. Checkpoints are
timed, too: after every tenth round, and all rounds are done again from the one in the middle, to the same bits. Run
`python benchmarks/scale.py --out results/benchmarks/scale-cpu.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from harness import Record, environment, insist, peak_memory, summary, wait, write

from acclimate import store
from acclimate.backends import Vmap
from acclimate.core import SGD, Holdings, HostShards, Shards, State, Task, Work, Worker, fit, tree
from acclimate.methods import FedAvg
from acclimate.models import CNN, MLP
from acclimate.ops.devices import device_of

SHAPE, CLASSES, EACH, COHORT = (1, 28, 28), 62, 20, 100
MODELS = {"mlp": MLP(hidden=(64,)), "cnn": CNN(widths=(32, 64), hidden=256)}
WAYS = {"mapped": Vmap(private="mapped", examples="host"), "plain": Vmap(private="device", examples="device")}
PIECE = 20_000
"""Images that are made at once."""
IMAGES = 400_000
"""Images in a file at most, 314 MB."""
EVERY = 10
"""Rounds between two checkpoints."""
WARM = 3
"""Rounds that are not timed."""


def images(folder: str, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Synthetic images in a memory-mapped file, written piece by piece; the label is where two bright lines meet.

    Every piece has the same noise: drawing all of it takes longer than all rounds.
    """
    count, rng = min(clients * EACH, IMAGES), np.random.default_rng(0)
    y, noise = rng.integers(0, CLASSES, count), rng.integers(0, 100, (PIECE, *SHAPE), dtype=np.uint8)
    path = Path(folder) / str(clients)
    with path.open("wb") as f:
        for labels in np.split(y, range(PIECE, count, PIECE)):
            x, each = noise[: len(labels)].copy(), np.arange(len(labels))
            x[each, :, labels % SHAPE[1]] += 100
            x[each, :, :, labels // SHAPE[1]] += 50
            f.write(x.tobytes())
    x = torch.from_file(str(path), shared=False, size=count * SHAPE[1] * SHAPE[2], dtype=torch.uint8)
    return x.view(count, *SHAPE), torch.from_numpy(y)


def examples(folder: str, clients: int, way: str, scattered: bool) -> Holdings:
    """Every client holds so many images: side by side, as in data that was collected by user, or all over the file."""
    x, y = images(folder, clients)
    rows = np.random.default_rng(1).permutation(clients * EACH) if scattered else np.arange(clients * EACH)
    rows %= len(x)
    if way == "mapped":
        return HostShards(x, y, torch.from_numpy(rows), torch.full((clients,), EACH))
    return Shards(x, y, torch.from_numpy(rows).view(clients, EACH), torch.full((clients,), EACH))


class Federation:
    """So many clients with private heads, trained round by round."""

    def __init__(self, clients: int, way: str, options: argparse.Namespace, folder: str) -> None:
        task = Task(MODELS[options.model], SHAPE, CLASSES, (0.5,), (0.5,))
        method = FedAvg(opt=SGD(lr=0.05), work=Work(epochs=1, batch=10), private=("head",))
        self.clients, self.device, self.round = clients, torch.device(options.device), 0
        self.worker, self.schedule = Worker(task, method), fit.RoundPlan(1, clients, COHORT)
        data, began = examples(folder, clients, way, options.scattered), time.perf_counter()
        self.engine = WAYS[way].open(self.worker, data, self.device)
        self.server = fit.start(self.worker, self.engine, clients).server
        self.opened = time.perf_counter() - began
        self._cohort = fit.sample(self.worker, self.schedule, 0)

    def step(self) -> float:
        """One round, and its seconds."""
        wait(self.device)
        began = time.perf_counter()
        following = fit.sample(self.worker, self.schedule, self.round + 1)
        self.engine.expect(following)
        self.server = fit.one_round(self.worker, self.engine, self.server, self._cohort, self.round)[0]
        self._cohort, self.round = following, self.round + 1
        wait(self.device)
        return time.perf_counter() - began

    def state(self) -> State:
        """All that a checkpoint holds."""
        return State(self.round, self.server, self.engine.mine, cost={})

    def checkpoints(self, folder: str, rounds: int) -> Record:
        """Seconds and bytes of checkpoints, and whether rounds that begin at one of them end in the same bits."""
        start, kept = self.state(), store.RunFolder(Path(folder) / f"run-{self.clients}")
        kept.path.mkdir()
        seconds, size, half = [], [], None
        for done in range(1, rounds + 1):
            self.step()
            if done % EVERY:
                continue
            began, before = time.perf_counter(), set(kept.path.rglob("*"))
            kept.checkpoint(self.state(), "benchmark", last=False)
            seconds.append(time.perf_counter() - began)
            size.append(sum(p.stat().st_size for p in {kept.state} | set(kept.path.rglob("*")) - before if p.is_file()))
            if half is None:
                half = Path(shutil.copytree(kept.path, kept.path.with_name(f"half-{self.clients}")))
        ended, began = self.state(), time.perf_counter()
        found = store.RunFolder(half).restore(start, ("benchmark",))
        restored = time.perf_counter() - began
        self.engine.mine, self.server, self.round = found.mine, found.server, found.round
        self._cohort = fit.sample(self.worker, self.schedule, self.round)
        while self.round < ended.round:
            self.step()
        who = torch.cat([fit.sample(self.worker, self.schedule, r) for r in range(ended.round)]).unique()
        pairs = zip(*(tree.leaves({"s": s.server, "m": s.mine.take(who)}) for s in (ended, self.state())), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            raise SystemExit(f"{self.clients} clients: rounds from a checkpoint do not end in the same bits")
        return {
            "seconds": seconds,
            "bytes_written": size,
            "seconds_to_restore": restored,
            "clients_with_rows": len(who),
            "resumed_to_the_same_bits": True,
        }

    def norm(self) -> float:
        """A number that tells two trainings apart."""
        return float(tree.norm(self.server["vars"]["params"]))


def in_turn(way: str, options: argparse.Namespace) -> Record:
    """Seconds per round of several federations that take turns: a machine that slows down slows all of them."""
    with tempfile.TemporaryDirectory() as folder, peak_memory(torch.device(options.device)) as gpu:
        all = [Federation(c, way, options, folder) for c in options.clients]
        times = [[f.step() for f in all] for _ in range(WARM + options.rounds)][WARM:]
        found = {
            str(f.clients): {"seconds_to_open": f.opened, "seconds_per_round": summary(own)}
            for f, own in zip(all, zip(*times, strict=True), strict=True)
        }
        norms = [f.norm() for f in all]
        if way == "mapped":
            for f in all:
                found[str(f.clients)]["checkpoint"] = f.checkpoints(folder, 3 * EVERY)
        private = tree.nbytes(all[0].engine.mine.take(0))
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    memory = {"peak_host_memory_gib": host, **gpu}
    return {"clients": found, "memory": memory, "private_bytes_per_client": private, "norms": norms}


def apart(options: argparse.Namespace, counts: list[int], way: str) -> Record:
    """The same in a process of its own, which has a peak of memory of its own."""
    words = ["--one", way, "--model", options.model, "--rounds", str(options.rounds), "--device", options.device]
    words += ["--scattered"] if options.scattered else []
    line = [sys.executable, str(Path(__file__)), *words, "--clients", *map(str, counts)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} with {counts} clients failed:\n{done.stderr[-2000:]}")
    record: Record = json.loads(done.stdout)
    return record


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scattered", action="store_true", help="a client's examples lie all over the file")
    parser.add_argument("--plain", type=int, nargs="+", help="federations to hold on the device; the smallest if none")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = device_of(options.device, "--device ")
    if options.one is not None:
        print(json.dumps(in_turn(options.one, options)))
        return
    record: Record = {
        "environment": environment(device),
        "settings": {
            "model": options.model,
            "rounds": options.rounds,
            "cohort": COHORT,
            "examples_each": EACH,
            "scattered": options.scattered,
            "shape": SHAPE,
            "images_at_most": IMAGES,
            "rounds_between_checkpoints": EVERY,
            "load_before": os.getloadavg(),
        },
    }
    for way, counts in {"mapped": options.clients, "plain": options.plain or options.clients[:1]}.items():
        record[way] = apart(options, counts, way)
        medians = [f["seconds_per_round"]["median"] for f in record[way]["clients"].values()]
        record[way]["largest_over_smallest"] = medians[-1] / medians[0]
        print(way, *(f"{m * 1000:.1f} ms" for m in medians), flush=True)
    mapped, plain = (record[way].pop("norms")[0] for way in WAYS)
    record["agreement"] = insist({"mapped": abs(mapped - plain) / plain}, 1e-6)
    # alone: together with the others, memory would be everybody's
    record["mapped"]["memory"] = apart(options, options.clients[-1:], "mapped")["memory"]
    print(record["mapped"]["memory"], flush=True)
    if options.out is not None:
        write(options.out, record)


if __name__ == "__main__":
    main()
