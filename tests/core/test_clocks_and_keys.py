"""Clocks, keys and statistics that a small error would leave unnoticed, by value."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from acclimate.core import SGD, Adam, AdamW, Adapter, Protocol, Work, rng, stream
from acclimate.core.local import train
from acclimate.core.nn.layers import purify
from acclimate.core.optim import Cosine, StepDecay
from support import client_data, shards, task


@dataclass(frozen=True)
class Keyed(Adapter):
    """Answers every sample with its own key, as small numbers."""

    def step(self, task, predict, model, state, x, key):
        keys = rng.rows(key, x.shape[0])
        return torch.stack([(keys >> s) & 0xFFFF for s in (0, 16, 32)], -1).to(torch.float32), state


@pytest.mark.parametrize("batch", [1, 4, 8, 32])
def test_a_sample_has_the_same_key_whatever_the_batch_size_and_no_other_has_it(batch):
    data, t = client_data(shards(), 1), task("cnn-plain")
    served = stream.run(t, None, Keyed(), {}, data, Protocol(batch=batch), rng.key(6)).logits
    keys = rng.rows(rng.fold(rng.key(6), "samples"), 24)
    want = torch.stack([(keys >> s) & 0xFFFF for s in (0, 16, 32)], -1).to(torch.float32)
    assert torch.equal(served, want) and len({tuple(r) for r in served.tolist()}) == 24


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 2)])
def test_running_variances_are_unbiased_and_what_normalises_is_not(shape):
    x = torch.arange(float(np.prod(shape))).reshape(shape) ** 1.5
    layer = nn.BatchNorm1d(2, momentum=0.25)
    purify(layer)
    out = layer(x)
    axes = tuple(d for d in range(len(shape)) if d != 1)
    values = x.double().numpy()
    mean, var = values.mean(axes, keepdims=True), values.var(axes, keepdims=True)
    np.testing.assert_allclose(out.detach(), (values - mean) / np.sqrt(var + 1e-5), atol=1e-4)
    np.testing.assert_allclose(layer.running_mean, 0.25 * mean.ravel(), rtol=1e-5)
    np.testing.assert_allclose(layer.running_var, 0.75 + 0.25 * values.var(axes, ddof=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (StepDecay(per="step", every=1, gamma=0.5), (1.0, 0.5, 0.25)),
        (StepDecay(per="step", every=2, gamma=0.5), (1.0, 1.0, 0.5)),
        (StepDecay(per="round", every=1, gamma=0.5), (0.25, 0.25, 0.25)),
        (Cosine(per="step", total=4), (1.0, 0.5 + 0.5**1.5, 0.5)),
    ],
)
def test_training_follows_the_schedule_step_by_step_or_round_by_round(schedule, rates):
    """The loss is linear, so every step walks its rate; the client is in its third round."""
    own = client_data(shards(), 1, round=2)
    seen = []

    def loss(vars, batch, key):
        seen.append(int(key))
        return vars["params"]["w"].sum(), {}

    vars = {"params": {"w": torch.zeros(1)}, "buffers": {}}
    new = train(loss, vars, own, SGD(lr=1.0, schedule=schedule), Work(iterations=3, batch=8), rng.key(0))
    assert new["params"]["w"].item() == pytest.approx(-sum(rates))
    assert len(set(seen)) == 3  # and every step has a key of its own


@pytest.mark.parametrize("record", [Adam, AdamW])
def test_a_scaled_step_of_adam_is_one_at_the_scaled_rate_decay_included(record):
    opt = record(lr=0.1, weight_decay=0.3, b1=0.8, b2=0.95, eps=1e-3)
    twin = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
    theirs = getattr(torch.optim, record.__name__)([twin], lr=0.1, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-3)
    params = {"w": twin.detach().clone()}
    state = opt.init(params)
    for scale in (1.0, 0.5, 0.1):
        theirs.param_groups[0]["lr"] = 0.1 * scale
        twin.grad = torch.tensor([0.3, 4.0])
        theirs.step()
        params, state = opt.update({"w": twin.grad}, state, params, scale)
        torch.testing.assert_close(params["w"], twin.detach(), rtol=1e-5, atol=1e-6)
    bare = replace(opt, weight_decay=0.0)
    assert not torch.equal(bare.update({"w": twin.grad}, bare.init(params), params)[0]["w"], params["w"])
