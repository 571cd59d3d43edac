"""Experiments drawn at random: the same numbers on every backend, and the same bits after an end in the middle.

A draw combines what users combine and other tests do not: method, model, partition, cohort, batches, schedules,
filters, personaliser, adapters, streams, and when it is looked at and saved. What cannot be built is drawn again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import acclimate as ac
from acclimate import store
from acclimate.experiment import ConfigError, Experiment, catalogue
from acclimate.experiment.settings import expand
from acclimate.running import run as api
from acclimate.store import append
from support import gap

DRAWS = 16
PARTNERS = ("heterofedtta", "fedmd", "feddpa", "feddpa-f", "feddpa-the")
"""Methods that need a public set, or a model with adapters of low rank."""
UNSTEADY = ("gma", "fedpac", "ifca", "cfl", "fedfomo", "rsc", "fedspl")
"""Methods that decide by signs, by order or by the smaller of two numbers: the last bit of one decides, so that two
backends may part. Their contract is tested on federations where it does not."""
FILTERS = [f for f in catalogue.FILTERS if f not in ("top-k", "int8")]
"""Of these too the last bit decides, which values are sent or to which side they are rounded."""
METHODS = [m for m in catalogue.METHODS if m not in (*PARTNERS, *UNSTEADY)]
ADAPTERS = ("none", "none", "tent", "t3a", "bn", "neo-client", "the", "em", "together", "fedtta")
STREAMS = ("original", "few-samples", "few-classes", "label-sorted", "new-clients")
BACKENDS = (
    ac.backends.Vmap(chunk=2),
    ac.backends.Vmap(waste=0.0),
    ac.backends.Vmap(private="mapped"),
    ac.backends.Vmap(chunk=3, private="mapped", examples="host"),
)
WITHIN = 2e-3
"""How far rounds carry the last bits of single precision, relative to the largest number of a tensor."""


def drawn(seed: object) -> Experiment:
    """The first experiment of this seed that can be built and tested."""
    for attempt in range(1000):
        try:
            e = replace(_one(random.Random(f"{seed}/{attempt}")), device="cpu", backend=ac.backends.Serial())
            ready = api._ready(e)
            if api.untestable(replace(e, personal=ac.personal.NoPersonal()), ready.world, ready.worker) is None:
                return e
        except ValueError:
            continue
    raise AssertionError("nothing could be built")


def _one(r: random.Random) -> Experiment:
    model, clients = r.choice(["mlp", "mlp", "mlp-bn"]), r.choice([2, 3, 4, 5])
    name, norm = r.choice(METHODS), model == "mlp-bn"
    settings = [f"data.clients={clients}", "data.fraction=0.12", "data.new_clients=1", f"seed={r.randrange(9)}"]
    settings += [f"data.partition={r.choice(['iid', 'dirichlet', 'pathological'])}", f"method={name}", f"model={model}"]
    settings += [f"model.hidden={r.choice(['8', '12,8'])}", f"model.dropout={r.choice([0.0, 0.0, 0.3])}"]
    for field in sorted(catalogue.METHODS[name].__dataclass_fields__):
        settings += _work(r, f"method.{field}", norm) if field.endswith("work") else []
        settings += _optimizer(r, f"method.{field}", norm) if field.endswith("opt") else []
    settings += [f"filters={','.join(r.sample(FILTERS, r.choice([0, 0, 1, 2])))}"]
    settings += ["method.weights=uniform"] * r.randrange(2) + [f"cohort={r.randint(1, clients)}"] * r.randrange(2)
    settings += [f"rounds={r.choice([2, 3])}", f"eval_every={r.choice([1, 2])}", f"checkpoint_every={r.choice([1, 2])}"]
    settings += [f"personal={r.choice(list(catalogue.PERSONALS))}", "personal.work.batch=5", "personal.work.epochs=1"]
    settings += [
        "personal.head_work.batch=5",
        "personal.head_work.epochs=1",
        "personal.opt=sgd",
        "personal.opt.lr=0.01",
    ]
    settings += [f"adapters={','.join(r.sample(ADAPTERS, 2))}", f"streams={','.join(r.sample(STREAMS, 1))}"]
    return _made(settings + ["analysis=true"] * r.choice([0, 0, 0, 1]))


def _work(r: random.Random, place: str, norm: bool) -> list[str]:
    much = r.choice(["epochs=1", "epochs=2", "iterations=3"])
    more = r.choice(["clip=1.0", "drop_last=true", much])
    return [f"{place}.batch={r.choice([5, 6, 7] if norm else [1, 2, 5])}", f"{place}.{much}", f"{place}.{more}"]


def _optimizer(r: random.Random, place: str, norm: bool) -> list[str]:
    """Adam makes steps of rounding where batch norm leaves no gradient: it is not drawn with that."""
    schedule = [
        f"{place}.schedule={r.choice(['step', 'cosine'])}",
        f"{place}.schedule.per={r.choice(['round', 'step'])}",
    ]
    more = r.choice([[], [f"{place}.momentum=0.9"], [f"{place}.weight_decay=0.01"], schedule])
    return [f"{place}=sgd", f"{place}.lr=0.01", *more]


def _made(settings: list[str]) -> Experiment:
    """The experiment of these settings, without those that its records do not have."""
    while True:
        try:
            return expand(settings)[0]
        except ConfigError as e:
            fields = [s for s in settings if s.partition("=")[0] in str(e).partition(": ")[0].split(", ")]
            if not fields:
                raise
            settings = [s for s in settings if s != fields[-1]]


def results_of(path: Path) -> dict:
    found = json.loads((path / "results.json").read_text())
    rows = [{k: v for k, v in row.items() if k != "settings"} for row in found["table"]]
    return {k: found[k] for k in ("refused", "cost", "faults", "data")} | {"table": rows}


def load(path: Path) -> dict[str, torch.Tensor]:
    """The last round's server and the private state of every client, however they were stored."""
    state = ac.load(path, backend=ac.backends.Serial()).state
    return ac.tree.flatten({"server": state.server, "mine": state.mine.saved()})


