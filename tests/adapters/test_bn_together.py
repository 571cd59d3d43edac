"""Statistics of the batches that have arrived, mixed by how alike clients' streams have looked: values by hand."""

import math

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters import BNStats, BNTogether
from acclimate.backends import Serial
from acclimate.core import Protocol, Worker, rng, stream
from acclimate.methods import FedAvg
from acclimate.personal import NoPersonal
from support import shards, small, task

KEY = rng.key(0)
CPU = torch.device("cpu")


def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def images(count, seed=0):
    return (torch.rand(count, 3, 10, 10, generator=torch.Generator().manual_seed(seed)) * 255).to(torch.uint8)


def test_statistics_are_weighed_by_the_cosines_of_signatures():
    stats, signs = {"m": draw(5, 3)}, {"m": draw(5, 4, seed=2)}
    flat = signs["m"] - sum(signs["m"]) / 5
    total = {"statistics": stats, "signature": signs}
    own = BNTogether(temperature=0.3).exchange(task(), {}, total, KEY)["own"]["statistics"]["m"]
    parts = []
    for i in range(5):
        near = [float(F.cosine_similarity(flat[i], flat[j], dim=0)) for j in range(5)]
        near[i] = max(c for j, c in enumerate(near) if j != i)
        weights = [math.exp(c / 0.3) for c in near]
        mean = sum(w * s for w, s in zip(weights, stats["m"], strict=True)) / sum(weights)
        parts.append(max(0.0, near[i]))
        torch.testing.assert_close(own[i], parts[-1] * mean + (1 - parts[-1]) * stats["m"][i])
    assert 0 < max(parts) < 1


def test_who_is_like_nobody_keeps_its_own():
    """Two clients are each other's opposite, once the mean of both is taken off."""
    total = {"statistics": {"m": draw(2, 3)}, "signature": {"m": draw(2, 3, seed=2)}}
    own = BNTogether().exchange(task(), {}, total, KEY)["own"]["statistics"]["m"]
    torch.testing.assert_close(own, total["statistics"]["m"])


def test_a_signature_is_the_mean_of_what_batches_differ_by_from_training():
    t, adapter = task(), BNTogether()
    worker, model = Worker(t, FedAvg()), {"vars": t.init(KEY)}
    buffers = {n: 1 + draw(*b.shape).abs() for n, b in model["vars"]["buffers"].items()}
    model = {"vars": {**model["vars"], "buffers": buffers}}
    state, signs = adapter.init(t, model), []
    for seed in (0, 5, 7):
        state = adapter.look_ahead(t, worker.predict(), model, state, images(6, seed), KEY)
        signs.append({})
        for n, v in state["noted"].items():
            wide = buffers[n.replace("running_mean", "running_var")] + 1e-5
            ratio = 0.5 * torch.log((v + 1e-5) / wide)
            signs[-1][n] = ratio if n.endswith("_var") else (v - buffers[n]) / wide.sqrt()
    sent = adapter.send(t, worker.predict(), model, state, KEY)
    assert set(sent) == {"statistics", "signature"} and set(sent["signature"]) == set(buffers)
    for n, found in sent["signature"].items():
        torch.testing.assert_close(found, (signs[0][n] + signs[1][n] + signs[2][n]) / 3)
    after = t.apply(model["vars"], images(6, 7), "train").buffers
    for n in (n for n in buffers if n.endswith("_mean")):  # what a batch of training moves the running means to
        torch.testing.assert_close(sent["statistics"][n], (after[n] - 0.9 * buffers[n]) / 0.1, rtol=1e-3, atol=1e-4)
    assert set(BNTogether(weights="uniform").send(t, worker.predict(), model, state, KEY)) == {"statistics"}


def served(adapter, sizes, data, worker):
    engine = Serial().open(worker, shards(sizes), CPU)
    models = engine.deploy(
        worker.method.init_server(worker.task, len(sizes), worker.key("init")), engine.mine, NoPersonal()
    )
    return engine.serve(models, data, adapter, Protocol(batch=8))


def test_uniform_is_one_large_batch_of_all_clients_in_a_network_with_one_norm():
    """With one norm layer the mean of the clients' means is that of all samples."""
    sizes = (16, 16, 16)
    t = task("mlp-dropout")
    worker, data = Worker(t, small(FedAvg()), (), 0), shards(sizes, seed=2)
    ours = served(BNTogether(weights="uniform"), sizes, data, worker)
    predict, vars = worker.predict(), t.init(worker.key("init"))
    names = [n.removesuffix("running_mean") for n in vars["buffers"] if n.endswith("running_mean")]
    assert len(names) == 1
    batches = [[data.x[data.own(c)[k : k + 8]] for c in range(3)] for k in (0, 8)]
    first = [BNStats().step(t, predict, {"vars": vars}, {}, x, KEY)[0] for x in batches[0]]
    means, variances = [], []
    for x in batches[1]:
        after = t.apply(vars, x, "train", KEY).buffers
        means.append((after[f"{names[0]}running_mean"] - 0.9 * vars["buffers"][f"{names[0]}running_mean"]) / 0.1)
        unbiased = (after[f"{names[0]}running_var"] - 0.9 * vars["buffers"][f"{names[0]}running_var"]) / 0.1
        variances.append(unbiased * 7 / 8)
    mix = {f"{names[0]}running_mean": sum(means) / 3, f"{names[0]}running_var": sum(variances) / 3}
    second = [t.apply({**vars, "buffers": {**vars["buffers"], **mix}}, x).logits for x in batches[1]]
    want = [
        stream.score(torch.cat((a, b)), data.y[data.own(c)], data.n[c])["loss"]
        for c, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    torch.testing.assert_close(ours["loss"], torch.stack(want), rtol=1e-4, atol=1e-4)


def test_own_is_bn_and_sends_nothing():
    t = task()
    worker, model = Worker(t, FedAvg()), {"vars": t.init(KEY)}
    own, x = BNTogether(weights="own"), images(6)
    assert own.uplink == {}
    mine, _ = own.step(t, worker.predict(), model, own.init(t, model), x, KEY)
    torch.testing.assert_close(mine, BNStats().step(t, worker.predict(), model, {}, x, KEY)[0])
    sizes = (16, 9)
    worker, data = Worker(t, small(FedAvg()), (), 0), shards(sizes, seed=2)
    found = served(own, sizes, data, worker)
    assert "exchanged" not in found or not found["exchanged"].any()
    torch.testing.assert_close(found["loss"], served(BNStats(), sizes, data, worker)["loss"])


def test_two_clients_of_one_stream_are_one_client_with_its_own_statistics():
    """Clients with the same samples have the same statistics, of which every mean is theirs."""
    t = task()
    worker, one = Worker(t, small(FedAvg()), (), 0), shards((24,), seed=2)
    twice = type(one).of(one.x, one.y, [one.own(0), one.own(0)])
    torch.testing.assert_close(
        served(BNTogether(), (24, 24), twice, worker)["loss"], served(BNStats(), (24, 24), twice, worker)["loss"]
    )


def test_bad_settings_are_refused_in_a_sentence():
    assert "BNTogether needs batch norm" in BNTogether().refusal(task("cnn-group"), {"vars": task().init(KEY)})
    for bad in ({"weights": "all"}, {"temperature": 0.0}, {"every": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))}="):
            BNTogether(**bad)
