"""FedTSA: the attention against plain modules and loops, and batches that are answered with what arrived with them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acclimate.adapters import BNStats, FedTSA
from acclimate.backends import Serial
from acclimate.core import Adam, Protocol, Worker, rng, stream
from acclimate.methods import FedAvg
from acclimate.ops import attending
from acclimate.ops.statistics import Noted
from acclimate.personal import NoPersonal
from support import gap, shards, small, task

KEY = rng.key(0)
CPU = torch.device("cpu")


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def most(chances, among, share, key):
    """In the place of chance: those with the largest chances."""
    width = among.shape[-1] * among.shape[-2]
    out = torch.zeros(among.numel() // width, width, dtype=torch.bool)
    for taken, row, allowed in zip(out, chances.reshape(-1, width), among.reshape(-1, width), strict=True):
        best = torch.where(allowed, row, -1.0).argsort(descending=True)
        taken[best[: int(int(allowed.sum()) * share + 1e-4)]] = True
    return out.view_as(among)


def by_modules(x, steps, rate, robust):
    """The attention as modules of torch, trained by torch's Adam; thinned by the largest chances."""
    n, t, d = x.shape
    layers = [nn.Linear(d, d) for _ in range(4)]
    for layer in layers:
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    opt = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=rate)

    def forward(over_time, over_clients):
        time = torch.stack([(layers[0](x[i]) @ layers[1](x[i]).T / math.sqrt(d)) for i in range(n)])
        time = time.masked_fill(~over_time, -math.inf).softmax(-1)
        after = torch.stack([time[i] @ x[i] for i in range(n)])
        out, last = [], None
        for s in range(t):
            last = layers[2](after[:, s]) @ layers[3](after[:, s]).T / math.sqrt(d)
            last = last.masked_fill(~over_clients, -math.inf).softmax(-1)
            out.append(last @ after[:, s])
        return torch.stack(out, 1), time.detach(), last.detach(), after[:, -1].detach()

    least, best = math.inf, None
    everything, everybody, own = torch.ones(n, t, t) > 0, torch.ones(n, n) > 0, torch.eye(n) > 0
    for _ in range(steps):
        plain, time, space, newest = forward(everything, everybody)
        unit = newest / newest.norm(dim=-1, keepdim=True)
        near = unit @ unit.T > (unit @ unit.T).mean()
        fewer = everything & ~most(1 - time, everything, 0.75, None)
        fewer = fewer | (torch.eye(t) > 0)
        thin = (near & ~own & ~most(1 - space, near & ~own, 0.8, None)) | most(space, ~near & ~own, 0.2, None) | own
        loss = F.mse_loss(plain, x) + robust * F.mse_loss(plain, forward(fewer, thin)[0])
        if loss.item() < least:
            least, best = loss.item(), space
        opt.zero_grad()
        loss.backward()
        opt.step()
    return best


@pytest.mark.parametrize(("steps", "robust"), [(1, 0.1), (6, 0.0), (6, 3.0)])
def test_the_attention_is_that_of_plain_modules(monkeypatch, steps, robust):
    monkeypatch.setattr(attending, "drawn", most)
    x = draw(5, 4, 6)
    ours = attending.weights(x, torch.full((5,), 4.0), Adam(lr=0.05), steps, robust, KEY)
    torch.testing.assert_close(ours, by_modules(x, steps, 0.05, robust))
    if steps > 1:
        assert gap(ours, by_modules(x, 1, 0.05, robust)) > 1e-3, "something was learned"


def test_the_step_of_least_loss_counts_and_not_the_last(monkeypatch):
    monkeypatch.setattr(attending, "drawn", most)
    x = draw(5, 4, 6)
    wild, first = (attending.weights(x, torch.full((5,), 4.0), Adam(lr=0.5), n, 0.1, KEY) for n in (6, 1))
    torch.testing.assert_close(wild, by_modules(x, 6, 0.5, 0.1))
    assert torch.equal(wild, first), "every step of such a rate makes the loss larger"


