"""Any method x personaliser x adapter x model: it runs, or it is refused in a sentence that names what is missing."""

from dataclasses import dataclass, fields, replace

import pytest

import acclimate as ac
from acclimate import catalogue
from acclimate.core import tree
from acclimate.core.adapter import Adapter
from acclimate.core.stream import Protocol
from support import SMALL, fitted, shards, small

PERSONALS = {k: small(v, SMALL) for k, v in catalogue.PERSONALS.items()}
COSTLY = {"views": 2, "steps": 1, "chunk": 4}
ADAPTERS = {
    k: replace(v, **{f.name: COSTLY[f.name] for f in fields(v) if k in ("memo", "theplus") and f.name in COSTLY})
    for k, v in catalogue.ADAPTERS.items()
}


@pytest.mark.parametrize("model", ["cnn-plain", "cnn-batch"])
@pytest.mark.parametrize("name", catalogue.METHODS)
def test_every_combination_runs_or_refuses_by_name(name, model):
    if name == "fedbn" and model == "cnn-plain":
        pytest.skip("FedBN refuses models without normalisation: tested in test_contract")
    worker, engine, state = fitted(small(catalogue.METHODS[name]), "vmap", model, rounds=1)
    down, test = worker.method.download(worker.task, state.server), shards((9, 12, 0, 8, 5, 8), seed=2)
    served = 0
    for personal in PERSONALS.values():
        models = engine.deploy(down, state.mine, personal)
        live = tree.take(models, 0)
        for label, adapter in ADAPTERS.items():
            reason = adapter.refusal(worker.task, live)
            if reason is not None:
                assert type(adapter).__name__ in reason
                assert (label in ("bn", "tent") and model == "cnn-plain") or adapter.requires
                continue
            metrics = engine.serve(models, test, adapter, Protocol(batch=4))
            assert metrics["accuracy"].shape == (6,)
            assert metrics["n"].tolist() == test.n.tolist()
            assert bool(((metrics["accuracy"] >= 0) & (metrics["accuracy"] <= 1)).all())
            served += 1
    assert served >= len(PERSONALS) * (3 if model == "cnn-plain" else 5)


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
