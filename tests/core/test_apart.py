"""Samples that a CPU takes one after the other: the numbers of `vmap`, plain tensors, and when that is not done."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.func import grad, vmap

from acclimate.adapters import MEMO, THEPlus
from acclimate.backends import Vmap
from acclimate.backends.vmap.lanes import LaneWorker
from acclimate.core import SGD, Personalizer, Protocol, Worker, apart, fit, rng, tree
from acclimate.core.nn.mapping import is_batched
from acclimate.methods import FedAvg, FedTHE
from support import client_data, images, shards, small, task

KEY = rng.key(5)
SHARED = {"w": torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), "empty": {}, "b": torch.arange(4.0)}
ROWS = {"x": torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(1)), "k": torch.arange(15).view(3, 5)}


def answer(shared, row):
    return (shared["w"] @ row["x"]).tanh() * row["k"] + shared["b"]


@pytest.mark.parametrize("mapped", [True, False], ids=["weights per client", "one client's weights"])
def test_every_row_of_every_client_is_computed_with_plain_tensors(mapped):
    met = []

    def f(shared, row):
        met.append(
            any(map(is_batched, [*tree.leaves(shared), *tree.leaves(row)]))
            or torch._C._are_functorch_transforms_active()
        )
        return answer(shared, row)

    shared = tree.stack([tree.scale(SHARED, c + 1.0) for c in range(3)]) if mapped else SHARED
    dims = 0 if mapped else None
    got = vmap(lambda s, r: apart.one_by_one(f, s, r), in_dims=(dims, 0))(shared, ROWS)
    want = vmap(lambda s, r: vmap(lambda one: answer(s, one))(r), in_dims=(dims, 0))(shared, ROWS)
    torch.testing.assert_close(got, want)
    assert got.shape == (3, 5, 4) and met == [False] * 15
    alone = apart.one_by_one(f, tree.take(shared, 2) if mapped else shared, tree.take(ROWS, 2))
    torch.testing.assert_close(alone, want[2])
    nested = vmap(vmap(lambda r: apart.one_by_one(f, SHARED, r)))(tree.map(lambda x: x.unsqueeze(1), ROWS))
    torch.testing.assert_close(nested[:, 0], vmap(vmap(lambda r: answer(SHARED, r)))(ROWS))


def test_little_work_gradients_and_numbers_per_client_stay_together():
    model, rows, enough = {"vars": {"params": {"w": torch.zeros(2, 1, 3, 3)}}}, {"x": torch.zeros(2)}, apart.LEAST
    assert apart.pays(model, rows, enough) and not apart.pays(model, rows, enough - 1)
    assert not apart.pays({"vars": {"params": {"w": torch.zeros(2, 3)}}}, rows, enough)  # no convolution
    assert not apart.pays(tree.to(model, "meta"), rows, enough)
    with apart.together():
        assert not apart.pays(model, rows, enough)
    with apart.together(False):
        assert apart.pays(model, rows, enough)
    tracked = {"x": torch.ones(2, requires_grad=True)}
    assert not apart.pays(model, tracked, enough)
    with torch.no_grad():
        assert apart.pays(model, tracked, enough)
    inside = []
    grad(lambda x: inside.append(apart.pays(model, rows, enough)) or x)(torch.zeros(()))
    assert inside == [False] and apart.pays(model, rows, enough)


CASES = {
    "memo": (FedAvg(), MEMO(steps=2, views=4, opt=SGD(lr=0.2), chunk=3)),
    "theplus": (FedTHE(), THEPlus(steps=2, views=4, opt=SGD(lr=0.2), chunk=3)),
}


@pytest.mark.parametrize("model", ["cnn-batch", "mlp-dropout"])
@pytest.mark.parametrize("name", CASES)
def test_adapters_give_the_same_numbers_one_by_one_where_the_model_has_convolutions(name, model, monkeypatch):
    method, adapter = CASES[name]
    t, met = task(model), []
    worker = Worker(t, small(method))
    engine = Vmap().open(worker, shards(), torch.device("cpu"))
    state = fit.start(worker, engine, 6)
    deployed = engine.deploy(worker.method.download(t, state.server), state.mine, Personalizer())
    models = [engine.model_of(deployed, c) for c in range(2)]
    x, keys, predict = images(10)[0].view(2, 5, 3, 10, 10), rng.rows(KEY, 2), worker.predict()

    def noted(model, x, mode="eval", key=None):
        met.append(torch._C._are_functorch_transforms_active())
        return predict(model, x, mode, key)

    def serve(model, x, key):
        return adapter.step(t, noted, model, adapter.init(t, model), x, key)[0]

    found = {}
    for least in (1, 10**9):
        monkeypatch.setattr(apart, "LEAST", least)
        met.clear()
        found[least] = vmap(serve)(tree.stack(models), x, keys)
        assert (False in met) == (least == 1 and model != "mlp-dropout")
    torch.testing.assert_close(found[1], found[10**9], rtol=1e-4, atol=1e-5)
    plain = torch.stack([predict(m, x[c]).logits for c, m in enumerate(models)])
    assert (found[1] - plain).abs().max() > 1e-3  # tuning does something


@dataclass(frozen=True)
class Scaled(FedAvg):
    """Its answers depend on a setting that lanes may have each of their own."""

    factor: float = 1.0

    def predict(self, task, model, x, mode="eval", key=None):
        out = super().predict(task, model, x, mode, key)
        return out._replace(logits=self.factor * out.logits)


def test_a_method_that_predicts_with_a_number_of_its_lane_is_not_taken_apart(monkeypatch):
    monkeypatch.setattr(apart, "LEAST", 1)
    adapter, held = MEMO(steps=1, views=2, opt=SGD(lr=0.2)), shards((4, 4), seed=1)
    workers = [Worker(task(), Scaled(factor=f), seed=3) for f in (0.5, 3.0)]
    lanes = LaneWorker.of(workers, torch.device("cpu"))
    models = [{"vars": workers[0].task.init(rng.key(c))} for c in range(2)]
    data = [client_data(held, c) for c in range(2)]
    many = tree.stack([{**d, "lane": torch.tensor(c)} for c, d in enumerate(data)])
    got = vmap(lambda model, own: lanes.adapt(model, own, adapter, Protocol(4)))(tree.stack(models), many)["loss"]
    for c, (worker, model) in enumerate(zip(workers, models, strict=True)):
        torch.testing.assert_close(got[c], worker.adapt(model, data[c], adapter, Protocol(4))["loss"])
    assert abs(got[0] - got[1]) > 1e-2