def test_the_robust_loss_counts(monkeypatch):
    monkeypatch.setattr(attending, "drawn", most)
    x = draw(5, 4, 6)
    learned = [attending.weights(x, torch.full((5,), 4.0), Adam(lr=0.05), 6, robust, KEY) for robust in (0.0, 3.0)]
    assert gap(*learned) > 1e-3


def test_what_a_client_has_not_seen_does_not_count(monkeypatch):
    monkeypatch.setattr(attending, "drawn", most)
    x = draw(5, 4, 6)
    junk = torch.cat((torch.full((5, 3, 6), 9.0), x[:, 2:]), 1)
    ours = attending.weights(junk, torch.full((5,), 2.0), Adam(lr=0.05), 4, 1.0, KEY)
    torch.testing.assert_close(ours, by_modules(x[:, 2:], 4, 0.05, 1.0))
    uneven = torch.tensor([5.0, 2.0, 5.0, 5.0, 2.0])
    far = junk.clone()
    far[1, :3], far[4, :3] = 100.0, -100.0
    a, b = (attending.weights(each, uneven, Adam(lr=0.05), 4, 1.0, KEY) for each in (junk, far))
    assert torch.equal(a, b) and bool(a.isfinite().all()), "nor what it shows of the past of one client"


def test_drawing_takes_a_share_without_repeating_and_by_chances():
    among = torch.ones(1, 2, 5) > 0
    among[0, 0, 0] = False
    chances = torch.full((1, 2, 5), 0.1)
    chances[0, 1, 4] = 0.6
    taken = torch.stack([attending.drawn(chances, among, 0.5, rng.key(s)) for s in range(400)])
    assert taken.sum((1, 2, 3)).tolist() == [4] * 400 and not taken[:, 0, 0, 0].any()
    often = taken.to(torch.float32).mean(0)[0]
    # drawn one after the other: the likely entry is missed with chance 8/14 * 7/13 * 6/12 * 5/11
    assert float(often[1, 4]) == pytest.approx(1 - 8 * 7 * 6 * 5 / (14 * 13 * 12 * 11), abs=0.06)
    assert float(often[0, 1:].mean()) == pytest.approx((4 - float(often[1, 4])) / 8, abs=0.06)
    assert not attending.drawn(chances, among & False, 0.5, KEY).any()
    whole = among | True
    for share, count in ((0.2, 2), (0.8, 8), (0.19, 1)):  # rounded down, and 2 of 10 are 2
        assert int(attending.drawn(chances, whole, share, KEY).sum()) == count


def met(adapter, x, state=None):
    t = task()
    worker, model = Worker(t, FedAvg()), {"vars": t.init(KEY)}
    state = adapter.init(t, model) if state is None else state
    return t, worker.predict(), model, adapter.look_ahead(t, worker.predict(), model, state, x, KEY)


def images(count, seed=0):
    return (torch.rand(count, 3, 10, 10, generator=torch.Generator().manual_seed(seed)) * 255).to(torch.uint8)


def test_a_client_notes_the_statistics_and_the_mean_feature_of_a_batch():
    adapter, x = FedTSA(window=2), images(6)
    t, predict, model, state = met(adapter, x)
    start, after = model["vars"]["buffers"], t.apply(model["vars"], x, "train").buffers
    sent = adapter.send(t, predict, model, state, KEY)
    assert set(sent["statistics"]) == set(start)
    for name, found in sent["statistics"].items():
        batch = (after[name] - 0.9 * start[name]) / 0.1
        count = 6 * 64 if name.startswith("body.1.") else None
        if name.endswith("_var") and count:
            torch.testing.assert_close(found, batch * (count - 1) / count, rtol=1e-4, atol=1e-5)
        if name.endswith("_mean"):
            torch.testing.assert_close(found, batch, rtol=1e-4, atol=1e-5)
    features = t.apply(model["vars"], x).features.mean(0)
    torch.testing.assert_close(sent["features"], torch.stack((torch.zeros_like(features), features)))
    assert float(sent["seen"]) == 1
    for _ in range(3):
        state = met(adapter, images(6, 3), state)[-1]
    assert float(state["seen"]) == 2, "no more than the window"


