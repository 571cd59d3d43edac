"""Nobody asks the device for a number in mid-round: clients never, the engine once, at the round's end."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from acclimate.backends import Vmap
from acclimate.core import Worker, fit
from acclimate.methods import SCAFFOLD, FedAvg, FedTHE
from support import client_data, quick_or_slow, shards, small, task
from taping import one_hot
from test_contract import METHODS

ASKING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero")
"""Operations whose result the host must know before it can go on."""
CUDA = torch.device("cuda")
PROTOTYPE = pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
"""torch says so once in a process, at the first call of `set_sync_debug_mode`."""


class Detector(TorchDispatchMode):
    """Notes every operation that makes the host wait."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ASKING:
            self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", quick_or_slow(METHODS))
def test_no_method_asks_for_a_number_while_a_client_trains(name, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "one_hot", one_hot)
    worker, data = Worker(task(), METHODS[name]), shards()
    down = worker.method.download(worker.task, worker.method.init_server(worker.task, 6, worker.key("init")))
    own, mine = client_data(data, 1), worker.start(1)
    with Detector() as detector:
        worker.train(down, mine, own)
    assert detector.seen == []


def test_the_detector_detects():
    with Detector() as detector:
        torch.ones(()).item()
        bool(torch.ones(2).any())
        torch.ones(2).nonzero()
    assert len(detector.seen) == 3


@PROTOTYPE
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("options", [Vmap(), Vmap(private="mapped", examples="host")], ids=["near", "far"])
@pytest.mark.parametrize("method", [SCAFFOLD(), FedTHE()], ids=lambda m: type(m).__name__)
def test_a_replayed_round_waits_for_the_device_once(method, options, monkeypatch):
    worker = Worker(task(), small(method))
    engine = options.open(worker, shards(), CUDA)
    down = worker.method.download(worker.task, fit.start(worker, engine, 6).server)
    for r in range(2):  # recorded, and page-locked memory set aside
        engine.expect(torch.arange(4))
        engine.train(down, torch.arange(4), r)
    settle, waits = engine._keep, []

    def allowed(*args):
        torch.cuda.set_sync_debug_mode("default")
        waits.append(args)
        settle(*args)

    monkeypatch.setattr(engine, "_keep", allowed)
    engine.expect(torch.arange(4))
    try:
        torch.cuda.set_sync_debug_mode("error")
        reply = engine.train(down, torch.arange(4), 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1 and sorted(reply.part.clients.tolist()) == [0, 1, 2, 3]


@PROTOTYPE
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD()], ids=lambda m: type(m).__name__)
def test_nobody_waits_before_the_servers_half_is_in_the_devices_queue(method, monkeypatch):
    worker = Worker(task(), small(method))
    engine = Vmap().open(worker, shards(), CUDA)
    server, seen = fit.start(worker, engine, 6).server, []
    for r in range(2):  # recorded, and page-locked memory set aside
        server, _, _ = fit.one_round(worker, engine, server, torch.arange(4), r)
    half = type(method).server

    def allowing(self, *args):
        done = half(self, *args)
        seen.append(torch.cuda.get_sync_debug_mode())
        torch.cuda.set_sync_debug_mode("default")
        return done

    monkeypatch.setattr(type(method), "server", allowing)
    engine.expect(torch.arange(1, 5))
    try:
        torch.cuda.set_sync_debug_mode("error")
        fit.one_round(worker, engine, server, torch.arange(4), 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert seen == [2]  # forbidden till then
