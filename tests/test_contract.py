"""What every method of the catalogue owes, on every backend: tested once, for all of them."""

import pickle
import platform
from dataclasses import replace
from functools import cache

import pytest
import torch

from acclimate import store
from acclimate.core import State, fit, message, rng, tree
from acclimate.experiment import catalogue
from support import BACKENDS, CLASSES, FEW, MODELS, QUICK, client_data, equal, fitted, gap, shards, small, task

METHODS = {name: small(m, FEW) for name, m in catalogue.METHODS.items()}
METHODS["pfedme"] = replace(METHODS["pfedme"], steps=2)  # each of its steps is a whole one of another method
MLP = "mlp-dropout"
"""The cheapest model that has batch norm, and draws at random."""
AGREE = 5e-5 if platform.machine() == "aarch64" else 1e-5
"""Rounds amplify the last bits, which are others on every kind of processor: up to 2e-5 on an ARM core."""
AMPLIFIES = {"heterofedtta": 2e-5}
"""What amplifies more: on x86 with AVX2 a start that is one rounding away ends 7e-6 away after two rounds."""
every_method = pytest.mark.parametrize("name", METHODS)


def having_maps(name: str, model: str) -> str:
    """This model, or one with feature maps for a method that is refused without."""
    return "cnn-batch" if name == "fedspl" and model == MLP else model


def usable(name: str, model: str) -> bool:
    return not (name in ("fedbn", "dsbn") and not task(model).norm)


def on(*models: str, always: tuple[str, ...]):
    """Every method on these models: on those of `always` in the quick set, on the others there for a few methods."""

    def marks(name: str, model: str):
        return () if model in always or name in QUICK or not usable(name, model) else pytest.mark.slow

    return [pytest.param(n, m, id=f"{m}-{n}", marks=marks(n, m)) for n in METHODS for m in models]


ROUNDS = 2
"""Cohorts are four of six clients: at least two of them train twice."""


@cache
def trainings(name: str, model: str, rounds: int):
    """A serial training that several tests look at and none changes: worker, engine, the state of each round."""
    states: list[State] = []
    worker, engine, _ = fitted(METHODS[name], model=having_maps(name, model), rounds=rounds, seen=states)
    return worker, engine, states


def trained(name: str, model: str, rounds: int = ROUNDS):
    worker, engine, states = trainings(name, model, rounds)
    return worker, engine, states[-1]


@pytest.mark.parametrize(("name", "model"), on(MLP, "cnn-batch", always=(MLP,)))
def test_serial_and_vmap_agree_on_uneven_clients(name, model):
    _, _, a = trained(name, model)
    _, _, b = fitted(METHODS[name], "vmap", having_maps(name, model), rounds=ROUNDS)
    assert gap(a.server, b.server) < AGREE
    size = max([1.0, *(float(x.abs().max()) for x in tree.leaves(a.mine) if x.numel())])
    assert (
        gap(a.mine, b.mine) < max(AGREE, AMPLIFIES.get(name, 0.0)) * size
    )  # private running variances can be well above one
    assert a.cost == b.cost
    assert [h["val_accuracy"] for h in a.history] == pytest.approx([h["val_accuracy"] for h in b.history], abs=1e-6)


@every_method
def test_state_keeps_its_shape(name):
    worker, engine, state = trained(name, MLP)
    fresh = fit.start(worker, BACKENDS["serial"].open(worker, shards(), torch.device("cpu")), engine.shards.clients)
    for old, new in ((fresh.server, state.server), (fresh.mine, state.mine)):
        old, new = tree.flatten(old), tree.flatten(new)
        assert list(old) == list(new)
        assert all(old[k].shape == new[k].shape and old[k].dtype == new[k].dtype for k in old)


