"""DELTA's two options of Tent: off they are Tent to the bit, on they are what numpy makes of two batches."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acclimate.adapters import Tent
from acclimate.core import SGD, Adam, PureBatchNorm, Task, rng, tree
from acclimate.experiment import catalogue
from acclimate.experiment.encoding import encode
from acclimate.methods import FedAvg
from acclimate.ops.statistics import Renorm
from acclimate.ops.unlabelled import descend
from by_hand import close, entropy, slope, softmax
from support import SMALL, equal, fitted, gap, shards, task

HEAD = np.array([[3.0, -1.0, 0.5], [-0.5, 2.5, 0.2], [0.4, -0.3, 2.0]])
EPS = 1e-5


class Net(nn.Module):
    """One batch norm before the head: what the optimiser sees can be written down."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3, eps=EPS), nn.Linear(3, 3, bias=False)
        self.head.weight.data = torch.tensor(HEAD.T.copy(), dtype=torch.float32)

    def forward(self, x):
        z = self.norm(x)
        return z, self.head(z)


@pytest.fixture(scope="module")
def small():
    made = Task(Net(), (3,), 3)
    model = {"vars": tree.map(lambda v: v.double(), made.init(rng.key(0)))}
    model["vars"]["params"]["head.weight"] = torch.tensor(HEAD.T.copy())
    return made, model, lambda model, x, mode="eval", key=None: made.apply(model["vars"], x, mode, key)


BATCHES = np.random.default_rng(5).normal(size=(3, 6, 3)) * np.array([1.0, 2.0, 0.5]) + np.arange(3)[:, None, None] / 2


def by_hand(renorm, balance, frequency, lr=0.3, moving=None):
    """Three batches: logits, the affine parameters after the step, the moving statistics and the frequencies."""
    affine = np.array([[1.0] * 3, [0.0] * 3])
    for x in BATCHES:
        own = x.mean(0), np.sqrt(x.var(0) + EPS)
        moving = own if moving is None or renorm is None else moving
        unit = (x - moving[0]) / moving[1]  # the batch's own statistics cancel where only the values count

        def logits(affine, unit=unit):
            return (unit * affine[0] + affine[1]) @ HEAD

        z = logits(affine)
        weight = np.ones(len(x))
        if balance is not None:
            weight = 1 / frequency[z.argmax(-1)]
            weight = weight / weight.mean()
            frequency = balance * frequency + (1 - balance) * softmax(z).mean(0)
        affine = affine - lr * slope(lambda a, f=logits, w=weight: (w * entropy(f(a))).mean(), affine)
        if renorm is not None:
            moving = tuple(renorm * old + (1 - renorm) * now for old, now in zip(moving, own, strict=True))
        yield z, affine, moving, frequency


@pytest.mark.parametrize(("renorm", "balance"), [(0.8, None), (None, 0.7), (0.8, 0.7)])
def test_three_batches_by_hand(small, renorm, balance):
    made, model, predict = small
    adapter = Tent(opt=SGD(lr=0.3), renorm=renorm, balance=balance)
    state = adapter.init(made, model)
    for x, hand in zip(BATCHES, by_hand(renorm, balance, np.full(3, 1 / 3)), strict=True):
        logits, state = adapter.step(made, predict, model, state, torch.tensor(x), rng.key(0))
        close(logits, hand[0], 1e-6)
        close(torch.stack([state["params"]["norm.weight"], state["params"]["norm.bias"]]), hand[1], 1e-6)
        if renorm is not None:
            close(state["buffers"]["norm.running_mean"], hand[2][0], 1e-6)
            close(state["buffers"]["norm.running_var"], hand[2][1], 1e-6)  # standard deviations are averaged
        if balance is not None:
            close(state["frequency"], hand[3], 1e-6)


def test_statistics_may_start_at_the_models(small):
    made, model, predict = small
    mean, var = np.array([0.5, -1.0, 0.2]), np.array([4.0, 0.3, 1.0])
    own = {"norm.running_mean": torch.tensor(mean), "norm.running_var": torch.tensor(var)}
    trained = {"vars": {**model["vars"], "buffers": own}}
    adapter = Tent(opt=SGD(lr=0.3), renorm=0.8, start="model")
    state = adapter.init(made, trained)
    hands = by_hand(0.8, None, None, moving=(mean, np.sqrt(var + EPS)))
    for x, hand in zip(BATCHES, hands, strict=True):
        logits, state = adapter.step(made, predict, trained, state, torch.tensor(x), rng.key(0))
        close(logits, hand[0], 1e-6)
        close(state["buffers"]["norm.running_mean"], hand[2][0], 1e-6)
        close(state["buffers"]["norm.running_var"], hand[2][1], 1e-6)


