"""What a pre-trained trunk brings: LoRA, local LoRAs and prompts on a ViT, beside training all of it.

No published weights of a ViT can be had without a download, so a small one is trained first, on half of CIFAR-10 (every
second example), in one place. The other half is federated: 20 clients, label skew of Dirichlet 0.1 as in BRFL. Clients
see no example that the trunk was trained on. A row is one way to use the trunk and one seed: accuracy on BRFL's streams
after the last round and after the round that validation data select, bytes that a client uploads in a round, seconds.

    python benchmarks/foundation.py [--rows lora,feddpa] [--seeds 0,1,2] [--epochs 60] [--rounds 20] [--device cuda]

The trunk is kept in the folder --trunk. It and rows that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from harness import environment, integers, kept, parser_of
from safetensors.torch import save_file

import acclimate as ac
from acclimate.core import Adam, Work
from acclimate.core.optim import Cosine
from acclimate.experiment import catalogue
from acclimate.models.checkpoints import digest
from acclimate.ops.augment import FlipCrop
from acclimate.ops.devices import device_of
from methods import Row, row_of, save, table

STREAMS = "original,corrupted,out-of-client,mixture"
PAIRED = ("qkv", "proj")
ROWS: dict[str, tuple[str, str, str, str]] = {
    "full": ("trunk", "fedavg", "none", "none"),
    "full, from scratch": ("scratch", "fedavg", "none", "none"),
    "lora": ("lora", "fedavg", "none", "none"),
    "lora+finetune": ("lora", "fedavg", "finetune", "none"),
    "lora, alone": ("lora", "local", "none", "none"),
    "prompts": ("prompts", "fedavg", "none", "none"),
    "feddpa": ("two", "feddpa", "none", "none"),
    "feddpa, weighed": ("two", "feddpa", "none", "dpa"),
    "feddpa-the": ("two", "feddpa-the", "none", "none"),
    "feddpa-the, weighed": ("two", "feddpa-the", "none", "the-lora"),
    "fedpcl on lora": ("lora", "fedpcl", "none", "none"),
}
"""Model, method, personaliser and adapter of every row. Rows that differ in the adapter share a training."""


def shape_of(given: argparse.Namespace) -> dict[str, Any]:
    """The fields of the ViT."""
    return {"patch": given.patch, "width": given.width, "depth": given.depth, "heads": 4}


def half(given: argparse.Namespace, first: int, **settings: Any) -> ac.data.InMemory:
    """Every second example, from the first or the second on, as a data set of its own."""
    source = ac.data.Digits() if given.data == "digits" else ac.data.CIFAR10()
    found = source.load()
    return ac.data.of(
        found.x[first::2],
        found.y[first::2],
        classes=found.classes,
        mean=source.mean,
        std=source.std,
        **settings,
    )


def trunk(given: argparse.Namespace) -> tuple[Path, Row]:
    """The file of the trained trunk, and what is known of its training."""
    file, about = given.trunk / "vit.safetensors", given.trunk / "about.json"
    wanted = {"data": given.data, "epochs": given.epochs, **shape_of(given)}
    if file.exists() and about.exists() and (known := json.loads(about.read_text()))["trained"] == wanted:
        return file, known
    data = half(given, 0, clients=1, partition=ac.data.IID(), split=(0.9, 0.1, 0.0), augment=FlipCrop())
    steps = given.epochs * (len(data.load().y) * 9 // 10 // 128)
    run = ac.Experiment(
        data=data,
        model=ac.models.ViT(**shape_of(given)),
        method=ac.methods.FedAvg(
            opt=Adam(lr=1e-3, schedule=Cosine(per="step", total=steps)), work=Work(epochs=given.epochs, batch=128)
        ),
        rounds=1,
        eval_every=1,
        device=given.device,
    )
    began = time.perf_counter()
    fit = ac.train(run)
    given.trunk.mkdir(parents=True, exist_ok=True)
    weights = {n: p.cpu().contiguous() for n, p in fit.model(0)["vars"]["params"].items()}
    save_file(weights, file)
    known = {
        "trained": wanted,
        "val_accuracy": round(100 * float(fit.history[-1]["val_accuracy"]), 3),
        "seconds": round(time.perf_counter() - began, 1),
        "digest": digest(str(file)),
    }
    about.write_text(json.dumps(known))
    fit.engine.close()
    return file, known


def measured(names: list[str], weights: Path, given: argparse.Namespace, seed: int) -> dict[str, Row]:
    """Rows that share a training."""
    kind, method, personal, _ = ROWS[names[0]]
    base = ac.models.ViT(**shape_of(given), weights=str(weights))
    models = {
        "trunk": base,
        "scratch": ac.models.ViT(**shape_of(given)),
        "lora": ac.models.LoRA(base, rank=4, targets=PAIRED),
        "two": ac.models.LoRA(base, rank=4, targets=PAIRED, private=4),
        "prompts": ac.models.Prompts(base, count=8),
    }
    run = ac.Experiment(
        data=half(given, 1, clients=given.clients, partition=ac.data.Dirichlet(0.1, sizes="brfl")),
        model=models[kind],
        method=catalogue.METHODS[method],
        personal=catalogue.PERSONALS[personal],
        rounds=given.rounds,
        eval_every=max(given.rounds // 10, 1),
        seed=seed,
        device=given.device,
    )
    began = time.perf_counter()
    fit = ac.train(run)
    seconds = time.perf_counter() - began
    streams = [catalogue.STREAMS[s] for s in given.streams.split(",")]
    found = {}
    for name in names:
        rows = ac.evaluate(fit, adapters=[catalogue.ADAPTERS[ROWS[name][3]]], streams=streams).rows
        found[f"{name} {seed}"] = {"method": name, "seed": seed, **row_of(rows, seconds)}
    fit.engine.close()
    return found


def main() -> None:
    """Train and measure what is missing, write after each training, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", choices=("digits", "cifar10"), default="cifar10")
    parser.add_argument("--rows", default=",".join(n.replace(", ", "/") for n in ROWS), help="with / for a comma")
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=60, help="of the trunk's own training")
    parser.add_argument("--patch", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--streams", default=STREAMS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trunk", type=Path, default=Path("build/trunk"))
    parser.add_argument("--out", type=Path, default=Path("results/methods/foundation.json"))
    given = parser.parse_args()
    weights, known = trunk(given)
    study = {"data": given.data, "clients": given.clients, "rounds": given.rounds, "alpha": 0.1, "trunk": known}
    rows: dict[str, Row] = kept(given.out, study)
    asked = [n.replace("/", ", ") for n in given.rows.split(",")]
    for seed in given.seeds:
        for first in asked:
            if f"{first} {seed}" in rows:
                continue
            alike = [n for n in asked if ROWS[n][:3] == ROWS[first][:3]]
            rows |= measured(alike, weights, given, seed)
            save(given.out, study, environment(device_of(given.device)), rows)
            for name in alike:
                row = rows[f"{name} {seed}"]
                print(f"{name:20s} {seed} {row['accuracy'].get('last')} {row['seconds']} s", flush=True)
            torch.cuda.empty_cache()
    print("\n" + table(rows, given.streams.split(",")))


if __name__ == "__main__":
    main()
