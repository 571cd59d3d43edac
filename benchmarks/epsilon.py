"""An empirical lower bound of epsilon: a membership test on a small model that is trained many times.

    python benchmarks/epsilon.py --trainings 1000 --out results/attack/epsilon.json

One client's update is chosen as the worst that clipping lets through. Half of the trainings are with this client, half
without; each has Poisson cohorts of a fresh key and the noise of `CentralDP`, whose own halves are what runs. The
attacker sees every round's released sum, as someone who gets every model does, and scores how much it points along the
client's update, each round by the log-likelihood ratio of a sampled Gaussian, which is the best that there is.

From the attacker's error rates, with 95 % confidence bounds (Clopper and Pearson, 1934, at 97.5 % each), follows the
least epsilon with which they agree at delta. It must lie below the epsilon that the card claims.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.func import vmap

from acclimate.core import Arrived, Mean, rng
from acclimate.core.poisson import poisson
from acclimate.filters import CentralDP
from acclimate.store import json_text, secrets, write

RULES = {"delta": Mean()}


def beta_quantile(p: float, a: int, b: int) -> float:
    """The p-quantile of a Beta(a, b) distribution of whole numbers, by bisection of a binomial tail."""
    low, high, n = 0.0, 1.0, a + b - 1
    j = torch.arange(a, n + 1, dtype=torch.float64)
    ways = math.lgamma(n + 1) - torch.lgamma(j + 1) - torch.lgamma(n - j + 1)
    for _ in range(50):
        x = (low + high) / 2
        tail = float((ways + j * math.log(x) + (n - j) * math.log1p(-x)).exp().sum())
        low, high = (x, high) if tail < p else (low, x)
    return (low + high) / 2


def at_most(hits: int, of: int, confidence: float) -> float:
    """The Clopper-Pearson upper bound of a probability."""
    return 1.0 if hits == of else beta_quantile(confidence, hits + 1, of - hits)


def at_least(hits: int, of: int, confidence: float) -> float:
    """The Clopper-Pearson lower bound of a probability."""
    return 0.0 if hits == 0 else beta_quantile(1 - confidence, hits, of - hits + 1)


def trainings_of(
    dp: CentralDP, member: bool, count: int, clients: int, cohort: int, rounds: int, data: torch.Tensor
) -> torch.Tensor:
    """What the attacker sees of many trainings of a logistic model, [trainings, rounds]: how far each release points
    along the client, in units of the clip."""
    keys, secret = [dp.cohort_key(secrets.new(), 0) for _ in range(count)], secrets.new()
    x, y = data[:, :-1], data[:, -1]
    w, seen = torch.zeros(count, x.shape[1]), []
    worst = torch.eye(x.shape[1])[0] * 1e6  # the client pulls one way with all that clipping leaves
    clip = vmap(vmap(lambda up: dp.arrive({"delta": up})["delta"]))
    for r in range(rounds):
        drawn = torch.zeros(count, clients)
        for i, key in enumerate(keys):
            drawn[i, poisson(key, clients, cohort, r)] = 1.0
        ups = (y - torch.sigmoid(w @ x.T))[:, :, None] * x
        ups[:, :, 0] = 0.0  # the others know nothing of its direction: the worst case
        ups[:, 0] = worst if member else 0.0
        total = (clip(ups) * drawn[:, :, None]).sum(1)
        arrived = Arrived(RULES, 1, cohort, cohort, secret)
        released = dp.server({"delta": total}, rng.fold(rng.key(0), r), arrived)["delta"]
        w = w + released
        seen.append(released[:, 0].double() * cohort / dp.clip)
    return torch.stack(seen, 1)


def scores_of(seen: torch.Tensor, noise: float, rate: float) -> list[float]:
    """The log-likelihood ratio of what was seen in each training, with and without the client."""
    ratio = torch.exp((seen - 0.5) / noise**2)
    return torch.log1p(rate * (ratio - 1)).sum(1).tolist()


def lower_bound(inside: list[float], outside: list[float], delta: float) -> dict[str, float]:
    """The best epsilon that the scores prove: thresholds are chosen on one half, the bound is of the other."""
    half = len(inside) // 2

    def rates(a: list[float], b: list[float], t: float) -> tuple[int, int]:
        return sum(s > t for s in a), sum(s > t for s in b)

    def proven(hits: int, alarms: int, n: int) -> float:
        tpr, fpr = at_least(hits, n, 0.975), at_most(alarms, n, 0.975)
        back = at_least(n - alarms, n, 0.975) - delta, at_most(n - hits, n, 0.975)
        return max(0.0, *(math.log(t / f) for t, f in ((tpr - delta, fpr), back) if t > 0 and f > 0))

    places = sorted(inside[:half] + outside[:half])[:: max(1, half // 10)]
    best = max(places, key=lambda t: proven(*rates(inside[:half], outside[:half], t), half))
    hits, alarms = rates(inside[half:], outside[half:], best)
    n = len(inside) - half
    found = {"threshold": best, "true_positives": hits, "false_positives": alarms, "of_each": n}
    return {"epsilon_at_least": proven(hits, alarms, n), **found}


def attack(
    trainings: int, noise: float, clients: int, cohort: int, rounds: int, delta: float, tight: bool = True
) -> dict[str, object]:
    """The whole experiment."""
    dp, g = CentralDP(clip=1.0, noise=noise, delta=delta), torch.Generator().manual_seed(0)
    x = torch.randn(clients, 5, generator=g)
    data = torch.cat([x, (x[:, 1:2] > 0).float()], 1)
    scores = {
        member: scores_of(
            trainings_of(dp, member, trainings // 2, clients, cohort, rounds, data), noise, cohort / clients
        )
        for member in (True, False)
    }
    card = dp.card(RULES, rounds, cohort, clients)
    least = CentralDP(noise=noise, delta=delta, accountant="pld")
    more = {"claimed_pld": least.card(RULES, rounds, cohort, clients)["epsilon"]} if tight else {}
    settings = {"noise": noise, "clients": clients, "cohort": cohort, "rounds": rounds, "trainings": trainings}
    return {**settings, "delta": delta, "claimed": card["epsilon"], **more} | lower_bound(
        scores[True], scores[False], delta
    )


def main() -> None:
    """Attack three settings and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("results/attack/epsilon.json"))
    given, began = parser.parse_args(), time.perf_counter()
    torch.set_num_threads(1)
    cases = [(1.0, 8, 8, 1), (1.0, 20, 5, 10), (0.6, 20, 10, 5)]
    rows = [attack(given.trainings, noise, n, cohort, rounds, 1e-5) for noise, n, cohort, rounds in cases]
    git = ["git", "rev-parse", "HEAD"]
    body = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "seconds": round(time.perf_counter() - began, 1),
        "confidence": 0.95,
        "settings": rows,
    }
    write(given.out, json_text(body, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
