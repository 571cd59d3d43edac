"""What one client of `peers.py` computes in a round: as a plain loop, which is what Flower's clients run, and as ours.

CPU time of one thread, in turn, in one process; other work of the machine changes it little. Transport, averaging and
the use of several cores are left out. Both ways have the allocator that our worker processes have; Flower's have
torch's own settings, with which the plain loop takes longer on ARM. Ours trains on 7 % more, as `peers.py` says.

The ceiling is the quickest of many large matrix products on that thread, a few in every turn. `at_the_ceiling` says how
many times less than the plain loop a way would compute that did our operations at this rate, and nothing else.

    python benchmarks/client_cpu.py [--repeats 3] [--out results/benchmarks/client-cpu.json]
"""

from __future__ import annotations

import math
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")  # read when torch is imported

import peers
import torch
import torch.nn.functional as F
from harness import environment, parser_of, write
from limits import product_rate, work_of

from acclimate.backends import Serial
from acclimate.core import Shards, fit


def operations() -> dict[str, float]:
    """GFLOP of a round of one client, by way: ours fills an epoch's last batch."""
    module = peers.CNN().build((3, peers.SIDE, peers.SIDE), peers.CLASSES)
    x, y = (t[: peers.BATCH] for t in peers.examples(0))
    step = work_of(lambda: F.cross_entropy(module(x)[1], y).backward())["flops"]
    images = {"plain": peers.LOAD.examples, "ours": peers.BATCH * math.ceil(peers.LOAD.examples / peers.BATCH)}
    return {way: peers.EPOCHS * n * step / peers.BATCH / 1e9 for way, n in images.items()}


def measured(repeats: int) -> dict[str, list[float]]:
    """CPU seconds of both ways, and the rates of large matrix products; a first turn of each does not count."""
    data, worker, cpu = peers.LOAD.federation(), peers.LOAD.worker(), torch.device("cpu")
    engine = Serial().open(worker, Shards.of(data.x, data.y, [data.own(0)]), cpu)
    server = fit.start(worker, engine, 1).server
    peers.examples(0)
    times: dict[str, list[float]] = {"plain": [], "ours": [], "rate": []}
    for turn in range(repeats + 1):
        module = peers.CNN().build((3, peers.SIDE, peers.SIDE), peers.CLASSES)
        began = time.process_time()
        peers.local_training(module, 0, turn)
        times["plain"].append(time.process_time() - began)
        began = time.process_time()
        fit.one_round(worker, engine, server, torch.arange(1), turn)
        times["ours"].append(time.process_time() - began)
        times["rate"].append(product_rate(time.process_time))
        print(", ".join(f"{name} {times[name][-1]:.2f} s" for name in ("plain", "ours")), flush=True)
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
    top = max(found.pop("rate")) / 1e9
    medians, gflop = {name: statistics.median(t) for name, t in found.items()}, operations()
    ratio, best = medians["plain"] / medians["ours"], medians["plain"] * top / gflop["ours"]
    share = {name: gflop[name] / t / top for name, t in medians.items()}
    print(f"ours computes {ratio:.2f} x less, and would {best:.2f} x at the ceiling of {top:.1f} GFLOP/s")
    print("of the ceiling: " + ", ".join(f"{name} {100 * s:.0f} %" for name, s in share.items()))
    if args.out:
        limits = {"gflop": gflop, "gflop_per_second": top, "share_of_ceiling": share, "at_the_ceiling": best}
        more = {"cpu_seconds": found, "median": medians, "times_less_computing": ratio}
        write(args.out, about | more | limits)


if __name__ == "__main__":
    main()
