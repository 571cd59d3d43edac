"""FLUTE's row FEMNIST: 3,400 writers, 10 per round, 1,500 rounds, one epoch in batches of 20, rate 0.1.

Synthetic 28 x 28 grey images of 62 classes. Writers hold between 19 and 465 images, 197 on average, as in FEMNIST.
The network is FedML's CNN with dropout, which is pfl-research's with 62 classes.
"""

from __future__ import annotations

import torch
from federated import Round, central_accuracy, dealt, images, measure, task_of, train, with_rates
from harness import Context, Record

from acclimate.core import SGD, Work, fit
from acclimate.methods import FedAvg

from .pfl import TwoConv
from .uneven import padding

SHAPE, CLASSES = (1, 28, 28), 62
PEER = (8 * 60 + 22) / 1500
"""Seconds per round of FLUTE's README, on hardware of its own, tests included."""


def sizes(writers: int, low: int = 19, high: int = 465, mean: float = 197.0) -> list[int]:
    """How many images each writer holds: normal, cut at both ends."""
    draws = torch.randn(writers, generator=torch.Generator().manual_seed(0)) * 76.0 + mean
    return [int(n) for n in draws.round().clamp(low, high)]


def flute(context: Context, ceilings: Record) -> Record:
    """One round the plain way and ours, then training with a test every 50 rounds."""
    size = context.sized(
        full={"writers": 3400, "cohort": 10, "test": 10_000, "rounds": 300, "model": TwoConv(), "divide": 1},
        quick={"writers": 40, "cohort": 4, "test": 200, "rounds": 4, "model": TwoConv(), "divide": 4},
        smoke={"writers": 6, "cohort": 3, "test": 20, "rounds": 2, "model": TwoConv((2, 3), 8), "divide": 8},
    )
    held = [max(n // size["divide"], 2) for n in sizes(size["writers"])]
    data = dealt(held, SHAPE, CLASSES).to(context.device)
    task = task_of(size["model"], SHAPE, CLASSES)
    whole = Round.of(task, FedAvg(opt=SGD(lr=0.1), work=Work(epochs=1, batch=20)), data)
    schedule = fit.RoundPlan(context.rounds or size["rounds"], size["writers"], size["cohort"], eval_every=50)
    one = Round(whole.worker, data, fit.sample(whole.worker, schedule, 0))
    record = with_rates(measure(one, context, size["cohort"]), ceilings)
    test = images(size["test"], SHAPE, CLASSES, seed=1)
    run = train(whole, context, schedule, central_accuracy(task, test, context.device))
    settings = {"writers": size["writers"], "cohort": size["cohort"], "batch": 20, "epochs": 1, "data": "synthetic"}
    cohorts = [fit.sample(whole.worker, schedule, r) for r in range(20)]
    found = {"settings": settings, **record, "run": run, "padding": padding(whole, context, cohorts)}
    peer = {"seconds_per_round": PEER, "times_faster": PEER / run["seconds_per_round"]["mean"]}
    return found | ({"flute_readme": peer} if context.scale == "full" else {})
