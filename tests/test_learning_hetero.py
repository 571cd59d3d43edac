"""What sharing logits is for, on the embedded world: newcomers of any architecture learn without a label.

Three sizes of perceptron, a third of the digits public. Rates and thresholds were tried by hand.
"""

import pytest

import acclimate as ac
from acclimate.adapters import NoAdapt
from acclimate.adapters.fedtta import FedTTA as Adapt
from acclimate.core import SGD
from acclimate.methods.heterofedtta import HeteroFedTTA

pytestmark = pytest.mark.slow
WORK = ac.Work(iterations=10, batch=16, clip=10.0)
FEDMD = HeteroFedTTA(lam=0.0, inner_lr=0.0, opt=SGD(lr=0.1), work=WORK, digest_batch=64, join_epochs=10)
HETERO = HeteroFedTTA(inner_lr=0.1, opt=SGD(lr=0.1), net_opt=SGD(lr=0.01), work=WORK, digest_batch=64, join_epochs=10)
SIZES = ac.models.Mixed(tuple(ac.models.MLP(hidden=(h,)) for h in (16, 32, 64)), assign="turns")
DATA = ac.data.Public(
    share=0.3, clients=6, new_clients=6, partition=ac.data.Dirichlet(alpha=0.3), split=(0.85, 0.15, 0.0)
)


def accuracies(method, adapter, rounds=6):
    e = ac.Experiment(DATA, SIZES, method, rounds=rounds, eval_every=rounds, backend=ac.backends.Vmap())
    table = ac.evaluate(ac.train(e), adapters=[adapter], streams=[ac.shifts.NewClients(batch=64)])
    return next(r for r in table.rows if r["selection"] == "last")


def test_newcomers_learn_from_the_ensemble_and_the_ensemble_from_its_members():
    alone = accuracies(HeteroFedTTA(**{**vars(FEDMD), "digest_epochs": 0}), NoAdapt())
    together, hetero = accuracies(FEDMD, NoAdapt()), accuracies(HETERO, Adapt())
    assert together["accuracy"] > alone["accuracy"] + 0.08  # what clients digest makes them better teachers
    assert hetero["accuracy"] > 0.4  # ten classes
    for row in (together, hetero):
        by_size = [sum(row["per_client"][k::3]) / 2 for k in range(3)]
        assert min(by_size) > 0.25
