"""Adapters with memories, teachers and restarts: clients side by side do as each does alone, batch after batch."""

import pytest
import torch
from torch.func import vmap

from acclimate.adapters import LAME, NOTE, ROID, SAR, CoTTA, DeYO, RoTTA, Tent
from acclimate.core import SGD, Task, rng, tree
from acclimate.models import CNN
from support import CLASSES, gap, images

CASES = {
    "lame": LAME(affinity="rbf", window=6, steps=20),
    "sar": SAR(opt=SGD(lr=0.05, momentum=0.9), margin=0.95, reset_below=0.8),
    "cotta": CoTTA(opt=SGD(lr=0.05), views=2, restore=0.2),
    "rotta": RoTTA(capacity=6, every=3, opt=SGD(lr=0.05), prior="client"),
    "note": NOTE(capacity=6, every=3, opt=SGD(lr=0.05), prior="client"),
    "roid": ROID(opt=SGD(lr=0.05), prior="client", variant="released"),
    "delta": Tent(opt=SGD(lr=0.05), renorm=0.9, start="model", balance=0.9, prior="client"),
    "deyo": DeYO(opt=SGD(lr=0.05), margin=1.0, least=-1.0, patches=2, variant="released"),
}


@pytest.mark.parametrize("name", CASES)
def test_clients_side_by_side_do_as_each_alone(name):
    adapter = CASES[name]
    t = Task(CNN(widths=(3, 4), hidden=8, kernel=3, norm="iabn"), (3, 10, 10), CLASSES)

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode)

    def serve(model, x, key):
        state, out = adapter.init(t, model), []
        for at in range(0, 8, 4):
            logits, state = adapter.step(t, predict, model, state, x[at : at + 4], rng.advance(key, at))
            out.append(logits)
        return torch.cat(out), state

    priors = torch.tensor([[0.6, 0.2, 0.1, 0.05, 0.05], [0.1, 0.1, 0.1, 0.1, 0.6]])
    models = [{"vars": t.init(rng.key(i)), "prior": priors[i]} for i in range(2)]
    x, keys = images(16)[0].view(2, 8, 3, 10, 10), rng.rows(rng.key(3), 2)
    assert all(adapter.refusal(t, m) is None for m in models)
    together = vmap(serve)(tree.stack(models), x, keys)
    for i in range(2):
        logits, state = serve(models[i], x[i], keys[i])
        assert gap(together[0][i], logits) < 1e-4 and logits.isfinite().all()
        assert gap(tree.take(together[1], i), state) < 1e-4
