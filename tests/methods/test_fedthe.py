"""FedTHE and THE: the paper's equations against loops written out here."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters import MEMO, THE, THEPlus
from acclimate.core import SGD, Protocol, Work, rng, tree
from acclimate.methods import FedAvg, FedTHE
from acclimate.ops.augmix import augmix
from acclimate.ops.nets import linear
from acclimate.personal import NoPersonal
from support import SMALL, client_data, equal, fitted, gap, images, shards, task


@cache
def trained(seed=0):
    """A worker and client 1's live model, which no test changes."""
    worker, engine, state = fitted(FedTHE(work=SMALL, head_work=SMALL), rounds=2, cohort=6, seed=seed)
    models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())
    return worker, models[1]


def entropy(logits):
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1)


def loop(worker, model, x, adapter):
    """Algorithm 2, one sample after the other, with torch's own Adam."""
    history, last, out, weights = None, None, [], []
    hg, hl = model["descriptors"]["global"], model["descriptors"]["local"]
    for sample in x:
        answer = worker.predict()(model, sample[None])
        h, yg = answer.features[0].detach(), answer.logits[0].detach()
        yl = linear(model["head"], h)
        history = h if history is None else adapter.alpha * last + (1 - adapter.alpha) * history
        last = h
        smooth = adapter.beta * h + (1 - adapter.beta) * history if adapter.history else h
        lam = F.cosine_similarity(yg.softmax(-1), yl.softmax(-1), dim=0)
        lam = {"slw": lam, "em": torch.tensor(1.0), "fa": torch.tensor(0.0), "sum": torch.tensor(0.5)}[adapter.loss]
        free = torch.ones(2, requires_grad=True)
        opt = torch.optim.Adam([free], lr=0.1)
        for _ in range(adapter.steps):
            e = free.softmax(0)
            loss = lam * entropy(e[0] * yg + e[1] * yl)
            loss = loss + (1 - lam) * (e[0] * (smooth - hg).norm() + e[1] * (smooth - hl).norm())
            opt.zero_grad()
            loss.backward()
            opt.step()
        e = free.softmax(0).detach()
        weights.append(e[0])
        out.append(e[0] * yg + e[1] * yl)
    return torch.stack(out), torch.stack(weights)


def stream(worker, model, x, adapter, batch):
    state, out = adapter.init(worker.task, model), []
    for part in x.split(batch):
        logits, state = adapter.step(worker.task, worker.predict(), model, state, part, rng.key(0))
        out.append(logits)
    return torch.cat(out)


@pytest.mark.parametrize("loss", ["slw", "em", "fa", "sum"])
def test_the_vectorised_path_equals_the_loop(loss):
    worker, model = trained()
    x, _ = images(20, seed=4)
    adapter = THE(loss=loss)
    expected, weights = loop(worker, model, x, adapter)
    for batch in (1, 7, 20):
        torch.testing.assert_close(stream(worker, model, x, adapter, batch), expected, rtol=1e-4, atol=1e-5)
    assert float(weights.std()) > 1e-5  # the weight really is the sample's own


def test_without_history_equals_the_loop_too():
    worker, model = trained()
    x, _ = images(12, seed=4)
    adapter = THE(history=False)
    torch.testing.assert_close(
        stream(worker, model, x, adapter, 5), loop(worker, model, x, adapter)[0], rtol=1e-4, atol=1e-5
    )


def test_no_steps_is_the_plain_average_and_equal_heads_make_the_weight_irrelevant():
    worker, model = trained()
    x, _ = images(9)
    out = worker.predict()(model, x)
    personal = linear(model["head"], out.features)
    torch.testing.assert_close(stream(worker, model, x, THE(steps=0), 4), (out.logits + personal) / 2)
    params = model["vars"]["params"]
    twin = {**model, "head": {"weight": params["head.weight"], "bias": params["head.bias"]}}
    torch.testing.assert_close(stream(worker, twin, x, THE(), 4), out.logits, rtol=1e-5, atol=1e-5)


def test_full_agreement_leaves_pure_entropy_minimisation(monkeypatch):
    worker, model = trained()
    x, _ = images(9)
    em, slw = stream(worker, model, x, THE(loss="em"), 4), stream(worker, model, x, THE(), 4)
    assert gap(em, slw) > 1e-4  # these heads do not agree in full
    monkeypatch.setattr("acclimate.adapters.the.F.cosine_similarity", lambda a, b, dim: torch.ones(len(a)))
    torch.testing.assert_close(stream(worker, model, x, THE(), 4), em)