def test_without_an_exchange_it_is_bn_and_with_its_own_statistics_too():
    adapter, x = FedTSA(), images(6)
    t, predict, model, state = met(adapter, x)
    alone, _ = BNStats().step(t, predict, model, {}, x, KEY)
    torch.testing.assert_close(adapter.step(t, predict, model, state, x, KEY)[0], alone)
    back = adapter.receive(t, model, state, {"statistics": state["noted"]})
    torch.testing.assert_close(adapter.step(t, predict, model, back, x, KEY)[0], alone)
    other = adapter.step(t, predict, model, back, images(6, 5), KEY)[0]
    mine = t.apply({**model["vars"], "buffers": {**model["vars"]["buffers"], **state["noted"]}}, images(6, 5)).logits
    torch.testing.assert_close(other, mine)


def test_a_batch_is_answered_with_the_mix_of_what_arrived_with_it():
    """The whole exchange as a plain loop: three clients, of whom one ends early."""
    sizes, adapter = (24, 24, 16), FedTSA(window=2, steps=2)
    worker, data = Worker(task(), small(FedAvg()), (), 0), shards((24, 24, 16), seed=2)
    engine = Serial().open(worker, shards(sizes), CPU)
    models = engine.deploy(worker.method.init_server(worker.task, 3, worker.key("init")), engine.mine, NoPersonal())
    ours = engine.serve(models, data, adapter, Protocol(batch=8))
    predict, model = worker.predict(), {"vars": worker.task.init(worker.key("init"))}
    answers, features = [[], [], []], [[], [], []]
    for step in range(3):
        here = [c for c in range(3) if step * 8 < sizes[c]]
        x = {c: data.x[data.own(c)[step * 8 : step * 8 + 8]] for c in here}
        own = {c: predict(model, x[c], Noted()) for c in here}
        if step == 0:
            for c in here:
                answers[c].append(own[c].logits)
            continue
        for c in here:
            features[c].append(predict(model, x[c]).features.mean(0))
        window = torch.stack([torch.stack(features[c][-2:]) for c in here])
        seen = torch.full((len(here),), float(window.shape[1]))
        weights = attending.weights(window, seen, adapter.opt, 2, 0.0, KEY)
        for i, c in enumerate(here):
            mix = {n: sum(weights[i, j] * own[o].buffers[n] for j, o in enumerate(here)) for n in own[c].buffers}
            answers[c].append(predict({"vars": {**model["vars"], "buffers": mix}}, x[c]).logits)
    want = [stream.score(torch.cat(a), data.y[data.own(c)], data.n[c])["loss"] for c, a in enumerate(answers)]
    # two steps of 1e-4 hardly learn, so that the thinning, whose draws a loop does not know, is not seen
    torch.testing.assert_close(ours["loss"], torch.stack(want), rtol=1e-4, atol=1e-4)


def test_what_it_cannot_do_is_refused_in_a_sentence():
    model = {"vars": task().init(KEY)}
    assert "FedTSA needs batch norm" in FedTSA().refusal(task("cnn-group"), model)
    for bad in ({"window": 0}, {"steps": 0}, {"robust": -1.0}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))}="):
            FedTSA(**bad)
    t = task("mlp-dropout")
    worker, deployed = Worker(t, FedAvg()), {"vars": t.init(KEY)}
    state = FedTSA().init(t, deployed)
    with pytest.raises(ValueError, match="batches of at least 2 samples"):
        FedTSA().look_ahead(t, worker.predict(), deployed, state, images(1), KEY)
