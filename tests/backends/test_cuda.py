"""On a GPU: captured rounds equal eager ones to the bit, and the GPU agrees with the CPU.

With torch, numpy and pytest alone: `PYTHONPATH=src:tests python -m pytest --noconftest tests/backends/test_cuda.py`.
"""

import logging
from dataclasses import dataclass

import pytest
import torch

from acclimate import catalogue
from acclimate.backends import Auto, Serial, Vmap
from acclimate.core import fit, tree
from acclimate.core.stream import Protocol
from acclimate.core.worker import Worker
from acclimate.methods import FedAvg
from acclimate.personal import FineTune, NoPersonal
from support import SMALL, equal, gap, shards, small, task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def train(method, backend, device, model="cnn-batch", cohort=4, rounds=3):
    worker = Worker(task(model), method)
    engine = backend.open(worker, shards(), torch.device(device))
    state = fit.start(worker, engine, 6)
    for state in fit.rounds(worker, engine, fit.Schedule(rounds, 6, cohort), shards((5, 9, 6, 0, 8, 7), seed=1), state):
        pass
    return worker, engine, state


@pytest.mark.parametrize("model", ["cnn-batch", "mlp-dropout"])
@pytest.mark.parametrize("cohort", [4, 6])
@pytest.mark.parametrize("name", catalogue.METHODS)
def test_captured_equals_eager_to_the_bit(name, cohort, model):
    method = small(catalogue.METHODS[name])
    _, engine, a = train(method, Vmap(), CUDA, model, cohort)
    assert engine._recorded, "nothing was captured"
    _, _, b = train(method, Vmap(capture=False), CUDA, model, cohort)
    assert equal(a.server, b.server)
    assert equal(a.mine, b.mine)


@pytest.mark.parametrize("name", catalogue.METHODS)
def test_gpu_agrees_with_the_cpu(name):
    method = small(catalogue.METHODS[name])
    _, _, gpu = train(method, Auto(), CUDA)
    _, _, cpu = train(method, Serial(), "cpu")
    assert gap(tree.to(gpu.server, "cpu"), cpu.server) < 1e-4
    assert gap(tree.to(gpu.mine, "cpu"), cpu.mine) < 1e-4


def test_every_adapter_and_personaliser_runs_on_the_gpu():
    worker, engine, state = train(FedAvg(work=SMALL), Vmap(), CUDA)
    _, slow, _ = train(FedAvg(work=SMALL), Serial(), CUDA)
    down, test = worker.method.download(worker.task, state.server), shards((9, 12, 0, 8, 5, 8), seed=2)
    for personal in (NoPersonal(), FineTune(work=SMALL)):
        fast_models, slow_models = (e.deploy(down, state.mine, personal) for e in (engine, slow))
        for adapter in catalogue.ADAPTERS.values():
            if adapter.refusal(worker.task, engine.live(fast_models, 0)):
                continue
            a = engine.serve(fast_models, test, adapter, Protocol(batch=4))
            b = slow.serve(slow_models, test, adapter, Protocol(batch=4))
            torch.testing.assert_close(a["loss"], b["loss"], rtol=1e-3, atol=1e-3)


@dataclass(frozen=True)
class Syncing(FedAvg):
    """Asks the device for a number in mid-round, which no capture allows."""

    def client(self, task, down, mine, data, key):
        up, mine = super().client(task, down, mine, data, key)
        torch.zeros(1, device=data["n"].device).item()
        return up, mine


def test_what_cannot_be_captured_runs_eagerly_with_one_reason(caplog):
    with caplog.at_level(logging.WARNING, logger="acclimate"):
        _, engine, a = train(Syncing(work=SMALL), Vmap(), CUDA)
    assert not engine._recorded
    assert len([r for r in caplog.records if "not captured" in r.message]) == 1
    _, _, b = train(FedAvg(work=SMALL), Vmap(capture=False), CUDA)
    assert equal(a.server, b.server)


def test_memory_that_runs_out_halves_the_chunk(monkeypatch, caplog):
    worker = Worker(task(), FedAvg(work=SMALL))
    engine = Vmap(capture=False).open(worker, shards(), CUDA)
    real, asked = engine._run, []

    def tight(f, inputs, ragged):
        asked.append(len(inputs[2]["id"]))
        if asked[-1] > 1:
            raise torch.cuda.OutOfMemoryError("pretend")
        return real(f, inputs, ragged)

    monkeypatch.setattr(engine, "_run", tight)
    state = fit.start(worker, engine, 6)
    server, _, _ = fit.one_round(worker, engine, state.server, torch.arange(6), 0)
    assert asked[-1] == 1
    assert (
        gap(
            tree.to(server, "cpu"),
            tree.to(train(FedAvg(work=SMALL), Serial(), CUDA, cohort=6, rounds=1)[2].server, "cpu"),
        )
        < 1e-5
    )
