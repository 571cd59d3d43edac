"""Any method x personaliser x adapter x model: it runs, or it is refused in a sentence that names what is missing."""

from dataclasses import dataclass, fields, replace

import pytest

import acclimate as ac
from acclimate.core import Adapter, Protocol, Work, tree
from acclimate.experiment import catalogue
from partners import PARTNERS
from support import QUICK, fitted, shards, small

pytestmark = pytest.mark.timeout(7200)
"""For what hangs. Beside ten busy processes, four of these tests that computed for 80 seconds took ten minutes."""
LITTLE = Work(epochs=1, batch=16)
"""What is trained here answers at random: it need only be there."""
PERSONALS = {k: small(v, LITTLE) for k, v in catalogue.PERSONALS.items()}
COSTLY = {"views": 2, "steps": 1, "chunk": 4, "epochs": 1, "kept": 4, "work": Work(epochs=2, batch=4)}
CHEAPER = ("memo", "theplus", "fedtta-plus", "mbsl", "shot", "icon", "cotta", "guarded-tent")


def cheaper(name, adapter):
    if name not in CHEAPER:
        return adapter
    less = [f.name for f in fields(adapter) if f.name in COSTLY and isinstance(getattr(adapter, f.name), int | Work)]
    return replace(adapter, **{name: COSTLY[name] for name in less})


ADAPTERS = {k: cheaper(k, v) for k, v in catalogue.ADAPTERS.items()}
EVERY = [(p, a) for p in PERSONALS for a in ADAPTERS]
EACH = [(p, a) for p, a in EVERY if p == "none" or a == "none"]


def cases():
    """Every method with every adapter is slow: the quick set has all with FedAvg, and deals them to some others."""
    others = [n for n in QUICK if n != "fedavg"]
    shares = {"fedavg": EACH}
    for i, n in enumerate(others):
        own = [("none", a) for a, (method, *_) in PARTNERS.items() if method == n]
        shares[n] = list(dict.fromkeys([*EACH[i :: len(others)], *own]))
    for n in catalogue.METHODS:
        if n in shares:
            yield pytest.param(n, "cnn-batch", shares[n], id=f"{n}-cnn-batch-{len(shares[n])}-pairs")
        if n != "fedavg":
            yield pytest.param(n, "cnn-batch", EACH, id=f"{n}-cnn-batch", marks=pytest.mark.slow)
        yield pytest.param(n, "cnn-plain", EVERY, id=f"{n}-cnn-plain-every-pair", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "model", "pairs"), list(cases()))
def test_every_combination_runs_or_refuses_by_name(name, model, pairs):
    if name in ("fedbn", "dsbn") and model == "cnn-plain":
        with pytest.raises(ValueError, match="'norm' selects nothing: this model has no such layers"):
            fitted(small(catalogue.METHODS[name], LITTLE), "vmap", model, rounds=1)
        return
    worker, engine, state = fitted(small(catalogue.METHODS[name], LITTLE), "vmap", model, rounds=1)
    down, test = worker.method.download(worker.task, state.server), shards((6, 8, 0, 5, 3, 8), seed=2)
    served = set()
    models = {p: engine.deploy(down, state.mine, PERSONALS[p]) for p in dict(pairs)}
    for label, name in pairs:
        adapter = ADAPTERS[name]
        reason = adapter.refusal(worker.task, tree.take(models[label], 0))
        if reason is not None:
            refusing = (adapter, getattr(adapter, "adapter", adapter))  # a wrapper hands on what the inner one says
            assert any(type(a).__name__ in reason for a in refusing), reason
            continue
        metrics = engine.serve(models[label], test, adapter, Protocol(batch=4))
        assert metrics["accuracy"].shape == (6,)
        assert metrics["n"].tolist() == test.n.tolist()
        assert bool(((metrics["accuracy"] >= 0) & (metrics["accuracy"] <= 1)).all())
        served.add((label, name))
    must = {(p, "none") for p in PERSONALS} | {("none", a) for a in ("t3a", "tent-all", "memo")}
    assert must & set(pairs) <= served


@dataclass(frozen=True)
class Picky(Adapter):
    """Needs a second head in the deployed model."""

    requires = ("descriptors", "head")


def test_missing_requirements_are_refused_by_name_and_the_rest_goes_on():
    e = ac.Experiment(
        data=ac.data.Digits(clients=3), model=ac.models.MLP(hidden=(8,)), rounds=1, streams=(ac.shifts.Original(),)
    )
    table = ac.evaluate(ac.train(e), adapters=[Picky(), ac.adapters.Tent(), ac.adapters.NoAdapt()])
    reasons = {r["adapter"]: r["reason"] for r in table.refused}
    assert reasons["Picky"] == "Picky needs descriptors, head in the deployed model, which has only vars"
    assert "this model has none" in reasons["tent"]
    assert {r["adapter"] for r in table.rows} == {"none"}


def test_an_adapter_may_need_what_the_personaliser_made():
    e = ac.Experiment(
        data=ac.data.Digits(clients=3), model=ac.models.MLP(hidden=(8,)), rounds=1, streams=(ac.shifts.Original(),)
    )
    for backend in (ac.backends.Serial(), ac.backends.Vmap()):
        fit = ac.train(replace(e, backend=backend))
        assert not ac.evaluate(fit, adapters=[ac.adapters.KNNPer()]).rows
        served = ac.evaluate(fit, adapters=[ac.adapters.KNNPer()], personal=ac.personal.Memory())
        assert served.accuracy(adapter="knn", personal="memory") > 0.5
