"""Recurrent layers in plain tensor code: torch's own values, vmapped, differentiated twice, and packed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from acclimate.core import Task, rng
from acclimate.core.nn.calls import PureCalls
from acclimate.core.vectorised import refusal
from elsewhere import CLASSES, LENGTH, VOCABULARY, sequences

KINDS = {
    "lstm": lambda **k: nn.LSTM(5, 4, **k),
    "lstm-short": lambda **k: nn.LSTM(5, 4, proj_size=3, **k),
    "gru": lambda **k: nn.GRU(5, 4, **k),
    "tanh": lambda **k: nn.RNN(5, 4, **k),
    "relu": lambda **k: nn.RNN(5, 4, nonlinearity="relu", **k),
}
FORMS = (
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True, "bidirectional": True, "bias": False},
)


def states(net, batch):
    """A state to start from."""
    shape = (net.num_layers * (2 if net.bidirectional else 1), batch)
    h = torch.randn(*shape, net.proj_size or net.hidden_size)
    return (h, torch.randn(*shape, net.hidden_size)) if isinstance(net, nn.LSTM) else h


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_give_torchs_values_and_gradients(kind, form):
    torch.manual_seed(0)
    net, x = KINDS[kind](**form).double(), torch.randn(6, 3, 5).double()
    start = states(net, 6 if net.batch_first else 3)
    start = tuple(s.double() for s in start) if isinstance(start, tuple) else start.double()
    torchs = net(x, start)
    with PureCalls(None):
        ours = net(x, start)
    torch.testing.assert_close(ours, torchs)
    (expected, *_), (found, *_) = (
        torch.autograd.grad(out[0].square().sum(), list(net.parameters())) for out in (torchs, ours)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_end_where_they_end(kind, form):
    torch.manual_seed(0)
    net, x = KINDS[kind](**form), torch.randn(4, 6, 5)
    lengths = torch.tensor([2, 6, 1, 6])
    packed = pack_padded_sequence(x if net.batch_first else x.mT.permute(2, 0, 1), lengths, net.batch_first, False)
    torchs = net(packed)
    with PureCalls(None):
        ours = net(packed)
    torch.testing.assert_close(pad_packed_sequence(ours[0]), pad_packed_sequence(torchs[0]))
    torch.testing.assert_close(ours[1], torchs[1])


@pytest.mark.parametrize(("first", "total"), [(True, None), (False, 8)])
def test_packing_and_filling_up_are_torchs(first, total):
    torch.manual_seed(0)
    x, lengths = torch.randn(4, 6, 5, requires_grad=True), torch.tensor([2, 6, 1, 5])

    def there_and_back():
        packed = pack_padded_sequence(x if first else x.transpose(0, 1), lengths, first, enforce_sorted=False)
        return packed.data, *pad_packed_sequence(packed, first, 0.5, total)

    with PureCalls(None):
        ours = there_and_back()
    torchs = there_and_back()
    torch.testing.assert_close(ours, torchs)
    slopes = [torch.autograd.grad(out[1].square().sum(), x)[0] for out in (ours, torchs)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("make", [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda i, h: nn.RNNCell(i, h, False, "relu")])
def test_cells_give_torchs_values(make):
    torch.manual_seed(0)
    net, x = make(5, 4), torch.randn(3, 5)
    with PureCalls(None):
        ours = net(x)
    torch.testing.assert_close(ours, net(x))


class Reader(nn.Module):
    """The last outputs of a recurrent layer over the words of a text, and a linear layer."""

    def __init__(self, dropout=0.0, packed=False):
        super().__init__()
        self.table, self.packed = nn.Embedding(VOCABULARY, 6), packed
        self.rnn = nn.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout)
        self.last = nn.Linear(10, CLASSES)

    def forward(self, ids):
        x = self.table(ids)
        if self.packed:
            x = pack_padded_sequence(x, (ids != 0).sum(1).clamp(min=1), batch_first=True, enforce_sorted=False)
        h = self.rnn(x)[1][0]
        return self.last(torch.cat((h[-2], h[-1]), -1))


def test_a_recurrent_model_is_vectorised_and_has_second_derivatives():
    torch.manual_seed(0)
    net, (x, y) = Reader(), sequences(4)
    t = Task(net, (LENGTH,), CLASSES, tokens=VOCABULARY)
    v = t.init(rng.key(0))
    assert refusal(t) is None

    def slopes(p, x):
        return grad(lambda p: t.loss({**v, "params": p}, {"x": x, "y": y}, rng.key(1))[0])(p)

    both = {n: torch.stack((p, 2 * p)) for n, p in v["params"].items()}
    together = vmap(slopes)(both, torch.stack((x, x)))
    F.cross_entropy(net(x), y).backward()
    torch.testing.assert_close({n: g[0] for n, g in together.items()}, {n: p.grad for n, p in net.named_parameters()})
    logits = vmap(lambda p, x: t.apply({**v, "params": p}, x).logits)(both, torch.stack((x, x)))
    torch.testing.assert_close(logits[0], net.eval()(x))
    again = grad(lambda p: slopes(p, x)["rnn.weight_hh_l0"].square().sum())(v["params"])
    assert again["table.weight"].abs().max() > 0


def test_dropout_between_recurrent_layers_follows_the_key():
    t = Task(Reader(dropout=0.5), (LENGTH,), CLASSES, tokens=VOCABULARY)
    v, x = t.init(rng.key(0)), sequences(4)[0]
    one, same, other = (t.apply(v, x, "train", rng.key(k)).logits for k in (1, 1, 2))
    assert torch.equal(one, same) and not torch.allclose(one, other)
    torch.testing.assert_close(t.apply(v, x, "eval").logits, t.module(v)(x)[1])


def test_a_model_that_packs_its_texts_trains_one_client_at_a_time():
    torch.manual_seed(0)
    net, (x, y) = Reader(packed=True), sequences(6)
    t = Task(net, (LENGTH,), CLASSES, tokens=VOCABULARY)
    assert "cannot be vectorised over clients, because of `" in refusal(t)
    v = t.init(rng.key(0))
    ours = grad(lambda p: t.loss({**v, "params": p}, {"x": x, "y": y}, rng.key(1))[0])(v["params"])
    F.cross_entropy(net(x), y).backward()
    torch.testing.assert_close(ours, {n: p.grad for n, p in net.named_parameters()})
