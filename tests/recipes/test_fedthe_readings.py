"""Readings of FedTHE's test phase, and clients that train on all they have (benchmarks/fedthe_readings.py and
fedthe_redrawn.py): each changes what it names alone."""

import importlib
import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from acclimate.adapters import THE
from acclimate.core import Work
from acclimate.data import CIFAR10, Digits

ROOT = Path(__file__).parents[2]
SURE, UNSURE = torch.tensor([[6.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
FEATURES = torch.zeros(1, 2)
STATE = {"history": torch.zeros(2), "last": torch.zeros(2), "started": torch.zeros(())}
MODEL = {"descriptors": {"global": torch.zeros(2), "local": torch.ones(2)}}


def module(name):
    """A benchmark's module."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def readings():
    return module("fedthe_readings")


def weight(adapter, generic, personal):
    """The weight of the global head."""
    return float(adapter.weigh(MODEL, STATE, FEATURES, generic, personal)[0])


def test_lowest_entropy_takes_the_sure_head_and_highest_the_other(readings):
    """Steps of Adam at 0.1 move two numbers apart by at most 0.2 each: after twenty the weight is at most 0.982."""
    lowest, highest = THE(loss="em"), readings.Reading(form="highest")
    assert 0.9 < weight(lowest, SURE, UNSURE) < 0.983 and 0.9 < weight(highest, UNSURE, SURE) < 0.983
    assert weight(lowest, UNSURE, SURE) < 0.1 and weight(highest, SURE, UNSURE) < 0.1


def test_a_free_weight_leaves_the_bounds_and_probabilities_do_not(readings):
    """One number that moves by at most 0.1 in each of twenty steps, from a half."""
    assert 1.0 < weight(readings.Reading(form="free"), SURE, UNSURE) <= 2.5
    mixed = weight(readings.Reading(form="probabilities"), SURE, UNSURE)
    assert 0.9 < mixed < 1.0


def test_a_reading_per_batch_has_one_weight(readings):
    both = torch.cat([SURE, UNSURE]), torch.cat([UNSURE, UNSURE])
    adapter = readings.Reading(form="highest", per="batch")
    e, _ = adapter.weigh(MODEL, STATE, torch.zeros(2, 2), *both)
    assert e.shape == (2, 1) and e[0] == e[1] < 0.1


def test_smoothed_again_and_again_a_feature_is_the_history(readings):
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]])
    smooth, _ = readings.Smoothed()._smooth(features, STATE)
    assert smooth[:, 0].tolist() == pytest.approx([1.0, 1.0, 1.2])  # the first, then a tenth of what came before
    once, _ = THE()._smooth(features, STATE)
    assert once[:, 0].tolist() == pytest.approx([1.0, 0.3 * 3 + 0.7, 0.3 * 5 + 0.7 * 1.2])


def test_redrawn_clients_train_on_copies_of_all_they_have(monkeypatch):
    redrawn = module("fedthe_redrawn")
    digits = Digits(clients=3, fraction=0.1).load()
    monkeypatch.setattr(CIFAR10, "load", lambda self: digits)
    before, after = CIFAR10(clients=3).world(0), redrawn.Redrawn(clients=3).world(0)
    for c in range(3):
        whole = torch.cat([before.train[c], before.val[c], before.test[c]])
        assert torch.equal(after.examples.x[after.train[c]], before.examples.x[whole])
        assert torch.equal(after.examples.y[after.train[c]], before.examples.y[whole])
        assert torch.equal(after.test[c], before.test[c])


def test_redrawn_clients_take_as_many_steps_as_before():
    redrawn = module("fedthe_redrawn")
    cells = {c.row: c for c in redrawn.made("paper") if "1.0" in c.column}
    the, tuned = cells["FedTHE"], cells["FedAvg + FT"]
    assert (the.training.method.record.work, the.training.method.record.head_work) == (Work(3), Work(iterations=56))
    assert tuned.personal.record.work == Work(iterations=56) and tuned.training.method.record.work.epochs == 3
    assert cells["Ditto, not tied"].training.method.record.personal_work == Work(iterations=56)
    data = the.training.data
    assert type(data) is redrawn.Redrawn and {f.name for f in fields(data)} == {f.name for f in fields(CIFAR10)}
    assert {c.row for c in redrawn.made("smoke")} == set(cells)  # which names the rows that can be asked for


@pytest.mark.parametrize(
    ("file", "skew", "said"), [("", "dir(0.1)", [2.1, 2.0, 0.4]), ("-dir1", "dir(1.0)", [0.5, 0.5, -0.4])]
)
def test_what_the_page_says_of_smoothing_is_in_its_files(file, skew, said):
    found = json.loads((ROOT / f"results/causes/fedthe-readings{file}.json").read_text())["accuracy"][skew]
    again, once = found["FedTHE, smoothed in every step"], found["9: FedTHE"]
    assert [round(again[stream] - once[stream], 1) for stream in once] == said


def test_what_the_page_says_of_readings_is_in_their_file(readings):
    """The table of how far on the way from the global head to the personal one every reading lies."""
    found = json.loads((ROOT / "results/causes/fedthe-readings.json").read_text())["accuracy"]["dir(0.1)"]
    page = (ROOT / "docs/papers/fedthe.md").read_text()
    low, high = found["global head"], found["personal head"]
    for name in (n for n in readings.READINGS if "lowest" in n or "highest" in n):
        ways = [(found[name][s] - low[s]) / (high[s] - low[s]) for s in readings.STREAMS]
        assert " | ".join(f"{way:.2f}" for way in ways) + " |" in page, name
