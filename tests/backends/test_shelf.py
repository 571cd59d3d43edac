"""Recordings are found by a second engine for the same work, and by no other."""

from dataclasses import replace

import pytest
import torch

from acclimate.backends.vmap import shelf
from acclimate.backends.vmap.capture import Recorder
from acclimate.core import SGD, Worker
from acclimate.methods import FedAvg
from support import shards, task


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(shelf, "_shelf", {})


def asked(worker=None, data=None, about=("cpu",)):
    return shelf.shelved(worker or Worker(task(), FedAvg()), data or shards(), about, Recorder(False, True))


def test_the_same_work_finds_its_recordings_and_reads_where_they_read():
    (first, data), (second, again) = asked(), asked()
    assert second is first and again.x is data.x and again.y is data.y


@pytest.mark.parametrize(
    "other",
    [
        {"worker": Worker(task(), FedAvg(opt=SGD(lr=0.3)))},
        {"worker": Worker(task(), FedAvg(), seed=1)},
        {"worker": Worker(task("mlp-dropout"), FedAvg())},
        {"data": replace(shards(), x=shards().x + 1)},
        {"about": ("elsewhere",)},
    ],
    ids=["method", "seed", "model", "examples", "device"],
)
def test_other_work_does_not(other):
    assert asked()[0] is not asked(**other)[0]


def test_few_are_kept_and_all_are_dropped_when_memory_is_short():
    made = [asked(about=(str(i),))[0] for i in range(shelf.MOST_SHELVED + 1)]
    assert asked(about=("1",))[0] is made[1] and asked(about=("0",))[0] is not made[0]
    made[1].recorded["a"] = None
    shelf.forget()
    assert not made[1].recorded and asked(about=("1",))[0] is not made[1]


def test_rows_may_be_others():
    data = shards()
    first, _ = asked(data=data)
    dealt = replace(data, rows=data.rows.flip(0), n=data.n.flip(0))
    second, kept = asked(data=dealt)
    assert second is first and torch.equal(kept.rows, dealt.rows)
