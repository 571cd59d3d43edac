"""Modules as people have them that cannot be used as they are: refused before training, with what helps."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from acclimate.core import Task, rng
from elsewhere import CLASSES, VOCABULARY, Encoder


class Plain(nn.Module):
    def __init__(self, head=None):
        super().__init__()
        self.body, self.out = nn.Linear(6, 5), head or nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.out(self.body(x).relu())


class Scores(Plain):
    def forward(self, x):
        return {"scores": super().forward(x)}


class Parts(Plain):
    """Gives no logits, as BertModel does."""

    def forward(self, x):
        return {"hidden": self.body(x), "pooled": self.body(x).tanh()}


class Phased(Plain):
    """Another form of output in each mode, as networks with auxiliary losses have it."""

    def __init__(self, more_when):
        super().__init__()
        self.more_when = more_when

    def forward(self, x):
        logits = super().forward(x)
        return (x, logits) if self.training is self.more_when else logits


class Warmed(Plain):
    """A factor that is learned, and 1 at first."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return super().forward(x) * self.factor


class Keeps(Plain):
    def forward(self, x):
        self.kept = self.body(x)
        return self.out(self.kept.relu())


def used(module):
    """The module after it was called, as in a notebook."""
    module(torch.zeros(2, 6))
    return module


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (used(Keeps()), r"model Keeps cannot be copied \(Only Tensors created .*weight_norm, or give a function"),
        (nn.Sequential(nn.LazyLinear(5), nn.Linear(5, CLASSES)), "'0.weight' of a lazy layer has no size yet; call"),
        (lambda shape, classes: nn.Sequential(nn.LazyLinear(classes)), "'0.weight' of a lazy layer has no size yet"),
        (Plain(parametrizations.weight_norm(nn.Linear(5, CLASSES))), "its head 'out' makes its weight of other param"),
        (Plain().double(), r"its weights are torch.float64 \('body.weight'\), .* give module.float\(\)"),
        (Plain().bfloat16(), "its weights are torch.bfloat16"),
        (Scores(), "returns a dict without them, but 'scores': call 'scores' 'logits'"),
        (Parts(), "a dict without them, but 'hidden', 'pooled': add a linear layer for the classes behind them"),
        (Phased(True), "model Phased returns a tuple while it trains that does not have the logits where they are oth"),
        (Warmed(), "its logits are not what 'out' makes of one vector"),
        (nn.Sequential(nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES)), "its logits are not what '0' makes of one"),
        (nn.Sequential(nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES, affine=False)), "not what '0' makes of one"),
    ],
)
def test_what_a_module_lacks_is_said_before_training(model, says):
    with pytest.raises(ValueError, match=says):
        Task(model, (6,), CLASSES)


def test_half_precision_is_refused_where_ids_enter_too():
    with pytest.raises(ValueError, match=r"model Encoder: its weights are torch.float16 \('table.weight'\)"):
        Task(Encoder().half(), (9,), CLASSES, tokens=VOCABULARY)


def test_frozen_weights_of_another_precision_and_lazy_layers_that_have_met_an_input_are_taken():
    class Mixed(Plain):
        def forward(self, x):
            return self.out(self.body(x.double()).float().relu())

    net = Mixed()
    net.body.double().requires_grad_(False)
    lazy = used(nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(CLASSES)))
    x = torch.randn(3, 6)
    for module, params in ((net, 2), (lazy, 4)):
        task = Task(module, (6,), CLASSES)
        assert len(task.params) == params
        torch.testing.assert_close(task.apply(task.init(rng.key(0)), x).logits, module(x))


def test_what_follows_the_head_and_always_leaves_its_outputs_is_taken():
    net = nn.Sequential(nn.Linear(6, CLASSES), nn.Dropout(0.5), nn.Unflatten(1, (CLASSES, 1)), nn.Flatten())
    task, x = Task(net, (6,), CLASSES), torch.randn(3, 6)
    torch.testing.assert_close(task.apply(task.init(rng.key(0)), x).logits, net[0](x))


class Strict(Plain):
    """Takes float32 alone, and gives another tensor than its head does."""

    def forward(self, x):
        assert x.dtype == torch.float32
        return super().forward(x) + 0.0


def test_a_module_that_takes_float32_alone_is_read():
    net, x = Strict(), torch.randn(3, 6)
    task = Task(net, (6,), CLASSES)
    torch.testing.assert_close(task.apply(task.init(rng.key(0)), x).logits, net(x))