class Killed(BaseException):
    """The process ends here."""


class Killing:
    """Ends the process at one of its writes: before it, in the middle of it, or after it."""

    def __init__(self, at: int, how: str) -> None:
        self.at, self.how, self.count = at, how, 0
        self._replace, self._lines = os.replace, append.lines

    def replace(self, fresh, path) -> None:
        self._write(lambda: self._replace(fresh, path), lambda: None)

    def lines(self, path: Path, new) -> None:
        def half() -> None:
            with path.open("ab") as file:
                file.write("".join(new).encode()[:-20])

        self._write(lambda: self._lines(path, new), half)

    def _write(self, whole, half) -> None:
        self.count += 1
        if self.count != self.at:
            return whole()
        {"before": lambda: None, "half": half, "after": whole}[self.how]()
        raise Killed


def run(monkeypatch, e: Experiment, path: Path, at: int = 0, how: str = "after") -> int:
    """Run an experiment up to one of its writes, or to its end: the number of writes."""
    killing = Killing(at, how)
    with monkeypatch.context() as m:
        m.setattr(os, "replace", killing.replace)
        m.setattr(append, "lines", killing.lines)
        with contextlib.suppress(Killed):
            ac.run(e, path)
    return killing.count


@pytest.fixture(autouse=True)
def keys(tmp_path, monkeypatch):
    """Runs with a key of their own have the same: else nothing of two of them would be alike."""
    monkeypatch.setenv("ACCLIMATE_SECRETS", str(tmp_path / "keys"))
    monkeypatch.setattr(store.secrets, "new", lambda: bytes(32))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(DRAWS)])
def test_a_drawn_experiment_is_the_same_on_every_backend_and_after_a_kill(seed, tmp_path, monkeypatch):
    e, r = drawn(seed), random.Random(seed)
    ac.run(e, tmp_path / "serial")
    vmapped = replace(e, backend=BACKENDS[seed % len(BACKENDS)])
    writes = run(monkeypatch, vmapped, tmp_path / "vmap")
    ours, theirs = results_of(tmp_path / "serial"), results_of(tmp_path / "vmap")
    assert {k: ours[k] for k in ("cost", "faults", "data", "refused")} == {
        k: theirs[k] for k in ("cost", "faults", "data", "refused")
    }
    a, b = load(tmp_path / "serial"), load(tmp_path / "vmap")
    assert a.keys() == b.keys()
    for name, x in a.items():
        size = max(1.0, float(x.abs().max())) if x.numel() else 1.0
        assert gap(x, b[name]) < WITHIN * size, name
    for i in range(2):
        path, at, how = tmp_path / f"cut{i}", r.randint(3, writes), r.choice(["before", "half", "after"])
        run(monkeypatch, vmapped, path, at, how)
        ac.resume(path)
        assert results_of(path) == theirs, (at, how)
        for name in ("config.json", "metrics.jsonl", "state.safetensors"):
            assert (path / name).read_bytes() == (tmp_path / "vmap" / name).read_bytes(), (name, at, how)
