"""Any method x personaliser x adapter x model: it runs, or it is refused in a sentence that names what is missing."""

from dataclasses import dataclass, fields, replace

import pytest

import acclimate as ac
from acclimate.core import Adapter, Protocol, tree
from acclimate.experiment import catalogue
from support import SMALL, fitted, quick_or_slow, shards, small

PERSONALS = {k: small(v, SMALL) for k, v in catalogue.PERSONALS.items()}
COSTLY = {"views": 2, "steps": 1, "chunk": 4, "epochs": 1, "kept": 4}
CHEAPER = ("memo", "theplus", "fedtta-plus", "mbsl", "shot", "icon", "cotta", "guarded-tent")


def cheaper(name, adapter):
    if name not in CHEAPER:
        return adapter
    numbers = [f.name for f in fields(adapter) if f.name in COSTLY and isinstance(getattr(adapter, f.name), int)]
    return replace(adapter, **{name: COSTLY[name] for name in numbers})


ADAPTERS = {k: cheaper(k, v) for k, v in catalogue.ADAPTERS.items()}
EVERY = [(p, a) for p in PERSONALS for a in ADAPTERS]
EACH = [(p, a) for p, a in EVERY if p == "none" or a == "none"]


@pytest.mark.parametrize(
    ("model", "pairs"),
    [("cnn-batch", EACH), pytest.param("cnn-plain", EVERY, marks=pytest.mark.slow)],
    ids=["cnn-batch", "cnn-plain-every-pair"],
)
@pytest.mark.parametrize("name", quick_or_slow(catalogue.METHODS))
def test_every_combination_runs_or_refuses_by_name(name, model, pairs):
    if name in ("fedbn", "dsbn") and model == "cnn-plain":
        with pytest.raises(ValueError, match="'norm' selects nothing: this model has no such layers"):
            fitted(small(catalogue.METHODS[name]), "vmap", model, rounds=1)
        return
    worker, engine, state = fitted(small(catalogue.METHODS[name]), "vmap", model, rounds=1)
    down, test = worker.method.download(worker.task, state.server), shards((9, 12, 0, 8, 5, 8), seed=2)
    served = set()
    models = {p: engine.deploy(down, state.mine, PERSONALS[p]) for p in dict(pairs)}
    for label, name in pairs:
        adapter = ADAPTERS[name]
        reason = adapter.refusal(worker.task, tree.take(models[label], 0))
        if reason is not None:
            assert type(adapter).__name__ in reason
            continue
        metrics = engine.serve(models[label], test, adapter, Protocol(batch=4))
        assert metrics["accuracy"].shape == (6,)
        assert metrics["n"].tolist() == test.n.tolist()
        assert bool(((metrics["accuracy"] >= 0) & (metrics["accuracy"] <= 1)).all())
        served.add((label, name))
    assert {(p, "none") for p in PERSONALS} <= served and {("none", a) for a in ("t3a", "tent-all", "memo")} <= served


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
