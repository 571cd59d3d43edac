"""The guard around every adapter of the catalogue, on every engine, by every name, in files and in tables."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.func import vmap

import acclimate as ac
from acclimate.adapters import EM, Guarded, NoAdapt, Tent
from acclimate.backends import Serial, Vmap
from acclimate.core import CannotCalibrate, Engine, Protocol, Shards, Task, Work, Worker, fit, rng, tree
from acclimate.eval import grid
from acclimate.experiment import ConfigError, Experiment, catalogue, labels, record
from acclimate.experiment.settings import expand
from acclimate.methods import FedAvg
from acclimate.models import MLP, LoRA, ViT
from acclimate.personal import NoPersonal
from support import CLASSES, MODELS, client_data, shards, small
from support import task as task_of
from test_compose import ADAPTERS, PERSONALS

CPU = torch.device("cpu")
DATA, HELD, STREAM = shards((8, 6, 7)), shards((5, 0, 6), seed=1), shards((6, 9, 4), seed=2)
NEEDS = {"the": "fedthe", "theplus": "fedthe", "tsa": "fedthe", "fedtta": "fedtta", "fedtta-plus": "fedtta"}
NEEDS |= {"ttt": "fedttt", "ttt-episodic": "fedttt", "odpfl": "odpfl", "atp": "fedatp", "atp-online": "fedatp"}
MADE_BY = {"eata": "fisher", "bbse": "confusion", "knn": "memory", "neo-client": "means", "santa": "means"}
NEEDS |= {"dpa": "feddpa-the", "the-lora": "feddpa-the"}
NORMS = {"note": "iabn"}
"""Adapters that need another normalisation than batch norm."""
INSIDE = [name for name in catalogue.ADAPTERS if name != "guarded-tent"]


@contextmanager
def opened(method, backend, task=None):
    """A worker, an engine and the models that it deploys before the first round, by personaliser."""
    task = task or task_of()
    worker = Worker(task, small(method, Work(epochs=1, batch=8)))
    engine = backend.open(worker, DATA, CPU)
    state = fit.start(worker, engine, DATA.clients)
    down = worker.method.download(task, state.server)
    try:
        yield worker, engine, lambda personal="none": engine.deploy(down, state.mine, PERSONALS[personal])
    finally:
        engine.close()


@pytest.mark.parametrize(
    "method", ["fedavg", "fedthe", "fedtta", "fedttt", "odpfl", "fedatp", "fedavg/iabn", "feddpa-the"]
)
def test_it_guards_every_adapter_of_the_catalogue(method):
    method, _, norm = method.partition("/")
    names = [n for n in INSIDE if NEEDS.get(n, "fedavg") == method and NORMS.get(n, "batch") == (norm or "batch")]
    lora = LoRA(ViT(patch=5, width=8, depth=1), rank=2, private=2)
    model = lora if method == "feddpa-the" else replace(MODELS["cnn-batch"], norm=norm or "batch")
    task = Task(model, (3, 10, 10), CLASSES)
    with opened(catalogue.METHODS[method], Serial(), task) as (worker, engine, deployed):
        assert names
        for name in names:
            guard, model = Guarded(ADAPTERS[name], kept=4), deployed(MADE_BY.get(name, "none"))[0]
            assert guard.refusal(worker.task, model) is None, name
            model = {**model, "reference": worker.calibrate(model, client_data(HELD, 0), guard)}
            own, two = client_data(STREAM, 0), (lambda v: v.expand(2, *v.shape))

            def one(model, rows, n, worker=worker, guard=guard, own=own):
                data = {**own, "rows": rows, "n": n}
                return worker.adapt(model, data, guard, Protocol(batch=4), trace_rows=4)

            seen = vmap(one)(tree.map(two, model), two(own["rows"][:4]), torch.full((2,), 4))
            plain = worker.adapt(model, {**own, "rows": own["rows"][:4], "n": torch.tensor(4)}, NoAdapt(), Protocol())
            assert bool(torch.isfinite(seen["loss"]).all()), name
            used = seen["trace"]["used"][0, 0]
            assert float(used) == 1.0 or torch.allclose(seen["loss"][0], plain["loss"], atol=1e-5), name


def test_every_adapter_has_a_guarded_name():
    for name in INSIDE:
        made = catalogue.guarded(f"guarded-{name}")
        assert made == Guarded(catalogue.ADAPTERS[name]) and labels.name(made) == f"guarded-{name}"
    assert [catalogue.guarded(n) for n in ("tent", "guarded", "guarded-guarded-tent", "guarded-nothing", 3)] == [
        None
    ] * 5


GUARDS = {"tent": Guarded(Tent(params="all"), kept=8, margin=0.0, errors=0.0, bonus=0.1), "em": Guarded(EM(), kept=8)}


def measured(backend):
    """Metrics and traces of two guards on a small world: calibrated, then served."""
    task = Task(MLP(hidden=(8,), norm="batch"), (3, 10, 10), 5, (0.5,) * 3, (0.5,) * 3)
    out = {}
    with opened(FedAvg(), backend, task) as (_, engine, deployed):
        for name, guard in GUARDS.items():
            out[name] = engine.serve(engine.calibrated(deployed(), HELD, guard), STREAM, guard, Protocol(batch=2), True)
    return out


def test_serial_and_vectorised_engines_give_the_same_numbers():
    serial, other = measured(Serial()), measured(Vmap(chunk=2))
    assert 0 < float(serial["tent"]["trace"]["used"].mean()) < 1  # both answers go out, or it says little
    real = torch.arange(9) < STREAM.n[:, None]
    for name, mine in other.items():
        for what, theirs in mine.pop("trace").items():
            one = serial[name]["trace"][what]
            assert torch.allclose(one[real], theirs[real], atol=2e-4, equal_nan=True), (name, what)
            assert what != "used" or not one[1].any(), "client 1 has no validation examples"
        assert all(torch.allclose(serial[name][k], v, atol=2e-4) for k, v in mine.items()), name


def test_labels_of_the_stream_are_never_read():
    with opened(FedAvg(), Serial()) as (_, engine, deployed):
        ready = engine.calibrated(deployed(), HELD, GUARDS["tent"])
        others = Shards.of(STREAM.x, (STREAM.y + 1) % 5, [STREAM.own(c) for c in range(STREAM.clients)])
        one, other = (engine.serve(ready, s, GUARDS["tent"], Protocol(batch=4), True) for s in (STREAM, others))
    assert not torch.equal(one["accuracy"], other["accuracy"])
    assert all(torch.equal(v.nan_to_num(), other["trace"][k].nan_to_num()) for k, v in one["trace"].items())
    assert torch.equal(one["confidence"], other["confidence"])


TINY = {"data": ac.data.Digits(clients=3, new_clients=2), "model": MLP(hidden=(8,), norm="batch"), "rounds": 1}


def test_it_is_a_column_of_tables_and_newcomers_are_answered_un_adapted():
    streams = (ac.shifts.Original(), ac.shifts.NewClients())
    guards = (ac.adapters.NoAdapt(), Guarded(Tent(), margin=0.0, errors=0.0), Guarded(Tent(), policy="skip"))
    trained = ac.train(Experiment(**TINY, streams=streams, adapters=guards))
    table = ac.evaluate(trained)
    assert list(dict.fromkeys(r["adapter"] for r in table.rows)) == labels.distinct(guards)
    assert labels.distinct(guards)[0] == "none" and all("guarded-tent" in n for n in labels.distinct(guards)[1:])
    new = [r["per_client"] for r in table.rows if r["stream"].startswith("new") and r["selection"] == "last"]
    assert len(new) == 3 and new[0] == new[1] == new[2]


class NoExamples(Engine):
    """An engine that cannot calibrate, around one that can: as a fleet's."""

    def __init__(self, inside):
        self.inside = inside

    def __getattribute__(self, name):
        if name in ("inside", "calibrated"):
            return object.__getattribute__(self, name)
        return getattr(self.inside, name)


