"""Federations of models from elsewhere and of token ids, from data to live models and files."""

import logging
import re
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from torch import nn

import acclimate as ac
from acclimate.backends.serial import SerialEngine
from acclimate.backends.vmap.engine import VmapEngine
from acclimate.core.vectorised import CannotVectorise
from acclimate.data.dataset import Dataset
from acclimate.data.world import Examples
from acclimate.experiment import dumps
from acclimate.experiment.catalogue import KINDS
from acclimate.serving.protocol import Denied, samples
from elsewhere import CLASSES, LENGTH, VOCABULARY, Encoder, Residual, sequences

METHODS, ADAPTERS = (next(k.entries for k in KINDS if k.name == name) for name in ("method", "adapter"))
QUICK = ac.Work(epochs=4, batch=8)
ADAM = ac.optim.Adam(lr=2e-2)


@dataclass(frozen=True)
class Words(Dataset):
    """Token sequences in memory."""

    def load(self):
        x, y = sequences(160)
        return Examples.of(x.to(torch.int32), y, [f"word {c}" for c in range(CLASSES)])


def words(model=None, **changes):
    torch.manual_seed(0)
    parts = {
        "data": Words(clients=2, partition=ac.data.IID()),
        "model": Encoder() if model is None else model,
        "method": ac.methods.FedAvg(opt=ADAM, work=QUICK),
        "adapters": (ac.adapters.NoAdapt(), ac.adapters.Tent(), ac.adapters.T3A(), ac.adapters.LAME()),
        "streams": (ac.shifts.Original(batch=8),),
        "rounds": 2,
    }
    return ac.Experiment(**parts | changes)


@pytest.fixture(scope="module")
def trained():
    return ac.train(words())


def served(table):
    """The adapters of a table, each once."""
    return list(dict.fromkeys(row["adapter"] for row in table.rows))


def test_tokens_train_and_are_served_by_adapters(trained):
    table = ac.evaluate(trained)
    assert served(table) == ["none", "tent", "t3a", "lame"] and not table.refused
    assert table.rows[0]["accuracy"] > 0.9  # of four classes


@pytest.mark.parametrize(
    "changes",
    [
        {"personal": ac.personal.FineTune(opt=ADAM, work=ac.Work(epochs=1, batch=8))},
        {"method": ac.methods.FedTHE(opt=ADAM, work=QUICK), "adapters": (ac.adapters.NoAdapt(), ac.adapters.THE())},
    ],
)
def test_tokens_with_personal_parts(changes):
    table = ac.evaluate(ac.train(words(**changes)))
    assert len(served(table)) == len(changes.get("adapters", "four")) and not table.refused
    assert table.rows[0]["accuracy"] > 0.7


def test_backends_give_the_same_numbers_with_dropout_in_attention():
    method = ac.methods.FedAvg(opt=ac.optim.SGD(lr=0.1), work=QUICK)
    fits = [ac.train(words(method=method, backend=b, rounds=1)) for b in (ac.backends.Serial(), ac.backends.Vmap())]
    one, other = (fit.model(1)["vars"]["params"] for fit in fits)
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