def test_batch_wise_shares_one_weight():
    worker, model = trained()
    x, _ = images(8)
    out = worker.predict()(model, x)
    personal = linear(model["head"], out.features)
    e, _ = THE(per="batch").weigh(model, THE().init(worker.task, model), out.features, out.logits, personal)
    assert e.shape == (8, 1)
    assert float(e.std()) == 0.0
    one, _ = THE(per="batch").weigh(
        model, THE().init(worker.task, model), out.features[:1], out.logits[:1], personal[:1]
    )
    alone, _ = THE().weigh(model, THE().init(worker.task, model), out.features[:1], out.logits[:1], personal[:1])
    torch.testing.assert_close(one, alone)


def test_released_history_takes_the_own_feature_and_drops_the_first_of_later_batches():
    worker, model = trained()
    adapter = THE(variant="released", alpha=0.4)
    f = torch.randn(7, 8, generator=torch.Generator().manual_seed(0))
    expected, h = [], None
    for b, part in enumerate((f[:4], f[4:])):
        for i, row in enumerate(part):
            if h is None:
                h = row
            elif not (b > 0 and i == 0):
                h = 0.4 * row + 0.6 * h
            expected.append(adapter.beta * row + (1 - adapter.beta) * h)
    state, got = adapter.init(worker.task, model), []
    for part in (f[:4], f[4:]):
        smooth, state = adapter._smooth(part, state)
        got.append(smooth)
    torch.testing.assert_close(torch.cat(got), torch.stack(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("variant", "share"), [("paper", 1.0), ("released", 1 / 5)])
def test_released_objective_is_a_mean_over_the_batch_where_the_papers_is_each_samples_own(variant, share):
    """One plain step: a sample's two numbers go down its own gradient, or a fifth of it in a batch of five."""
    worker, model = trained()
    x, _ = images(5, seed=4)
    out = worker.predict()(model, x)
    personal = linear(model["head"], out.features)
    adapter = THE(variant=variant, loss="em", steps=1, opt=SGD(lr=7.0))
    e, _ = adapter.weigh(model, adapter.init(worker.task, model), out.features, out.logits, personal)
    for i in range(5):
        free = torch.ones(2, requires_grad=True)
        mix = free.softmax(0)
        entropy(mix[0] * out.logits[i].detach() + mix[1] * personal[i].detach()).backward()
        expected = (1 - 7.0 * share * free.grad).softmax(0)[0]
        torch.testing.assert_close(e[i, 0], expected, rtol=1e-5, atol=1e-6)
        assert abs(float(e[i, 0]) - 0.5) > 1e-4


def test_balanced_training_of_equal_counts_is_plain_training():
    t, data = task("cnn-plain"), shards((30,))
    own = client_data(data, 0)
    own = {**own, "y": torch.arange(len(own["y"])) % 5, "rows": torch.arange(30)}
    method = FedTHE(work=SMALL, head_work=SMALL)
    down = method.init_server(t, 1, rng.key(0))
    mine = method.init_client(t, 0, rng.key(0))
    a, _ = method.client(t, down, mine, own, rng.key(1))
    b, _ = replace(method, balanced=False).client(t, down, mine, own, rng.key(1))
    assert gap(a["delta"], b["delta"]) < 1e-5


def test_unbalanced_fedthe_averages_like_fedavg_and_the_personal_head_changes_nothing_global():
    method = FedTHE(opt=SGD(lr=0.05), work=SMALL, head_work=SMALL, balanced=False)
    t, own = task(), client_data(shards(), 0)
    down, mine = method.init_server(t, 6, rng.key(0)), method.init_client(t, 0, rng.key(0))
    up, new = method.client(t, down, mine, own, rng.key(2))
    plain, _ = FedAvg(work=SMALL).client(t, {"vars": down["vars"]}, {}, own, rng.fold(rng.key(2), "global"))
    assert equal(up["delta"], plain["delta"])
    features = t.apply(down["vars"], own["x"][own["rows"]]).features
    torch.testing.assert_close(up["descriptor"], features.mean(0))
    assert gap(new["head"], mine["head"]) > 0


def test_personal_heads_start_apart_and_stay_at_home():
    worker, _, state = fitted(FedTHE(work=SMALL, head_work=SMALL), rounds=1, cohort=6)
    starts = [worker.start(c)["head"]["weight"] for c in (0, 1)]
    assert not torch.equal(*starts)
    assert {p["group"] for p in state.cost["message"]} == {"delta", "n", "descriptor"}
    assert not any(p["name"].startswith("head") for p in state.cost["message"] if p["group"] != "delta")


def test_the_global_descriptor_is_the_mean_of_the_local_ones():
    _, _, state = fitted(FedTHE(work=SMALL, head_work=SMALL), rounds=1, cohort=6)
    torch.testing.assert_close(state.server["descriptor"], state.mine["descriptor"].mean(0), rtol=1e-5, atol=1e-6)


def test_settling_runs_the_personal_phase_on_the_final_model():
    worker, engine, state = fitted(FedTHE(work=SMALL, head_work=SMALL), rounds=2, cohort=6)
    down = worker.method.download(worker.task, state.server)
    model = engine.deploy(down, state.mine, NoPersonal())[0]
    features = worker.task.apply(down["vars"], engine.shards.x[engine.shards.own(0)]).features
    torch.testing.assert_close(model["descriptors"]["local"], features.mean(0), rtol=1e-5, atol=1e-5)
    assert gap(model["head"], tree.take(state.mine["head"], 0)) > 0


@pytest.mark.parametrize("adapter", [THE(), THEPlus(steps=1, views=2), MEMO(steps=1, views=2)])
def test_answers_do_not_depend_on_the_batch_size(adapter):
    worker, engine, state = fitted(FedTHE(work=SMALL, head_work=SMALL), rounds=1, cohort=6)
    models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())
    test = shards((7, 5, 6, 4, 5, 6), seed=2)
    one, many = (engine.serve(models, test, adapter, Protocol(b))["loss"] for b in (1, 4))
    torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-5)


