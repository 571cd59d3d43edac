"""A server that asks one round twice learns nothing from it, and gets no more messages than epsilon counts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from acclimate.adapters import Latte
from acclimate.core import Personalizer as NoPersonal
from acclimate.core import tree
from acclimate.core.stream import Protocol
from acclimate.experiment import encode
from acclimate.experiment.settings import expand
from acclimate.filters import LocalDP, Masked
from acclimate.fleet.book import BookRefusal, MessageBook, request_key
from acclimate.fleet.remote import VALIDATION
from acclimate.fleet.site import Place, Site
from acclimate.fleet.vault import Vault

SMALL = [
    "method=fedavg",
    "method.weights=uniform",
    "data.clients=2",
    "data.fraction=0.1",
    "model=mlp",
    "model.hidden=8",
]
SMALL += ["method.work.epochs=1", "rounds=2", "device=cpu", "backend=serial"]


@pytest.fixture(scope="module")
def world():
    return expand(SMALL)[0].data.world(0)


def site(folder: Path, world, *filters, **changes) -> Site:
    (e,) = expand(SMALL)
    made = Site(Place(0, 1, folder), replace(e, filters=filters, **changes), "r", Vault(folder / "runs" / "r"))
    made.__dict__["world"] = world
    return made


def asked(made: Site, down, round=0):
    ups, fields = made.train(down, {"round": round, "versions": {"0": 0}, "keep": {"0": [0]}})
    return ups.get("up.0"), fields["failed"]


def models(made: Site):
    server = made.worker.method.init_server(made.worker.task, 2, made.worker.key("init"))
    down = made.worker.method.download(made.worker.task, server)
    return down, tree.map(lambda x: x * 0.5, down)


@pytest.mark.parametrize("secret", ["", "SITES"])
def test_two_models_for_one_round_have_two_noises_and_one_model_has_one(tmp_path, world, monkeypatch, secret):
    monkeypatch.setenv("SITES", "a long secret of the sites")
    dp = LocalDP(noise=2.0, secret=secret)
    made, plain = site(tmp_path / "a", world, dp), site(tmp_path / "b", world)
    noises = []
    for down in models(made):
        sent, clean = asked(made, down)[0], asked(plain, down)[0]
        gap = tree.sub(sent["delta"], tree.map(lambda x: x.float(), dp.bounded(clean)["delta"]))
        noises.append(torch.cat([x.flatten() for x in tree.leaves(gap)]))
        assert tree.leaves(sent)[0].equal(tree.leaves(asked(made, down)[0])[0]), "a round that is asked for again"
    first, second = noises
    assert len(first) > 500 and first.std() == pytest.approx(2.0, rel=0.15)
    assert float(torch.corrcoef(torch.stack(noises))[0, 1].abs()) < 0.15, "the difference still has both noises"
    assert not torch.isclose(first, second).any()


def test_no_more_messages_are_sent_than_epsilon_counts(tmp_path, world):
    made = site(tmp_path, world, LocalDP())
    first, second = models(made)
    for down in (first, second, first):  # the last one was counted before
        assert asked(made, down)[1] == {}
    up, failed = asked(made, tree.map(lambda x: x * 0.25, first))
    assert (
        up is None and "has sent 2 messages under noise, and the epsilon of this run counts no more" in failed["0"][1]
    )
    more = site(tmp_path, world, LocalDP(), rounds=100)
    assert "for another experiment, and no promise counts both" in asked(more, first)[1]["0"][1]
    assert (tmp_path / "runs" / "r" / "sent.json").stat().st_mode & 0o077 == 0


def test_an_exchange_at_test_time_is_refused_at_the_site_too(tmp_path, world):
    """Its messages are no rounds of training, so no epsilon counts them, whatever the server has checked."""
    fields = {"versions": {"0": 0}, "models": "m", "personal": encode(NoPersonal()), "test": VALIDATION, "session": "s"}
    fields |= {"adapter": encode(Latte(every=1)), "protocol": encode(Protocol(batch=4)), "stretch": 0, "send": True}
    for filters in ((LocalDP(),), ()):
        made = site(tmp_path / str(len(filters)), world, *filters)
        if filters:
            with pytest.raises(ValueError, match="LocalDP is accounted for by rounds of training alone"):
                made.evaluate(models(made)[0], fields, {})
        else:
            assert "up.0" in made.evaluate(models(made)[0], fields, {})[0]


def test_a_server_does_not_learn_whether_training_was_finite(tmp_path, world):
    """A model may be made so that training fails on some data alone: the answer is noise on zeros, as large as ever."""
    made, plain = site(tmp_path / "a", world, LocalDP(noise=2.0)), site(tmp_path / "b", world)
    down = tree.map(lambda x: torch.full_like(x, torch.inf), models(made)[0])
    assert asked(plain, down)[1]["0"][0] == "nonfinite"
    up, failed = asked(made, down)
    noise = torch.cat([x.flatten() for x in tree.leaves(up["delta"])])
    assert failed == {} and bool(torch.isfinite(noise).all()) and float(noise.std()) == pytest.approx(2.0, rel=0.15)
    ups, fields = made.train(models(made)[0], {"round": 1, "versions": {"0": 1}, "keep": {"0": [1]}})
    assert fields["failed"] == {} and "up.0" in ups, "its private state has the number that the server counts on"


def test_without_noise_of_its_own_a_site_counts_nothing(tmp_path, world):
    made = site(tmp_path, world, LocalDP(secret="seed"))
    for factor in (1.0, 0.5, 0.25):
        assert asked(made, tree.map(lambda x, f=factor: x * f, models(made)[0]))[1] == {}
    assert not (tmp_path / "runs" / "r" / "sent.json").exists()


def test_another_private_state_has_other_noise(tmp_path, world):
    """A server can have a private state made anew, from another model, under the same number."""
    made, keys = site(tmp_path, world, LocalDP(), rounds=9), []
    for factor in (1.0, 2.0):
        keys.append(made._noised({"down": {}, "mine": {"c": torch.ones(2) * factor}}, 0, 0).secret)
    assert keys[0] != keys[1]


def test_all_that_an_answer_follows_from_is_in_its_key():
    down = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    about = {"client": 0, "round": 1, "experiment": "x"}
    others = [
        ({**down, "a": torch.zeros(3, 2)}, about),
        ({**down, "a": torch.zeros(2, 3, dtype=torch.float64)}, about),
        ({"a": down["a"], "c": down["b"]}, about),
        ({**down, "b": torch.tensor([-1.0])}, about),
        *[(down, {**about, name: value}) for name, value in (("client", 1), ("round", 0), ("experiment", "y"))],
    ]
    keys = {request_key(b"k" * 32, d, **a) for d, a in [(down, about), *others]}
    assert len(keys) == len(others) + 1 and request_key(b"k" * 32, dict(reversed(down.items())), **about) in keys
    assert request_key(b"l" * 32, down, **about) not in keys


@pytest.mark.parametrize("filters", [(Masked(secret="MASKS"),), (LocalDP(), Masked(secret="MASKS"))])
def test_under_masks_a_round_has_one_message(tmp_path, world, monkeypatch, filters):
    monkeypatch.setenv("MASKS", "a long secret of the sites")
    made = site(tmp_path, world, *filters)
    first, second = (made.worker.outgoing(down, torch.arange(2)) for down in models(made))
    sent, failed = asked(made, first)
    assert failed == {} and tree.leaves(asked(made, first)[0])[0].equal(tree.leaves(sent)[0])
    for other in (second, {**first, "filter.cohort": torch.tensor([0, 1, 2])}):
        assert "has answered round 0 for another model or cohort; two messages" in asked(made, other)[1]["0"][1]
    assert asked(made, second, round=1)[1] == {}
    beyond = asked(made, first, round=2)[1].get("0", ("", ""))[1]  # of two rounds
    assert ("and the epsilon of this run counts no more" in beyond) == (len(filters) == 2)
    free = site(tmp_path / "free", world, Masked())  # a simulation hides nothing
    assert [asked(free, free.worker.outgoing(down, torch.arange(2)))[1] for down in models(free)] == [{}, {}]


def test_each_client_has_a_count_of_its_own(tmp_path):
    book = MessageBook(tmp_path)
    book.enter(0, "e", 1, b"a")
    book.enter(1, "e", 1, b"b")
    with pytest.raises(BookRefusal, match="client 0 has sent 1 messages"):
        book.enter(0, "e", 1, b"c")
