"""EM and BBSE find a label shift that was made by hand, and answer accordingly. Confusion, their personaliser."""

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters.bbse import BBSE, solve
from acclimate.adapters.em import EM, estimate
from acclimate.core import Out, Task, rng
from acclimate.methods import FedAvg
from acclimate.models import MLP
from acclimate.personal.confusion import Confusion
from support import CLASSES, SMALL, client_data, fitted, gap, shards

SOURCE = torch.tensor([0.5, 0.3, 0.2])
TARGET = torch.tensor([0.1, 0.2, 0.7])
SAYS = torch.tensor([[0.8, 0.1, 0.1], [0.15, 0.7, 0.2], [0.05, 0.2, 0.7]])
"""How often a class (column) is answered so (row)."""


def drawn(prior: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the Bayes posterior under SOURCE of inputs that are answers of SAYS, and labels drawn from `prior`."""
    g = torch.Generator().manual_seed(0)
    y = torch.multinomial(prior, count, replacement=True, generator=g)
    seen = torch.multinomial(SAYS.T[y], 1, generator=g)[:, 0]
    return (SAYS * SOURCE).log()[seen], y


def joint_of(prior: torch.Tensor) -> torch.Tensor:
    """How often [said, class] occurs under this prior, where the most likely class under SOURCE is said."""
    answer = F.one_hot((SAYS * SOURCE).argmax(1), 3).float()  # [seen, said]
    return (answer.T @ SAYS) * prior


def test_em_recovers_a_known_shift():
    logits, y = drawn(TARGET, 4000)
    real = torch.ones(len(y), dtype=torch.bool)
    q = estimate(logits, real, SOURCE, steps=100)
    assert (q - TARGET).abs().max() < 0.04
    assert (estimate(drawn(SOURCE, 4000)[0], real, SOURCE, steps=100) - SOURCE).abs().max() < 0.04
    assert F.cross_entropy(logits + (q / SOURCE).log(), y) < F.cross_entropy(logits, y) - 0.1
    half = torch.arange(len(y)) < 500
    assert torch.equal(estimate(logits, half, SOURCE, 5), estimate(logits[:500], real[:500], SOURCE, 5))


def test_bbse_recovers_a_known_shift():
    joint = SAYS * SOURCE
    weights = solve(joint, SAYS @ TARGET, ridge=1e-6)
    assert (weights * SOURCE - TARGET).abs().max() < 1e-3
    assert (solve(joint, SAYS @ SOURCE, ridge=1e-6) - 1).abs().max() < 1e-3
    assert (solve(joint, SAYS @ SOURCE, ridge=1e6) - 1).abs().max() < 1e-3  # the ridge draws towards no shift
    expected = torch.linalg.solve(joint.double(), (SAYS @ TARGET).double())
    assert gap({"w": weights}, {"w": expected.float()}) < 1e-2
    assert solve(joint, torch.tensor([0.0, 0.0, 1.0]), ridge=1e-6).min() == 0  # impossible answers: no negative weight


@pytest.fixture(scope="module")
def live():
    worker, _, state = fitted(FedAvg(work=SMALL), rounds=3)
    model = {"vars": state.server["vars"]}
    return worker, Confusion().run(worker.task, worker.predict(), model, client_data(shards(), 0), rng.key(0))


def test_confusion_counts_answers_by_class(live):
    worker, model = live
    own = client_data(shards(), 0)
    said, y = worker.predict()(model, own["x"][own["rows"]]).logits.argmax(-1), own["y"][own["rows"]]
    counts = 0.1 * torch.eye(CLASSES)
    for a, b in zip(said.tolist(), y.tolist(), strict=True):
        counts[a, b] += 1
    assert gap({"c": model["confusion"]["joint"]}, {"c": counts / counts.sum()}) < 1e-6
    longer = {**own, "rows": torch.cat((own["rows"], own["rows"][:1].expand(9)))}
    padded = Confusion().run(worker.task, worker.predict(), {"vars": model["vars"]}, longer, rng.key(0))
    assert gap(padded["confusion"], model["confusion"]) < 1e-6


@pytest.mark.parametrize("adapter", [EM(steps=100, prior="noted"), BBSE(ridge=1e-6)])
def test_answers_are_weighted_by_the_shift_that_was_found(adapter):
    x, y = drawn(TARGET, 4000)
    t = Task(MLP(hidden=(4,)), (3,), 3)

    def predict(model, x, mode="eval", key=None):
        return Out(x, x, {})  # the inputs are the logits

    model = {"vars": t.init(rng.key(0)), "confusion": {"joint": joint_of(SOURCE)}}
    real = torch.ones(len(x), dtype=torch.bool)
    state = adapter.prepare(t, predict, model, adapter.init(t, model), x, real, rng.key(0))
    assert (state["shift"].exp() - TARGET / SOURCE).abs().max() < 0.15
    logits, _ = adapter.step(t, predict, model, state, x, rng.key(1))
    assert gap({"l": logits}, {"l": x + state["shift"]}) < 1e-6
    assert F.cross_entropy(logits, y) < F.cross_entropy(x, y) - 0.1


def test_refusals_name_what_is_missing(live):
    worker, model = live
    bare = {"vars": model["vars"]}
    assert EM().refusal(worker.task, bare) is None
    assert "Confusion" in EM(prior="noted").refusal(worker.task, bare)
    assert "BBSE needs confusion" in BBSE().refusal(worker.task, bare)
    with pytest.raises(ValueError, match="ridge=0"):
        BBSE(ridge=0.0)
