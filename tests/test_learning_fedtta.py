"""What FedTTA claims, on the embedded world: new clients with at most two classes each, means over three seeds.

Rates were chosen on the training clients' validation data (seed 0): FedAvg from 0.1 and 0.3, FedTTA's inner, outer and
adaptation rates from (0.1, 0.5) x (0.1, 0.3) x (0.01, 0.1).
"""

import pytest

import acclimate as ac
from acclimate.adapters import NoAdapt
from acclimate.adapters.fedtta import FedTTA as Adapt
from acclimate.core import SGD
from acclimate.methods.fedtta import FedTTA
from support import SEEDS

WORK = ac.Work(iterations=10, batch=32, clip=10.0)
FEDTTA = FedTTA(inner_lr=0.1, opt=SGD(lr=0.1), net_opt=SGD(lr=0.01), work=WORK)
MANY, STOPPED = Adapt(steps=50), Adapt(steps=50, patience=1)


def accuracies(method, seed, *adapters):
    data = ac.data.Digits(clients=20, new_clients=20, partition=ac.data.Pathological(), split=(0.85, 0.15, 0.0))
    e = ac.Experiment(data, ac.models.MLP(hidden=(64,)), method, rounds=40, seed=seed, eval_every=40)
    table = ac.evaluate(ac.train(e), adapters=adapters, streams=[ac.shifts.NewClients(batch=64)])
    return [r["accuracy"] for r in table.rows if r["selection"] == "last"]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_new_clients_gain_from_the_learned_loss_and_early_stopping_averts_collapse(seeds):
    rows = []
    for seed in seeds:
        fedavg = accuracies(ac.methods.FedAvg(opt=SGD(lr=0.1), work=WORK, weights="uniform"), seed, NoAdapt())
        rows.append(fedavg + accuracies(FEDTTA, seed, Adapt(), MANY, STOPPED))
    fedavg, one_step, many, stopped = (sum(column) / len(seeds) for column in zip(*rows, strict=True))
    assert one_step > fedavg
    assert many < fedavg  # fifty steps at the rate of one lead astray
    assert stopped > many + 0.1