def test_what_needs_images_numbers_or_batch_norm_refuses(trained):
    needs = (ac.adapters.BNStats(), ac.adapters.MEMO(), ac.adapters.TTT(), ac.adapters.FedCTTA())
    reasons = (
        "BNStats needs batch norm, and this model has none; build it with norm='batch', or use tent or sar, which tune",
        "MEMO needs images to augment, and these inputs are token ids",
        "TTT needs images to turn, and these inputs are token ids",
        "FedCTTA needs inputs that are numbers .* token ids, which have no gradient",
    )
    table = ac.evaluate(trained, adapters=(ac.adapters.NoAdapt(), *needs))
    assert len(table.refused) == len(reasons) and served(table) == ["none"]
    for refused, reason in zip(table.refused, reasons, strict=True):
        assert re.match(reason, refused["reason"])
    with pytest.raises(ValueError, match="ODPFL needs inputs that are numbers .* token ids, which have no gradient"):
        ac.train(words(method=ac.methods.ODPFL(work=QUICK)))
    with pytest.raises(ValueError, match="stream 'corrupted' cannot be made from Words: these inputs are token ids"):
        ac.evaluate(trained, streams=(ac.shifts.Corrupted(),))
    with pytest.raises(ValueError, match="model MLP has no embedding, and x holds whole numbers"):
        ac.train(words(ac.models.MLP()))
    with pytest.raises(ValueError, match=r"augment=FlipCrop\(pad=4\) changes images, and these inputs are token ids"):
        ac.train(words(data=Words(clients=2, augment=ac.ops.augment.FlipCrop())))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_tokens_or_refuses_in_a_sentence(name):
    works = {f.name: ac.Work(epochs=1, batch=8) for f in fields(METHODS[name]) if isinstance(f.default, ac.Work)}
    reason = ""
    try:
        ac.train(words(method=replace(METHODS[name], **works), rounds=1))
    except ValueError as e:
        reason = str(e)
    assert not reason or re.search("needs (images|inputs that are numbers) .* token ids|has no public set", reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_serves_tokens_or_refuses_in_a_sentence(trained, name):
    table = ac.evaluate(trained, adapters=(ADAPTERS[name],))
    assert [bool(table.rows), bool(table.refused)].count(True) == 1
    assert all(re.search(r" needs \w+", row["reason"]) for row in table.refused)


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused_before_training():
    small = Encoder()
    small.table = nn.Embedding(VOCABULARY - 5, 8)
    with pytest.raises(ValueError, match=r"'table' has 15 rows, and the data asks for row 19; build .* at least 20"):
        ac.train(words(small))


def test_a_run_is_loaded_with_the_module_given_again(trained, tmp_path):
    path = trained.save(tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"was given as a Python object.*pass it again, e.g. ac.load\(path, model=...\)"
    ):
        ac.load(path)
    same, x = ac.load(path, model=Encoder()), sequences(5, seed=3)[0]
    torch.testing.assert_close(same.module(0)(x), trained.module(0)(x))
    wrapped = words(ac.wrap(Encoder(), head="out"))
    assert '"core:Wrap"' in dumps(wrapped) and '"head": "out"' in dumps(wrapped)
    saved = ac.train(replace(wrapped, rounds=1)).save(tmp_path / "wrapped")
    with pytest.raises(ValueError, match=r"experiment.model.module: .*Encoder.* e.g. ac.load\(path, model=...\)"):
        ac.load(saved)
    assert ac.load(saved, model=ac.wrap(Encoder(), head="out")).state.round == 1


def test_a_live_model_answers_ids_and_refuses_others(trained, tmp_path):
    live, x = trained.deploy(0, adapter=ac.adapters.Tent()), sequences(6, seed=3)[0]
    again = ac.load_live(live.save(tmp_path / "live"), model=Encoder())
    torch.testing.assert_close(live(x).probabilities, again(x.numpy().astype(np.int64)).probabilities)
    with pytest.raises(ValueError, match="x has token ids from 0 to 20, and the model knows 0 to 19"):
        live.predict(
            torch.arange(VOCABULARY + 1)[None].repeat(2, 1)[:, -LENGTH:] * torch.tensor([0, *[1] * (LENGTH - 1)])
        )
    with pytest.raises(ValueError, match="x is of type torch.float32, expected token ids"):
        live.predict(x.float())


def test_a_request_brings_ids(trained):
    task, x = trained.worker.task, sequences(2, seed=3)[0]
    one = {"name": "input", "datatype": "INT64", "shape": [2, LENGTH], "data": x.flatten().tolist()}
    assert torch.equal(samples({"inputs": [one]}, b"", task, torch.int32, 8), x.to(torch.int32))
    with pytest.raises(Denied, match="of datatype INT64 must be whole numbers"):
        samples({"inputs": [{**one, "data": x.flatten().float().add(0.5).tolist()}]}, b"", task, torch.int32, 8)


@pytest.mark.slow
def test_an_exported_file_takes_ids(trained, tmp_path):
    from acclimate.running.export import export

    done = export(trained, 0, tmp_path / "model.pt2", to="torch-export")
    assert done.about["input"] == {"shape": ["batch", LENGTH], "dtype": "int64"} and done.difference < 1e-4


class Kinds(Encoder):
    """Words, and of each its kind, 0 or 1."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(2, 8)

    def forward(self, ids, kinds):
        return self.out((self.table(ids) + self.kinds(kinds)).mean(1))


@dataclass(frozen=True)
class WordsOfKinds(Words):
    def load(self):
        x, y = sequences(160)
        return Examples.of(torch.stack((x, (x > 9).long()), 1), y, [f"word {c}" for c in range(CLASSES)])


def test_a_model_of_two_inputs_is_exported_with_values_that_both_take(tmp_path):
    from acclimate.running.export import export

    two = ac.wrap(Kinds(), inputs=("ids", "kinds"))
    fit = ac.train(words(two, data=WordsOfKinds(clients=2, partition=ac.data.IID()), rounds=1))
    done = export(fit, 0, tmp_path / "model.pt2", to="torch-export")
    assert done.about["input"]["shape"] == ["batch", 2, LENGTH] and done.difference < 1e-4


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.tensor([[1, -1]]), "x has -1, but token ids are numbered from 0"),
        (torch.tensor([[True, False]]), "x is torch.bool, allowed are torch.uint8 .* and torch.int16, int32 or int64"),
    ],
)
def test_ids_are_whole_numbers_from_zero(x, says):
    with pytest.raises(ValueError, match=says):
        Examples.of(x, torch.tensor([0]), ["only"])


class Peeking(Encoder):
    def forward(self, ids):
        return super().forward(ids) if (ids > 0).all() else super().forward(ids) * 1


def test_auto_runs_what_cannot_be_vectorised_one_at_a_time_and_says_why(caplog):
    with caplog.at_level(logging.WARNING, "acclimate"):
        fit = ac.train(words(Peeking(), rounds=1))
    assert isinstance(fit.engine, SerialEngine)
    assert len(caplog.records) == 1
    assert "model Peeking cannot be vectorised over clients, because of `" in caplog.text
    assert "(ids > 0).all()" in caplog.text and "clients run one at a time" in caplog.text
    with pytest.raises(CannotVectorise, match=r"because of .*; set backend=auto or backend=serial"):
        ac.train(words(Peeking(), rounds=1, backend=ac.backends.Vmap()))
    assert isinstance(ac.train(words(rounds=1)).engine, VmapEngine)


def test_a_torchvision_like_module_runs_as_it_is():
    torch.manual_seed(0)
    experiment = ac.Experiment(
        data=ac.data.Digits(clients=2, fraction=0.2),
        model=lambda shape, classes: nn.Sequential(nn.Conv2d(shape[0], 3, 1), Residual(classes)),
        method=ac.methods.FedAvg(work=ac.Work(epochs=1)),
        rounds=1,
        adapters=(ac.adapters.NoAdapt(), ac.adapters.Tent(), ac.adapters.BNStats(), ac.adapters.T3A()),
        streams=(ac.shifts.Original(),),
    )
    table = ac.evaluate(ac.train(experiment))
    assert served(table) == ["none", "tent", "bn", "t3a"] and not table.refused
