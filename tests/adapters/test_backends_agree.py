"""The newer adapters on both backends of one process, in batches of four and of one: the same finite numbers."""

import pytest
import torch

from acclimate.adapters import LAME, SAR, CoTTA, RoTTA
from acclimate.core import Protocol
from acclimate.experiment import catalogue
from acclimate.methods import FedAvg
from acclimate.personal import ClassMeans
from support import SMALL, fitted, shards

NAMES = ("delta", "roid", "unmix", "deyo", "neo", "neo-continual", "neo-client", "santa")
RECORDS = {name: catalogue.ADAPTERS[name] for name in NAMES} | {
    "lame": LAME(affinity="rbf", window=6, steps=20),
    "rotta": RoTTA(capacity=6, every=3, rate=0.3),
    "sar": SAR(margin=0.95, reset_below=0.8),
    "cotta": CoTTA(views=2, restore=0.2),
}


@pytest.fixture(scope="module")
def sides():
    out = []
    for backend in ("serial", "vmap"):
        worker, engine, state = fitted(FedAvg(work=SMALL), backend, rounds=1)
        down = worker.method.download(worker.task, state.server)
        out.append((engine, engine.deploy(down, state.mine, ClassMeans())))
    return out


@pytest.mark.parametrize("name", RECORDS)
def test_serial_and_vmap_agree(sides, name):
    test = shards((9, 4, 0, 5, 3, 6), seed=2)
    for batch in (4, 1):
        found = [engine.serve(models, test, RECORDS[name], Protocol(batch=batch)) for engine, models in sides]
        assert bool(torch.isfinite(found[0]["loss"]).all())
        torch.testing.assert_close(found[0]["loss"], found[1]["loss"], rtol=1e-4, atol=1e-5)
