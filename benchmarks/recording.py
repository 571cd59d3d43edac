"""What recording costs: the first round of a fresh process beside those that replay it.

A round of FedAvg with as many local steps as asked for, on the two-layer CNN. The first round of the engine makes the
recording, with everything that must run before it; later ones replay it. A second engine for the same work finds the
recording of the first. Needs a GPU, and a process that has done nothing else.

    python benchmarks/recording.py [--steps 875] [--clients 20] [--out figures.json]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from federated import Round, dealt, task_of
from harness import environment, parser_of, wait, write

from acclimate.backends import Vmap
from acclimate.core import Work
from acclimate.methods import FedAvg
from acclimate.models import CNN

BATCH, BATCHES = 32, 25
"""Examples of a step, and steps of an epoch."""


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time of one call."""
    wait(device)
    began = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - began


def measured(steps: int, clients: int, device: torch.device, repeats: int = 5) -> dict[str, float]:
    """Seconds of the first round, of those that follow, and of the first round of a second engine."""
    method = FedAvg(work=Work(epochs=steps // BATCHES, batch=BATCH))
    data = dealt([BATCH * BATCHES] * clients).to(device)
    work = Round.of(task_of(CNN()), method, data)
    torch.ones(1, device=device).sum()  # the device's context is nobody's recording
    run = work.ours(Vmap().open(work.worker, data, device))
    first = seconds(run, device)
    later = statistics.median(seconds(run, device) for _ in range(repeats))
    again = seconds(work.ours(Vmap().open(work.worker, data, device)), device)
    return {"first": first, "replayed": later, "recording": first - later, "second_engine": again}


def main() -> None:
    """Measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=875)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.steps < BATCHES or given.steps % BATCHES:
        raise SystemExit(f"--steps {given.steps} must be a multiple of {BATCHES}, the steps of an epoch")
    if not torch.cuda.is_available():
        raise SystemExit("recordings are made on a GPU, and there is no CUDA device")
    device = torch.device("cuda")
    found = measured(given.steps, given.clients, device)
    print(f"{given.steps} steps: " + ", ".join(f"{name} {t:.3g} s" for name, t in found.items()))
    sizes = {"clients": given.clients, "steps": given.steps}
    report = {"schema": "acclimate.recording/1", **environment(device), **sizes, "seconds": found}
    if given.out:
        write(given.out, report)


if __name__ == "__main__":
    main()
