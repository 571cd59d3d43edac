"""What version 0.1.0.dev0 left on disk is read, gone on with, and gives the same answers.

tests/fixtures/before_the_move was written by it: run folders, an index, a joined newcomer, a recipe's results, and the
hashes of every catalogue entry. Files named records by their modules then (`methods.fedavg:FedAvg`).
"""

import json
import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import acclimate as ac
from acclimate import store
from acclimate.experiment import catalogue, decode, encode, names
from acclimate.experiment.encoding import renamed
from acclimate.ops.augment import CropJitter
from acclimate.running.run import stored_table

OLD = Path(__file__).parent / "fixtures" / "before_the_move"


@pytest.fixture
def old(tmp_path):
    """A copy, since going on with a run writes into its folder."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def close(a, b, within=2e-3):
    """Rows of two tables with the same names, and numbers as near as two processors compute them."""
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert {k: v for k, v in x.items() if isinstance(v, str)} == {k: v for k, v in y.items() if isinstance(v, str)}
        assert x["accuracy"] == pytest.approx(y["accuracy"], abs=0.05)
        assert x["loss"] == pytest.approx(y["loss"], rel=within, abs=within)


def test_a_finished_run_loads_and_tests_to_the_same_table(old):
    fit = ac.load(old / "run")
    kept = stored_table(store.RunFolder(old / "run"))
    assert fit.state.round == 3 and type(fit.experiment.method) is ac.methods.SCAFFOLD
    assert [r["round"] for r in fit.history] == [1, 2, 3]
    close(ac.evaluate(fit).rows, kept.rows)
    assert ac.resume(old / "run").rows == kept.rows  # a finished run is only read
    ac.report(old / "run", out=old / "report.html")


def test_a_stopped_run_goes_on_as_one_that_this_version_stopped(old, tmp_path):
    """Not to the weights of a whole run: Adam makes steps of rounding where batch norm leaves no gradient, so that two
    backends of one machine end further apart than two processors may."""
    before = store.RunFolder(old / "stopped").experiment()
    today = ac.load(old / "stopped").save(tmp_path / "today")
    for folder in (today, old / "stopped"):
        ac.resume(folder)
    ours, gone_on, whole = ac.load(today), ac.load(old / "stopped"), ac.train(before)
    assert ours.state.round == gone_on.state.round == whole.state.round == 3
    for a, b in zip(ac.tree.leaves(gone_on.state.server), ac.tree.leaves(ours.state.server), strict=True):
        assert torch.equal(a, b)
    assert [r["round"] for r in gone_on.history] == [1, 2, 3]
    assert gone_on.history[-1]["val_loss"] == pytest.approx(whole.history[-1]["val_loss"], abs=0.1)
    assert json.loads((old / "stopped" / "config.json").read_text())["experiment"]["type"] == "config:Experiment"


def test_a_checkpoint_goes_on_with_another_backend_but_not_with_another_method(tmp_path):
    e = replace(store.RunFolder(OLD / "stopped").experiment(), rounds=1)
    folder = ac.train(e).save(tmp_path / "new")
    elsewhere = ac.load(folder, backend=ac.backends.Serial())
    assert elsewhere.state.round == 1
    with pytest.raises(store.RunError, match="trained with another configuration"):
        ac.load(folder, method=ac.methods.FedProx())


def test_an_index_of_runs_is_read(old):
    table = ac.resume(old / "index")
    assert sorted({r["seed"] for r in table.rows}) == [0, 1]


def test_a_joined_newcomer_answers_as_it_did(old):
    joined, kept = ac.load_joined(old / "joined"), load_file(old / "joined-answers.safetensors")
    torch.testing.assert_close(joined.predict(kept["x"]), kept["logits"], rtol=1e-4, atol=1e-4)
    assert ac.load_joined(joined.save(old / "again")).record == joined.record


@pytest.mark.parametrize("field", ["sha256", "outline", "record", "classes", "task"])
def test_a_newcomers_card_that_lacks_a_field_is_damaged(old, field):
    card = json.loads((old / "joined" / "joined.json").read_text())
    del card[field]
    (old / "joined" / "joined.json").write_text(json.dumps(card))
    with pytest.raises(store.RunError, match=f"joined.json is damaged: KeyError '{field}'"):
        ac.load_joined(old / "joined")


FREE = ac.Work(iterations=20, batch=64)
SLOW = ac.optim.SGD(lr=0.01, weight_decay=5e-4)
THEN = {
    "fedthe": ac.methods.FedTHE(opt=SLOW, head_opt=SLOW),
    "fedtta": ac.methods.FedTTA(work=FREE),
    "fedtta-prox": ac.methods.FedTTA(mu=0.01, work=FREE),
    "fedatp": ac.methods.FedATP(pretrain=5),
    "fedrep": ac.methods.FedRep(work=ac.Work(epochs=1)),
    "odpfl": ac.methods.ODPFL(work=ac.Work()),
    "scaffold": ac.methods.SCAFFOLD(work=ac.Work()),
    "mixed": ac.models.Mixed(tuple(ac.models.CNN(widths, hidden=512) for widths in ((16, 32), (32, 64), (64, 128)))),
    "image-folder": ac.data.ImageFolder(partition=ac.data.Dirichlet(alpha=0.1), clients=10),
}
"""What these names of the catalogue stood for in earlier files, where they stand for something else by now."""


def entry(kind, name):
    """The experiment whose hashes the fixture holds for a catalogue entry."""
    today = next(k for k in catalogue.KINDS if k.name.partition(" ")[0] == kind).entries[name]
    record = THEN.get(name, today) if kind in ("method", "model", "data") else today
    digits, fedavg = ac.data.Digits, ac.methods.FedAvg
    settings = {
        "method": lambda: {"method": record},
        "personal": lambda: {"personal": record},
        "model": lambda: {"model": record},
        "backend": lambda: {"backend": record},
        "data": lambda: {"data": record},
        "filter": lambda: {"filters": (record,)},
        "adapter": lambda: {"adapters": (record,), "analysis": True},
        "stream": lambda: {"streams": (record,), "analysis": True},
        "partition": lambda: {"data": digits(partition=record)},
        "optimizer": lambda: {"method": fedavg(opt=record)},
        "schedule": lambda: {"method": fedavg(opt=ac.optim.SGD(schedule=record))},
        "augment": lambda: {"data": digits(augment=record)},
    }
    return as_it_was(ac.Experiment(**settings[kind]()))


def as_it_was(record):
    """The same record with the first revision wherever one is named, and digits dealt as they were by default."""
    if record == ac.data.Digits().partition:
        record = ac.data.Dirichlet(alpha=0.1)
    if isinstance(record, tuple):
        return tuple(map(as_it_was, record))
    if not is_dataclass(record):
        return record
    own = {f.name: as_it_was(getattr(record, f.name)) for f in fields(record) if f.init}
    return replace(record, **(own | {"revision": 1} if "revision" in own else own))


@pytest.mark.parametrize("place", json.loads((OLD / "hashes.json").read_text()))
def test_the_hashes_of_earlier_files_are_still_computed(place):
    e, known = entry(*place.split("/", 1)), json.loads((OLD / "hashes.json").read_text())[place]
    assert e.former_hash() == known["training_hash"]
    assert e.former_hash(exact=True) == known["exact"]
    assert e.identities() == (e.identity(), known["training_hash"])


@pytest.mark.parametrize("place", json.loads((OLD / "hashes.json").read_text()))
def test_records_have_one_name_in_files_old_and_new(place):
    e = entry(*place.split("/", 1))
    former = encode(e, former=True)
    assert renamed(former) == encode(e)
    assert decode(former) == decode(encode(e)) == e


def test_names_do_not_depend_on_where_a_class_stands():
    written = json.dumps(encode(ac.Experiment(backend=ac.backends.Processes(), filters=(ac.filters.Median(),))))
    for name in ("experiment:Experiment", "methods:FedAvg", "backends:Processes", "filters:Median", "core:SGD"):
        assert f'"{name}"' in written
    assert names.OLD["backends.processes:Processes"] == "backends:Processes"
    assert set(names.OLD) == {old for old in names.OLD if decodes(old)}


def decodes(old):
    return names.class_of(old) is not None and names.name_of(names.class_of(old)) == names.OLD[old]


def test_a_checkpoint_is_known_wherever_it_runs_and_a_shared_training_is_not():
    here, there = ac.Experiment(device="cpu"), ac.Experiment(device="cuda", backend=ac.backends.Vmap())
    assert here.identity() == there.identity()
    assert here.training_hash() != there.training_hash()
    assert here.identity() != replace(here, seed=1).identity()
    assert here.identity() == replace(here, adapters=(ac.adapters.BNStats(),)).identity()


@pytest.mark.parametrize("method", [ac.methods.FedPAC(), ac.methods.FedFomo(models=1)])
def test_a_checkpoint_that_does_not_say_who_has_trained_goes_on_as_it_was_begun(method, tmp_path, caplog):
    """Newcomers get the mean of all clients then, as in the version that wrote it; the log says so, of both states."""
    data = ac.data.Digits(clients=4, fraction=0.15)
    started = ac.Experiment(data=data, method=method, model=ac.models.MLP(), participation=0.5, rounds=1)
    fit = ac.train(started)
    assert sorted(fit.state.server["seen"].tolist()) == [0.0, 0.0, 1.0, 1.0]
    server = {k: v for k, v in fit.state.server.items() if k != "seen"}
    best = fit.state.best and replace(fit.state.best, server=server)
    path, identity = tmp_path / "state.safetensors", started.identity()
    path.write_bytes(store.pack(replace(fit.state, server=server, best=best), identity))
    like = replace(fit.state, round=0)
    again = store.unpack(path, like, [identity])
    assert again.server["seen"].tolist() == again.best.server["seen"].tolist() == [1.0] * 4
    assert caplog.messages == [f"{path} is of an earlier version and lacks 'seen': it is filled with 1"]
    with pytest.raises(store.RunError, match="tensor 'server/seen' is missing"):
        store.unpack(path, replace(like, added={}), [identity])


def test_a_stored_run_whose_images_an_augmentation_clips_says_what_to_do(tmp_path, monkeypatch):
    """Earlier versions clipped floats beyond 0..1 without a word."""
    x = np.linspace(-2.0, 2.0, 40 * 192, dtype=np.float32).reshape(40, 3, 8, 8)
    np.savez(tmp_path / "images.npz", x=x, y=np.arange(40) % 2)
    data = ac.data.Arrays(file=str(tmp_path / "images.npz"), clients=2, augment=CropJitter())
    e = ac.Experiment(data=data, model=ac.models.MLP(hidden=(4,)), rounds=1, streams=(ac.shifts.Original(),))
    e = replace(e, method=ac.methods.FedAvg(work=ac.Work(epochs=1, batch=4)))
    with monkeypatch.context() as earlier:
        earlier.setattr("acclimate.core.task.check_augment", lambda *about: None)
        ac.run(e, tmp_path / "run")
    says = "was run by an earlier version, which clipped its images .* Run it again with other settings: augment"
    with pytest.raises(store.RunError, match=says):
        ac.load(tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    with pytest.raises(store.RunError, match=says):
        ac.resume(tmp_path / "run")
