"""Adapters that pass over a test set several times: their epochs are one loop, which is recorded once."""

from dataclasses import replace

import pytest
import torch
from torch.func import vmap

from acclimate.adapters import MBSL, SHOT
from acclimate.core import Worker, rng
from acclimate.core.loops import Stepwise, Warming, driven
from acclimate.methods import FedAvg
from support import equal, task

T = task()
WORKER = Worker(T, FedAvg())
X = rng.normal(rng.key(5), 2, 9, *T.shape).clamp(-1, 1)
REAL = torch.arange(9) < torch.tensor([[9], [7]])


class Traced(Warming):
    """Counts how often a loop's body would be recorded."""

    def __init__(self):
        self.loops = 0

    def run(self, loop):
        self.loops += 1
        super().run(loop)


def prepared(adapter):
    model = {"vars": T.init(rng.key(1))}
    predict = WORKER.predict()

    def one(x, real, key):
        return adapter.prepare(T, predict, model, adapter.init(T, model), x, real, key)

    return vmap(one)(X, REAL, rng.rows(rng.key(2), 2))


@pytest.mark.parametrize("adapter", [MBSL(batch=2, views=2), SHOT(epochs=3, batch=2)], ids=["mbsl", "shot"])
def test_epochs_are_recorded_once_and_answer_as_when_they_are_unrolled(adapter):
    plain = prepared(adapter)
    with driven(Stepwise()):
        assert equal(plain, prepared(adapter))
    assert not equal(plain, prepared(replace(adapter, epochs=adapter.epochs + 1)))
    traced = []
    for epochs in (adapter.epochs, 4 * adapter.epochs):
        with driven(driver := Traced()):
            prepared(replace(adapter, epochs=epochs))
        traced.append(driver.loops)
    assert traced[0] == traced[1]