def test_frequencies_may_start_at_the_clients_prior(small):
    made, model, predict = small
    prior = np.array([0.6, 0.3, 0.1])
    adapter, own = Tent(opt=SGD(lr=0.3), balance=0.7, prior="client"), {**model, "prior": torch.tensor(prior)}
    state = adapter.init(made, own)
    for x, hand in zip(BATCHES, by_hand(None, 0.7, prior), strict=True):
        _, state = adapter.step(made, predict, own, state, torch.tensor(x), rng.key(0))
        close(torch.stack([state["params"]["norm.weight"], state["params"]["norm.bias"]]), hand[1], 1e-6)
        close(state["frequency"], hand[3], 1e-6)


def test_renormed_values_carry_the_gradient_of_the_batch():
    """r and d are constants: the input's gradient is that of batch norm, times r."""
    layer = PureBatchNorm(3).double()
    layer.normaliser = Renorm(0.9)
    layer.running_mean, layer.running_var = torch.tensor([[0.3, -1.0, 0.0], [2.0, 0.5, 1.5]], dtype=torch.float64)
    x = torch.tensor(BATCHES[0], requires_grad=True)
    pull = torch.tensor(BATCHES[1])
    r = (x.var(0, correction=0) + layer.eps).sqrt().detach() / layer.running_var
    (ours,) = torch.autograd.grad((layer(x) * pull).sum(), x)
    (theirs,) = torch.autograd.grad((F.batch_norm(x, None, None, training=True, eps=layer.eps) * r * pull).sum(), x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("params", ["norm", "all"])
def test_off_it_is_tent_to_the_bit(params):
    worker, _, trained = fitted(FedAvg(work=SMALL), rounds=1)
    model, x = {"vars": trained.server["vars"]}, shards(seed=4).x
    adapter = Tent(params=params, renorm=None, balance=None)
    ours = theirs = adapter.init(worker.task, model)
    assert list(ours) == ["params", "opt"]
    for t in range(3):
        part = x[8 * t : 8 * t + 8]
        a, ours = adapter.step(worker.task, worker.predict(), model, ours, part, rng.key(t))
        b, theirs = descend(worker.predict(), model, theirs, part, Adam(lr=1e-3).update, 1)
        assert torch.equal(a, b) and equal(ours, theirs)


def test_the_first_batch_is_answered_as_tent_does():
    """Moving statistics start there; and with equal frequencies no sample counts for more."""
    worker, _, trained = fitted(FedAvg(work=SMALL), rounds=1)
    model, x = {"vars": trained.server["vars"]}, shards(seed=4).x[:8]
    found = []
    for adapter in (Tent(), catalogue.ADAPTERS["delta"]):
        start = adapter.init(worker.task, model)
        logits, state = adapter.step(worker.task, worker.predict(), model, start, x, rng.key(0))
        found.append({"l": logits, "p": state["params"]})
    assert gap(*found) < 1e-5


def test_files_of_tent_stay_as_they_are():
    assert set(encode(Tent())) == {"type", "params", "opt", "steps"}
    assert encode(catalogue.ADAPTERS["delta"])["renorm"] == 0.95


def test_refusals_and_bad_fields():
    group = task("cnn-group")
    assert Tent().refusal(group, {}) is None
    assert Tent(renorm=0.9).refusal(group, {}) == (
        "Tent with renorm needs batch norm, and this model has none; build it with norm='batch', or set renorm=None"
    )
    assert "needs prior" in Tent(balance=0.9, prior="client").refusal(group, {})
    assert "the shares of 7 classes" in Tent(balance=0.9, prior="client").refusal(group, {"prior": torch.ones(7) / 7})
    with pytest.raises(ValueError, match="prior='client' needs balance"):
        Tent(prior="client")
    with pytest.raises(ValueError, match="start='model' needs renorm"):
        Tent(start="model")
    with pytest.raises(ValueError, match="renorm=1.5"):
        Tent(renorm=1.5)
