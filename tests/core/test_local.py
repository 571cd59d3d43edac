import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.core import rng, tree
from acclimate.core.local import Work, batch_of, clip, train
from acclimate.core.optim import SGD, Cosine
from support import client_data, equal, gap, shards, task


def padded(data, client, size):
    """The same client in a bucket of `size`."""
    own = client_data(data, client)
    rows = torch.cat([own["rows"], own["rows"][:1].expand(size - len(own["rows"]))])
    return {**own, "rows": rows, "ragged": torch.tensor(True)}


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 12), st.integers(0, 3), st.booleans(), st.integers(0, 99))
def test_plan_covers_every_example_once_per_epoch(n, batch, epochs, drop_last, seed):
    work = Work(epochs=epochs, batch=batch, drop_last=drop_last)
    data = {"rows": torch.arange(n), "n": torch.tensor(n), "round": torch.tensor(0)}
    positions, live = work.plan(data, rng.key(seed))
    assert positions.shape == (work.steps(n), batch)
    assert bool(live.all())
    assert epochs == 0 or int(positions.max()) < n
    for epoch in positions.reshape(epochs, -1) if epochs else ():
        whole = epoch[: n if not drop_last else min(n, len(epoch))]
        assert len(whole.unique()) == len(whole)  # no example twice before all came once
        if not drop_last:
            assert len(epoch.unique()) == n


@settings(max_examples=25)
@given(st.integers(0, 5), st.integers(0, 30), st.sampled_from(["epochs", "iterations"]))
def test_padding_changes_nothing(client, extra, kind):
    t, data = task("cnn-batch"), shards()
    work = Work(epochs=2, batch=8) if kind == "epochs" else Work(iterations=5, batch=8)
    opt = SGD(lr=0.1, momentum=0.9, schedule=Cosine(per="step", total=10))
    own = client_data(data, client)
    big = padded(data, client, len(own["rows"]) + extra)
    v, k = t.init(rng.key(0)), rng.key(client)
    assert gap(train(t.loss, v, own, opt, work, k), train(t.loss, v, big, opt, work, k)) < 1e-6
    assert float(work.travelled(opt, own)) == pytest.approx(float(work.travelled(opt, big)), rel=1e-6)


def test_training_equals_a_plain_torch_loop():
    t, data = task("cnn-plain"), shards()
    own, work, key = client_data(data, 0), Work(epochs=2, batch=8), rng.key(4)
    v = t.init(rng.key(0))
    ours = train(t.loss, v, own, SGD(lr=0.1, momentum=0.9), work, key)
    net = t._build()
    net.load_state_dict(v["params"])
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    positions, _ = work.plan(own, rng.fold(key, "plan"))
    for p in positions:
        batch = batch_of(own, p)
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(t.normalise(batch["x"]))[1], batch["y"]).backward()
        opt.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(ours["params"][name], p.detach(), rtol=1e-4, atol=1e-6)


def test_only_trains_what_is_named():
    t, own = task("cnn-batch"), client_data(shards(), 0)
    v = t.init(rng.key(0))
    new = train(t.loss, v, own, SGD(lr=0.1), Work(epochs=1, batch=8), rng.key(1), only=t.head)
    assert list(new["params"]) == list(v["params"])
    for name in v["params"]:
        assert torch.equal(new["params"][name], v["params"][name]) == (name not in t.head)


def test_clipping_bounds_the_global_norm():
    g = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    assert float(tree.norm(clip(g, 1.0))) == pytest.approx(1.0, abs=1e-5)
    assert equal(clip(g, 100.0), g)
    t, own = task("cnn-plain"), client_data(shards(), 0)
    v = t.init(rng.key(0))
    step = train(t.loss, v, own, SGD(lr=1.0), Work(iterations=1, batch=8, clip=0.01), rng.key(1))
    assert float(tree.norm(tree.sub(step["params"], v["params"]))) == pytest.approx(0.01, rel=1e-3)


def test_travelled_is_the_sum_of_rates():
    own = client_data(shards(), 1)  # 24 examples: 3 steps of 8 per epoch
    assert float(Work(epochs=2, batch=8).travelled(SGD(lr=0.5), own)) == pytest.approx(3.0)
    cosine = SGD(lr=0.5, schedule=Cosine(per="step", total=2))
    assert float(Work(iterations=3, batch=8).travelled(cosine, own)) == pytest.approx(0.5 * (1 + 0.5 + 0))


@pytest.mark.parametrize("bad", [{"epochs": -1}, {"batch": 0}, {"iterations": -2}, {"clip": 0.0}])
def test_bad_work_is_named(bad):
    with pytest.raises(ValueError, match=f"Work: {next(iter(bad))}="):
        Work(**bad)