def test_serial_and_vmap_serve_the_alike():
    worker, serial, state = fitted(FedTHE(work=SMALL, head_work=SMALL), "serial", rounds=2)
    _, vmap, _ = fitted(FedTHE(work=SMALL, head_work=SMALL), "vmap", rounds=1)
    down, test = worker.method.download(worker.task, state.server), shards((9, 12, 0, 8, 5, 8), seed=2)
    scores = [
        e.serve(e.deploy(down, state.mine, NoPersonal()), test, THE(), Protocol(4))["loss"] for e in (serial, vmap)
    ]
    torch.testing.assert_close(*scores, rtol=1e-3, atol=1e-4)


def test_theplus_without_steps_is_the_and_with_steps_equals_a_loop():
    worker, model = trained()
    x, _ = images(5, seed=3)
    plain = stream(worker, model, x, THE(), 5)
    torch.testing.assert_close(stream(worker, model, x, THEPlus(steps=0), 5), plain)
    adapter = THEPlus(steps=2, views=3, opt=SGD(lr=0.1))
    got = stream(worker, model, x, adapter, 5)
    assert gap(got, plain) > 1e-4
    _, weights = loop(worker, model, x, THE())
    for i, sample in enumerate(x):
        key = rng.rows(rng.key(0), 5)[i]
        params = {k: v.clone().requires_grad_() for k, v in model["vars"]["params"].items()}
        head = {k: v.clone().requires_grad_() for k, v in model["head"].items()}
        leaves = [*params.values(), *head.values()]

        def mixed(batch, params=params, head=head, e=weights[i]):
            out = worker.task.apply({**model["vars"], "params": params}, batch)
            return e * out.logits + (1 - e) * linear(head, out.features)

        opt = torch.optim.SGD(leaves, lr=0.1)
        for t in range(2):
            mean = mixed(augmix(sample, rng.fold(key, t), views=3)).softmax(-1).mean(0)
            opt.zero_grad()
            (-(mean * mean.log()).sum()).backward()
            opt.step()
        torch.testing.assert_close(got[i], mixed(sample[None])[0].detach(), rtol=1e-3, atol=1e-4)
    again = replace(adapter, chunk=2)
    torch.testing.assert_close(stream(worker, model, x, again, 5), got, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "bad", [{"alpha": 1.5}, {"beta": -0.1}, {"steps": -1}, {"loss": "kl"}, {"per": "client"}, {"variant": "mine"}]
)
def test_bad_fields_are_named(bad):
    with pytest.raises(ValueError, match=f"THE: {next(iter(bad))}="):
        THE(**bad)


def test_it_learns_the_small_world():
    worker, engine, state = fitted(
        FedTHE(
            opt=SGD(lr=0.05), head_opt=SGD(lr=0.05), work=Work(epochs=5, batch=8), head_work=Work(epochs=2, batch=8)
        ),
        model="mlp-dropout",
        rounds=2,
        cohort=6,
    )
    models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())
    accuracy = engine.serve(models, shards((20,) * 6, seed=7), THE(), Protocol())["accuracy"]
    assert float(accuracy.mean()) > 0.85
