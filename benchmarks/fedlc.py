"""Why FedLC lies below FedAvg on the embedded digits: its two parts alone, and other strengths.

FedLC takes 100 tau off the logits of classes that a client lacks, which leaves them out of the softmax (`absent`), and
tau n^(-1/4) off those of classes of which it has n examples (`present`). Each row is a training with default settings.

    python benchmarks/fedlc.py [--seeds 0,1,2] [--rounds 10] [--out results/causes/fedlc.json]

Percent after the last round, mean over seeds: on clients' own test data, and on their validation data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

import torch
from harness import environment, integers, parser_of, write
from torch import Tensor

import acclimate as ac
from acclimate.core import Method
from acclimate.methods import FedAvg, FedLC


@dataclass(frozen=True)
class PartOfFedLC(FedLC):
    """FedLC with one of its margins."""

    part: Literal["absent", "present"] = "absent"

    def margins(self, counts: Tensor) -> Tensor:
        """FedLC's margins of its part of the classes; of others none."""
        all = super().margins(counts)
        return torch.where((counts > 0) == (self.part == "present"), all, torch.zeros_like(all))


WAYS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "absent": PartOfFedLC(part="absent"),
    "present": PartOfFedLC(part="present"),
    **{f"tau {tau}": FedLC(tau=tau) for tau in (1.0, 0.5, 0.25, 0.1, 0.01)},
}


def measured(method: Method, seed: int, rounds: int) -> tuple[float, float]:
    """Accuracy on test and validation data of the clients' own."""
    fit = ac.train(ac.Experiment(method=method, seed=seed, rounds=rounds, eval_every=rounds))
    rows = ac.evaluate(fit, adapters=[ac.adapters.NoAdapt()], streams=[ac.shifts.Original()]).rows
    (last,) = (row["accuracy"] for row in rows if row["selection"] == "last")
    return 100 * float(last), 100 * float(fit.history[-1]["val_accuracy"])


def main() -> None:
    """Train every way with every seed, and write the means."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/causes/fedlc.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, method in WAYS.items():
        found = [measured(method, seed, given.rounds) for seed in given.seeds]
        rows[name] = {kind: round(fmean(pair[i] for pair in found), 1) for i, kind in enumerate(("test", "validation"))}
        print(f"{name:10s} {rows[name]}", flush=True)
    study = {"seeds": given.seeds, "rounds": given.rounds}
    body = {"study": study, "environment": environment(torch.device("cpu")), "accuracy": rows}
    write(given.out, body)


if __name__ == "__main__":
    main()
