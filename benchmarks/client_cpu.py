"""What one client of `peers.py` computes in a round: as a plain loop, which is what Flower's clients run, and as ours.

CPU time of one thread, in turn, in one process; other work of the machine changes it little. Transport, averaging and
the use of several cores are left out. Both ways have the allocator that our worker processes have; Flower's have
torch's own settings, with which the plain loop takes longer on ARM. Ours trains on 7 % more, as `peers.py` says.

    python benchmarks/client_cpu.py [--repeats 3] [--out results/benchmarks/client-cpu.json]
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")  # read when torch is imported

import peers
import torch
from harness import environment, parser_of, write

from acclimate.backends import Serial
from acclimate.core import Shards, fit


def measured(repeats: int) -> dict[str, list[float]]:
    """CPU seconds of both ways; a first turn of each does not count."""
    data, worker, cpu = peers.LOAD.federation(), peers.LOAD.worker(), torch.device("cpu")
    engine = Serial().open(worker, Shards.of(data.x, data.y, [data.own(0)]), cpu)
    server = fit.start(worker, engine, 1).server
    peers.examples(0)
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for turn in range(repeats + 1):
        module = peers.CNN().build((3, peers.SIDE, peers.SIDE), peers.CLASSES)
        began = time.process_time()
        peers.local_training(module, 0, turn)
        times["plain"].append(time.process_time() - began)
        began = time.process_time()
        fit.one_round(worker, engine, server, torch.arange(1), turn)
        times["ours"].append(time.process_time() - began)
        print(", ".join(f"{name} {t[-1]:.2f} s" for name, t in times.items()), flush=True)
    return {name: t[1:] for name, t in times.items()}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = {"benchmark": "client, cpu", **environment(torch.device("cpu")), "load": os.getloadavg()}
    found = measured(args.repeats)
    medians = {name: statistics.median(t) for name, t in found.items()}
    ratio = medians["plain"] / medians["ours"]
    print(f"ours computes {ratio:.2f} x less")
    if args.out:
        more = {"cpu_seconds": found, "median": medians, "times_less_computing": ratio}
        write(args.out, about | more)


if __name__ == "__main__":
    main()
