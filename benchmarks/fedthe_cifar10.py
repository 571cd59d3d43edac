"""FedTHE's Table 1 setting on CIFAR-10: 20 clients, the CNN without biases, 100 rounds of 5 epochs, BRFL's streams.

    ACCLIMATE_DATA=... python benchmarks/fedthe_cifar10.py --alpha 0.1 --rows fedavg fedthe --out table1.json

A row is trained once and tested with every adapter that belongs to it. The natural stream joins where CIFAR-10.1 is.
Results are written after every row, so that what was finished is kept.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import acclimate as ac
from acclimate import adapters, methods, personal
from acclimate.core.adapter import Adapter
from acclimate.core.local import Work
from acclimate.core.method import Method
from acclimate.core.optim import SGD
from acclimate.core.personal import Personalizer
from acclimate.ops.augment import FlipCrop
from acclimate.store import environment

RATE = SGD(lr=0.01, weight_decay=5e-4)
ONE = Work(epochs=1)
TUNE = personal.FineTune(opt=RATE, work=ONE)
NONE, CHUNK = adapters.NoAdapt(), 32
Tests = list[tuple[Personalizer | None, list[Adapter]]]
ROWS: dict[str, tuple[Method, Tests]] = {
    "local": (methods.Local(opt=RATE), [(None, [NONE])]),
    "fedavg": (
        methods.FedAvg(opt=RATE),
        [
            (None, [NONE, adapters.MEMO(chunk=CHUNK), adapters.T3A()]),
            (TUNE, [NONE, adapters.MEMO(chunk=CHUNK), adapters.T3A()]),
            (personal.Memory(), [adapters.KNNPer()]),
        ],
    ),
    "gma": (methods.GMA(opt=RATE), [(TUNE, [NONE])]),
    "apfl": (methods.APFL(opt=RATE), [(None, [NONE])]),
    "fedrep": (methods.FedRep(opt=RATE, work=Work(), head_work=Work()), [(None, [NONE])]),
    "ditto": (methods.Ditto(opt=SGD(lr=0.01), personal_work=ONE), [(None, [NONE])]),
    "fedrod": (methods.FedRoD(opt=RATE), [(None, [NONE])]),
    "fedttt": (methods.FedTTT(opt=RATE), [(None, [adapters.TTT(online=False, chunk=CHUNK)])]),
    "fedthe": (methods.FedTHE(), [(None, [NONE, adapters.THE(), adapters.TSA(), adapters.THEPlus(chunk=CHUNK)])]),
}


def streams() -> tuple[Any, ...]:
    """BRFL's streams, the natural one where its files are there."""
    try:
        ac.data.CIFAR10_1().load()
    except FileNotFoundError:
        return ac.shifts.brfl()
    return ac.shifts.brfl(ac.data.CIFAR10_1())


def row(name: str, alpha: float, seed: int, rounds: int) -> dict[str, Any]:
    """Train one method and test it in all its ways."""
    method, tests = ROWS[name]
    data = ac.data.CIFAR10(clients=20, partition=ac.data.Dirichlet(alpha), augment=FlipCrop())
    model = ac.models.CNN(bias=False)
    e = ac.Experiment(data, model, method, streams=streams(), rounds=rounds, seed=seed, eval_every=rounds)
    began = time.perf_counter()
    fit = ac.train(e)
    trained = time.perf_counter()
    table, seconds = [], {}
    for tuned, served in tests:
        for adapter in served:
            start = time.perf_counter()
            found = ac.evaluate(fit, adapters=[adapter], personal=tuned)
            seconds[f"{type(tuned).__name__}/{type(adapter).__name__}"] = round(time.perf_counter() - start, 2)
            table += [r for r in found.rows if r["selection"] == "last"]
            cells = " ".join(f"{r['stream']} {r['accuracy']:.1%}" for r in found.rows if r["selection"] == "last")
            print(f"{name:8s} {type(tuned).__name__:9s} {type(adapter).__name__:8s} {cells}", flush=True)
    return {
        "row": name,
        "alpha": alpha,
        "seed": seed,
        "rounds": rounds,
        "train_seconds": round(trained - began, 1),
        "round_seconds_median": round(sorted(fit.seconds)[len(fit.seconds) // 2], 4),
        "test_seconds": seconds,
        "method": repr(method),
        "data": fit.world.card()["splits"]["train"]["hash"],
        "table": [{k: v for k, v in r.items() if k != "per_client"} for r in table],
    }


def main() -> None:
    """Run the rows asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    body: dict[str, Any] = {"environment": environment(device), "rows": []}
    for name in args.rows:
        body["rows"].append(row(name, args.alpha, args.seed, args.rounds))
        last = body["rows"][-1]
        print(f"{name}: {last['train_seconds']} s to train, tests {last['test_seconds']}", flush=True)
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
