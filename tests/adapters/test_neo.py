"""NEO subtracts by hand: the mean of the stream, a moving average, and the shift against the client's training data."""

import numpy as np
import pytest
import torch

from acclimate.adapters import NEO
from acclimate.core import Out, rng
from acclimate.experiment import catalogue
from acclimate.methods import FedAvg
from acclimate.personal import ClassMeans, NoPersonal
from by_hand import TASK, X, close
from support import SMALL, client_data, fitted, gap, shards, small

HEAD = np.array([[1.0, -2.0, 0.5], [0.3, 0.8, -1.0], [0.0, 1.0, 2.0]])
BIAS = np.array([0.1, -0.2, 0.3])
PROTOTYPES, COUNTS = np.array([[0.5, 0.1, 0.2], [9.0, 9.0, 9.0], [0.3, 0.3, 0.9]]), np.array([3.0, 0.0, 1.0])


def predict(model, x, mode="eval", key=None):
    assert mode == "eval"
    return Out(torch.full((len(x), 3), torch.nan), x, {})


def model(bias=True):
    params = {"w": torch.tensor(HEAD), **({"b": torch.tensor(BIAS)} if bias else {})}
    means = {"prototypes": torch.tensor(PROTOTYPES), "counts": torch.tensor(COUNTS)}
    return {"vars": {"params": params, "buffers": {}}, "means": means}


BATCHES = [X[0], X[1][:1], X[1][1:]]
"""Three batches of several sizes: every sample counts as one, or every batch."""


def centres(keep):
    seen, moving = np.zeros((0, 3)), None
    for x in BATCHES:
        seen = np.concatenate([seen, x])
        moving = x.mean(0) if moving is None else (keep or 0) * moving + (1 - (keep or 0)) * x.mean(0)
        yield seen.mean(0) if keep is None else moving


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("against", ["origin", "client"])
@pytest.mark.parametrize("keep", [None, 0.9, 0.0])
def test_it_subtracts_by_hand(keep, against, bias):
    adapter, own = NEO(keep=keep, against=against), model(bias)
    state = adapter.init(TASK, own)
    training = (3 * PROTOTYPES[0] + 1 * PROTOTYPES[2]) / 4 if against == "client" else 0.0
    for x, centre in zip(BATCHES, centres(keep), strict=True):
        logits, state = adapter.step(TASK, predict, own, state, torch.tensor(x), rng.key(0))
        close(logits, (x - (centre - training)) @ HEAD.T + (BIAS if bias else 0.0))
    assert adapter.init(TASK, own)["count"] == 0  # a reset forgets


def test_a_stream_that_is_the_training_data_is_answered_as_the_model_does():
    worker, _, state = fitted(FedAvg(work=SMALL), rounds=1)
    plain, own = {"vars": state.server["vars"]}, client_data(shards(), 1)
    noted = ClassMeans().run(worker.task, worker.predict(), plain, own, rng.key(0))
    x = own["x"][own["rows"]]
    wanted = worker.predict()(plain, x).logits
    for against, same in (("client", True), ("origin", False)):
        adapter = NEO(against=against)
        logits, _ = adapter.step(worker.task, worker.predict(), noted, adapter.init(worker.task, noted), x, rng.key(0))
        assert (gap({"l": logits}, {"l": wanted}) < 1e-5) is same


def test_class_means_are_those_of_the_real_rows():
    own = {
        "x": torch.tensor(X[0]),
        "y": torch.tensor([2, 0, 2, 1]),
        "rows": torch.tensor([0, 2, 1, 3]),
        "n": torch.tensor(3),
    }
    noted = ClassMeans().run(TASK, predict, model(), own, rng.key(0))["means"]
    close(noted["prototypes"], np.stack([X[0][1], np.zeros(3), (X[0][0] + X[0][2]) / 2]))
    assert noted["counts"].tolist() == [1, 0, 2]


def test_refusal_and_bad_fields():
    bare = {"vars": model()["vars"]}
    assert NEO().refusal(TASK, bare) is None
    assert NEO(against="client").refusal(TASK, bare) == (
        "NEO with against='client' needs means in the deployed model: personalise with ClassMeans (personal=means)"
    )
    with pytest.raises(ValueError, match="keep=1.5"):
        NEO(keep=1.5)


@pytest.mark.parametrize("name", ["fedthe", "fedrod"])
def test_what_centres_nothing_answers_as_the_model_does_whatever_heads_it_has(name):
    worker, engine, state = fitted(small(catalogue.METHODS[name]), rounds=2)
    down = worker.method.download(worker.task, state.server)
    live, x = engine.deploy(down, state.mine, ClassMeans())[3], shards(seed=2).x[:6]
    counts = torch.tensor([6.0, 0.0, 0.0, 0.0, 0.0])
    features = worker.predict()(live, x).features
    same = {"prototypes": features.mean(0).expand(5, -1), "counts": counts}  # the stream is as the training data
    adapter, model = NEO(against="client"), {**live, "means": same}
    logits, _ = adapter.step(worker.task, worker.predict(), model, adapter.init(worker.task, model), x, rng.key(0))
    torch.testing.assert_close(logits, worker.predict()(live, x).logits, rtol=1e-4, atol=1e-5)
    if name == "fedrod":  # the personal head says something
        assert gap({"l": logits}, {"l": worker.task.apply(live["vars"], x).logits}) > 0.01


@pytest.mark.parametrize(
    ("name", "kind"),
    [("fedem", "a mixture of models"), ("fedproto", "class prototypes"), ("fedpcl", "class prototypes")],
)
def test_models_that_do_not_answer_with_a_linear_head_are_refused(name, kind):
    worker, engine, state = fitted(small(catalogue.METHODS[name]), rounds=1)
    live = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())[0]
    reason = NEO().refusal(worker.task, live)
    assert reason == f"NEO centres features before a linear head, and this model answers with {kind}"
