"""Slow adapters are named before training, with a guess; fast ones and those that cannot serve are not."""

import io
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from acclimate import adapters
from acclimate.core import Adapter
from acclimate.experiment.settings import expand
from acclimate.running import pace
from acclimate.running import run as api
from acclimate.running.pace import slow
from acclimate.running.progress import Lines
from acclimate.running.track import Both
from acclimate.running.watch import Watch

SMALL = ["method=fedavg", "data.clients=2", "data.fraction=0.2", "model=mlp", "model.hidden=8", "rounds=1"]


NOW = [0.0]
"""What the clock shows: time passes where an adapter says so, and nowhere else."""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: NOW[0]))


@dataclass(frozen=True)
class Sleepy(Adapter):
    """Takes 20 ms for a batch."""

    def step(self, task, predict, model, state, x, key):
        NOW[0] += 0.02
        return predict(model, x).logits, state


@dataclass(frozen=True)
class Broken(Adapter):
    """Fails."""

    def step(self, task, predict, model, state, x, key):
        raise RuntimeError("no")


@pytest.fixture(scope="module")
def parts():
    (experiment,) = expand([*SMALL, "streams=original,corrupted"])
    world, worker, engine = api.build(experiment)
    yield worker, world.clients, api.streams_of(world, experiment.streams)
    engine.close()


def test_the_guess_is_a_batchs_time_by_the_number_of_batches(parts):
    worker, clients, built = parts
    samples = sum(int(s.shards.n.sum()) for _, s in built.values())
    shift, first = next(iter(built.values()))
    batch = min(shift.protocol.batch, int(first.shards.n.max()))
    tried = {"sleepy": Sleepy(), "none": adapters.NoAdapt()}
    found = slow(worker, clients, tried, built, least=0.015 * samples / batch)
    assert list(found) == ["sleepy"]
    assert found["sleepy"] == pytest.approx(0.02 * samples / batch)
    assert slow(worker, clients, tried, built) == {}


def test_what_cannot_serve_or_fails_is_left_out_and_a_guard_counts_as_what_is_inside(parts):
    worker, clients, built = parts
    tried = {"the": adapters.THE(), "broken": Broken(), "guarded": adapters.Guarded(adapter=Sleepy())}
    assert list(slow(worker, clients, tried, built, least=0.001)) == ["guarded"]


def test_a_run_says_it_once_before_it_trains(monkeypatch, tmp_path):
    monkeypatch.setattr("acclimate.running.run.slow", lambda *a: {"memo": 200.0})
    out = io.StringIO()
    lines = Lines(out)
    api.run_all(expand([*SMALL, "streams=original", "adapters=none", "seed=0,1"]), tmp_path, watch=lines)
    said = out.getvalue().splitlines()
    warning = "adapter memo will take about 3 min to test in each run, guessed from one batch"
    assert said.count(warning) == 1 and said.index(warning) < next(i for i, s in enumerate(said) if "train" in s)


def test_nobody_tries_adapters_for_a_watch_that_does_not_warn(monkeypatch, tmp_path):
    monkeypatch.setattr("acclimate.running.run.slow", lambda *a: pytest.fail("tried"))
    api.run(expand([*SMALL, "streams=original", "adapters=none"])[0], tmp_path)
    heard = []
    loud = Lines(io.StringIO())
    monkeypatch.setattr(loud, "slow", lambda *a: heard.append(a))
    both = Both(Watch(), loud)
    both.slow("memo", 61.0)
    assert both.warns and not Both(Watch()).warns and heard == [("memo", 61.0)]
