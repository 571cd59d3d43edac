"""What every method, personaliser and adapter owes: padding is never looked at, and flat images have finite answers.

Clients of several sizes run together, and what a smaller one has beyond its own examples must not count: here it is
another image, far out of range. Own examples are black, white, grey, of one colour or nearly so, all of one class.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from acclimate.core import Protocol, Shards, Tree, Worker, tree
from acclimate.experiment import catalogue
from acclimate.personal import NoPersonal
from partners import partner, short
from support import FEW, equal, shards, small, task

METHODS = {name: small(m, FEW) for name, m in catalogue.METHODS.items()}
METHODS["pfedme"] = replace(METHODS["pfedme"], steps=2)
SPARE = 5
"""Places beyond a client's own examples."""


def flat() -> Tensor:
    """Images without contrast, and with hardly any."""
    x = torch.zeros(10, 3, 10, 10)
    x[2:4], x[4:6], x[6, 0] = 1.0, 0.5, 1.0
    x[7:] = 0.5 + 1e-6 * torch.rand(3, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    return x


def data(beyond: float) -> Tree:
    """A client with flat images of one class; what lies beyond them holds this number."""
    x = torch.cat((flat(), torch.full((1, 3, 10, 10), beyond)))
    n = len(x) - 1
    rows = torch.cat((torch.arange(n), torch.full((SPARE,), n)))
    all = Shards(x, torch.zeros(len(x), dtype=torch.int64), rows[None], torch.tensor([n]))
    return all.tree(rows, torch.tensor(n), torch.tensor(1), torch.tensor(0), ragged=True)


def finite_and_alike(run) -> None:
    """What `run` makes of a client's data is finite, and knows nothing of what lies beyond its examples."""
    clean, foul = run(data(0.25)), run(data(1e4))
    assert bool(tree.finite(clean))
    assert equal(clean, foul)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains(name):
    worker = Worker(task(), METHODS[name])
    server = worker.method.init_server(worker.task, 6, worker.key("init"))
    down, mine = worker.method.download(worker.task, server), worker.start(1)
    finite_and_alike(lambda own: dict(zip(("up", "mine"), worker.train(down, mine, own)[:2], strict=True)))


@cache
def deployed(worker_of: str) -> tuple[Worker, Tree, str]:
    """A client half, the model that its clients download, and its personaliser's name."""
    worker, personal = partner(worker_of)
    server = worker.method.init_server(worker.task, 6, worker.key("init"))
    return worker, worker.method.download(worker.task, server), personal


@pytest.mark.parametrize("name", catalogue.PERSONALS)
def test_a_personaliser_gives_a_model(name):
    worker, down, _ = deployed("none")
    finite_and_alike(lambda own: worker.personalise(down, worker.start(1), own, catalogue.PERSONALS[name]))


@pytest.mark.parametrize("name", catalogue.ADAPTERS)
def test_an_adapter_answers(name):
    worker, down, personal = deployed(name)
    labelled = shards((16,))
    own = labelled.tree(labelled.own(0), labelled.n[0], torch.tensor(0), torch.tensor(0), ragged=False)
    model = worker.personalise(down, worker.start(0), own, catalogue.PERSONALS[personal] if personal else NoPersonal())
    adapter = short(name)
    if adapter.calibrates:
        finite_and_alike(lambda own: worker.calibrate(model, own, adapter))
        model = {**model, "reference": worker.calibrate(model, own, adapter)}
    assert adapter.refusal(worker.task, model) is None
    finite_and_alike(lambda own: worker.adapt(model, own, adapter, Protocol(batch=4)))
