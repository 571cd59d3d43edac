"""Checkpoints of very many clients: they hold who changed, and training goes on from them to the same bits."""

from __future__ import annotations

import itertools

import pytest
import torch

from acclimate import store
from acclimate.backends import Vmap
from acclimate.core import Worker, fit
from acclimate.methods import FedAvg
from support import equal, shards, small, task

EVERYONE, ROUNDS = torch.arange(6), 10


def training(folder, rounds):
    """Train on for so many rounds and save after each: the first state, those after, and whom each part held."""
    worker = Worker(task("mlp-dropout"), small(FedAvg(private=("head",))))
    engine = Vmap(chunk=2, private="mapped", examples="host").open(worker, shards(), torch.device("cpu"))
    start, states, wrote = fit.start(worker, engine, 6), [], []
    plan = fit.RoundPlan(ROUNDS, 6, 2, eval_every=3)
    loop = fit.rounds(worker, engine, plan, shards((5, 9, 6, 0, 8, 7), 1), folder.restore(start, ("t",)) or start)
    for state in itertools.islice(loop, rounds):
        before = set(folder.parts.names)
        folder.save(state, "t", last=False)
        wrote.append([folder.parts.read(n)["@ids"].tolist() for n in folder.parts.names if n not in before])
        states.append(state)
    return start, states, wrote


def same(a, b):
    private = [(a.mine, b.mine), (a.best.mine, b.best.mine)]
    return equal(a.server, b.server) and all(equal(x.take(EVERYONE), y.take(EVERYONE)) for x, y in private)


def test_a_checkpoint_holds_those_who_changed_and_training_goes_on_to_the_same_bits(tmp_path):
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole, cut = (store.RunFolder(tmp_path / name) for name in ("whole", "cut"))
    _, states, wrote = training(whole, ROUNDS)
    cohorts = [fit.sample(Worker(None, None), fit.RoundPlan(ROUNDS, 6, 2), r).tolist() for r in range(ROUNDS)]
    assert wrote[:3] == [[c] for c in cohorts[:3]], "round by round, its cohort"
    assert any(len(ids) > 2 for parts in wrote for ids in parts), "and now and then one part for all"
    assert {p.name for p in (tmp_path / "whole" / "parts").iterdir()} == set(whole.parts.names)
    training(cut, 4)
    again = store.RunFolder(cut.path)
    start, after, more = training(again, ROUNDS)
    assert more[0] == [cohorts[4]], "a resumed run goes on from the parts that it found"
    assert len(after) == ROUNDS - 4 and same(after[-1], states[-1])
    assert same(store.RunFolder(cut.path).restore(start, ("t",)), states[-1])


def test_parts_that_were_changed_are_refused_and_the_last_checkpoint_has_none(tmp_path):
    folder = store.RunFolder(tmp_path)
    start, states, _ = training(folder, 3)
    part = tmp_path / "parts" / folder.parts.names[-1]
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(store.RunError, match="is damaged: its content does not match its name"):
        store.RunFolder(tmp_path).restore(start, ("t",))
    folder.save(states[-1], "t")
    assert not (tmp_path / "parts").exists()
    assert same(store.RunFolder(tmp_path).restore(start, ("t",)), states[-1])
