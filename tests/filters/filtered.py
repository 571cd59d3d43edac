"""A small federation with message filters."""

import torch

from acclimate.core import Work, Worker, fit
from support import BACKENDS, shards, small, task


def trained(method, filters, backend="serial", rounds=2, cohort=5):
    """The state after little training of a small model on six clients."""
    worker, data = Worker(task("mlp-dropout"), small(method, Work(epochs=1, batch=8)), tuple(filters)), shards()
    assert worker.refusal() is None
    engine = BACKENDS[backend].open(worker, data, torch.device("cpu"))
    schedule, state = fit.RoundPlan(rounds, data.clients, cohort, eval_every=rounds), fit.start(worker, engine, 6)
    for state in fit.rounds(worker, engine, schedule, shards((5, 9, 6, 0, 8, 7), seed=1), state):
        pass
    return state