@every_method
def test_client_changes_no_argument(name):
    method, t, data = METHODS[name], task(), shards()
    server = method.init_server(t, data.clients, rng.key(0))
    down, mine = method.download(t, server), method.init_client(t, 1, rng.key(0))
    own = client_data(data, 1)
    before = pickle.loads(pickle.dumps((down, mine, own)))
    up, new = method.client(t, down, mine, own, rng.key(3))
    assert equal((dict(enumerate(before))), dict(enumerate((down, mine, own))))
    message.check_message(method.uplink, up, name)
    total = message.finish(
        method.uplink,
        message.partial(method.uplink, torch.tensor([1]), tree.map(lambda x: x[None], up)),
        torch.tensor([1]),
    )
    kept = pickle.loads(pickle.dumps((server, total)))
    method.server(t, server, total, rng.key(4))
    assert equal(dict(enumerate(kept)), dict(enumerate((server, total))))
    assert list(tree.flatten(new)) == list(tree.flatten(mine))


@pytest.mark.parametrize(("name", "model"), on(MLP, "cnn-batch", always=(MLP,)))
def test_same_seed_same_bits_and_another_seed_other_bits(name, model):
    _, _, a = trained(name, model)
    _, _, b = fitted(METHODS[name], model=having_maps(name, model), rounds=ROUNDS)
    assert equal(a.server, b.server)
    assert equal(a.mine, b.mine)
    first = trainings(name, model, ROUNDS)[2][0]
    _, _, other = fitted(METHODS[name], model=having_maps(name, model), rounds=1, seed=6)
    assert gap({"s": first.server, "m": first.mine}, {"s": other.server, "m": other.mine}) > 0


@every_method
def test_worker_pickles_and_trains_alike(name):
    worker, engine, state = trained(name, MLP)
    copy = pickle.loads(pickle.dumps(worker))
    down = worker.method.download(worker.task, state.server)
    own, mine = client_data(engine.shards, 2, round=3), tree.take(state.mine, 2)
    assert equal(worker.train(down, mine, own)[0], copy.train(down, mine, own)[0])


@every_method
def test_state_survives_the_disk(name, tmp_path):
    _, _, state = trained(name, MLP)
    path = tmp_path / "state.safetensors"
    path.write_bytes(store.pack(state, "abc"))
    back = store.unpack(path, state, ("abc",))
    assert equal(back.server, state.server)
    assert equal(back.mine, state.mine)
    assert (back.round, back.history, back.cost) == (state.round, state.history, state.cost)
    assert store.pack(back, "abc") == store.pack(state, "abc")


@pytest.mark.parametrize(("name", "model"), on(*MODELS, always=(MLP, "cnn-batch")))
def test_deployed_model_predicts(name, model):
    if not usable(name, model):
        with pytest.raises(ValueError, match="norm"):
            fitted(METHODS[name], rounds=1, model=model)
        return
    worker, engine, state = trained(name, model, ROUNDS if model == MLP else 1)  # that one is there
    live = worker.method.deploy(
        worker.task, worker.method.download(worker.task, state.server), tree.take(state.mine, 0)
    )
    assert "vars" in live
    out = worker.predict()(live, engine.shards.x[:6])
    assert out.logits.shape == (6, CLASSES)
    assert out.features.shape == (6, worker.task.dim)
    assert bool(torch.isfinite(out.logits).all())


@every_method
def test_answers_depend_on_the_sample_alone(name):
    """So that a stream may be served in batches of any size, and clients of several sizes together."""
    worker, _, state = trained(name, MLP)
    down = worker.method.download(worker.task, state.server)
    x = shards(seed=9).x[:7]
    for mine in (tree.take(state.mine, 0), worker.start(9)):  # one that trained, and a newcomer
        model = worker.method.deploy(worker.task, down, mine)
        whole, part = (worker.predict()(model, some).logits for some in (x, x[2:4]))
        assert gap(whole[2:4], part) < 1e-5


@every_method
def test_upload_is_the_bytes_of_the_message(name):
    _, _, state = trained(name, MLP)
    assert state.cost["up"] == ROUNDS * 4 * sum(part["bytes"] for part in state.cost["message"])
