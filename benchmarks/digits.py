"""Why cells of FedICON's Table 1 differ, domain by domain: tests of what the paper does not say about its test images.

Local and FedAvg are trained as `fedicon/table1` has them (ten images per class and client). Every client's model then
answers the test images of every domain, plain, corrupted at 32 pixels (as the recipe does), and corrupted at 16 pixels
and enlarged afterwards: USPS is a set of 16-pixel images, and the paper does not say what comes first. With seed 0
also under every kind of corruption by itself, as if a client's test set had one kind.

    python benchmarks/digits.py [--seeds 3] [--rounds 100] [--device cuda] [--out results/causes/digits.json]

Percent, mean over seeds, by method and test: rows are clients, columns the domains that they answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import environment, parser_of, write
from torch import Tensor

import acclimate as ac
from acclimate.core import rng
from acclimate.ops.devices import device_of
from acclimate.recipes.fedicon import TEN, line
from acclimate.running.build import Fit
from acclimate.shifts.base import choice, frost
from acclimate.shifts.corruptions import COMMON, corrupt, corrupt_each

METHODS = ("local", "fedavg")
DOMAINS = ("mnist", "svhn", "usps", "mnistm")


def trained(name: str, seed: int, rounds: int, device: str) -> Fit:
    """A row of the recipe, on the domains that are here."""
    data = TEN.federation("paper", only=("MNIST", "SVHN", "USPS", "MNIST-M"))
    method = line(name, "paper", mirrored=False)[0].method.record
    made = ac.Experiment(data, ac.models.CNN(), method, rounds=rounds, eval_every=rounds, seed=seed, device=device)
    return ac.train(made)


def sized(x: Tensor, side: int) -> Tensor:
    """uint8 images at another size."""
    small = F.interpolate(x.float(), (side, side), mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8)


def ways(x: Tensor, seed: int) -> dict[str, Tensor]:
    """The test images as they are, and under one corruption each, before and after they were enlarged."""
    keys = rng.rows(rng.fold(rng.key(seed), "image"), len(x)).to(x.device)
    kinds = choice(rng.rows(rng.fold(rng.key(seed), "kind"), len(x)).to(x.device), len(COMMON))
    ice = frost().textures
    at = {side: corrupt_each(sized(x, side), kinds, 5, keys, frost=ice) for side in (32, 16)}
    single = {kind: corrupt(x, kind, 5, keys, frost=ice if kind == "frost" else None) for kind in COMMON}
    return {"plain": x, "corrupted at 32": at[32], "corrupted at 16": sized(at[16], 32)} | (single if seed == 0 else {})


@torch.no_grad()
def answered(fit: Fit, seed: int) -> dict[str, list[list[float]]]:
    """By way: the accuracy of every client's model (rows) on every domain's test images (columns)."""
    examples, device, out = fit.world.examples, fit.engine.device, dict[str, list[list[float]]]()
    modules = [fit.module(c).to(device) for c in range(fit.world.clients)]
    for rows in fit.world.test:
        y = examples.y[rows].to(device)
        for way, images in ways(examples.x[rows].to(device), seed).items():
            hits = [float((m(images).argmax(-1) == y).double().mean()) for m in modules]
            out.setdefault(way, []).append(hits)
    return {way: torch.tensor(columns).T.tolist() for way, columns in out.items()}


def main() -> None:
    """Train, test, and write the matrices."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/causes/digits.json"))
    given = parser.parse_args()
    found: dict[str, dict[str, list[list[float]]]] = {}
    for name in METHODS:
        each = [answered(trained(name, seed, given.rounds, given.device), seed) for seed in range(given.seeds)]
        mean = {way: 100.0 * torch.tensor([e[way] for e in each if way in e]).mean(0) for way in each[0]}
        found[name] = {way: [[round(v, 2) for v in row] for row in m.tolist()] for way, m in mean.items()}
        print(name, json.dumps(found[name]), flush=True)
    study = {"domains": DOMAINS, "seeds": given.seeds, "rounds": given.rounds, "severity": 5, "frost": frost().source}
    made = environment(device_of(given.device))
    write(given.out, {"study": study, "environment": made, "accuracy": found})


if __name__ == "__main__":
    main()