NoExamples.__abstractmethods__ = frozenset()


def test_an_engine_without_validation_examples_refuses_in_a_sentence_and_the_rest_goes_on():
    trained = ac.train(Experiment(**TINY, backend=Serial()))
    engine, guard = NoExamples(trained.engine), Guarded(Tent())
    says = "Guarded needs validation examples beside the models, and this backend has them elsewhere"
    with pytest.raises(CannotCalibrate, match=says):
        engine.calibrated([], HELD, guard)
    stream = ac.shifts.Original().build(trained.world, rng.key(0)).shards
    tests = {"original": grid.Test(stream, Protocol())}
    tested = grid.Tested(trained.worker, trained.state, tests, grid.Names("fedavg", "none", 0, 0), stream)
    (table,) = grid.evaluate(engine, [tested], {"guarded-tent": guard, "tent": Tent()}, NoPersonal())
    assert {r["adapter"] for r in table.rows} == {"tent"}
    assert [(r["adapter"], r["reason"]) for r in table.refused] == [("guarded-tent", says)]


def test_a_fleet_leaves_calibration_to_its_nodes():
    flower = pytest.importorskip("acclimate.backends.flower.engine", reason="the fleet needs Flower")
    models = object()
    assert flower.FlowerEngine.calibrated(None, models, None, Guarded()) is models


def test_the_command_line_knows_guarded_names_and_their_settings():
    (e,) = expand(["adapters=tent,guarded-tent,guarded-em", "adapters.guarded-tent.policy=skip"])
    assert e.adapters == (Tent(), Guarded(Tent(), policy="skip"), Guarded(EM()))
    (e,) = expand(["adapters=guarded-tent", "adapters.guarded-tent.adapter.steps=3", "adapters.guarded-tent.every=9"])
    assert e.adapters == (Guarded(Tent(steps=3), every=9),)
    for wrong in ("guarded", "guarded-nothing", "guarded-guarded", "guarded-guarded-tent", "guarded-"):
        with pytest.raises(ConfigError, match=f"there is no adapter '{wrong}'"):
            expand([f"adapters={wrong}"])
    with pytest.raises(ConfigError, match="policy"):
        expand(["adapters=guarded-tent", "adapters.guarded-tent.policy=pray"])


def test_a_guard_goes_through_config_json():
    e = Experiment(adapters=(Guarded(EM(), policy="freeze", every=3, rule="sar"), Guarded(Tent(steps=2))))
    assert record.loads(record.dumps(e)) == e
