"""On a GPU: captured rounds equal eager ones to the bit, and the GPU agrees with the CPU.

With torch, numpy and pytest alone: `PYTHONPATH=src:tests python -m pytest --noconftest tests/backends/test_cuda.py`.
"""

import logging
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from acclimate.adapters import MEMO, THE, BNTogether, FedCTTA, FedTSA, Latte, NoAdapt, Tent, Together
from acclimate.backends import Auto, Serial, Vmap
from acclimate.backends.vmap import shelf
from acclimate.backends.vmap.capture import Captured, Recorder
from acclimate.backends.vmap.engine import VmapEngine
from acclimate.backends.vmap.graphs import played
from acclimate.backends.vmap.lanes import Lane
from acclimate.core import SGD, Protocol, Work, Worker, fit, rng, tree
from acclimate.core.nn import kernels
from acclimate.core.nn.conv import PureConv2d
from acclimate.core.nn.layers import purify
from acclimate.core.nn.pool import PureMaxPool2d
from acclimate.eval import tsne
from acclimate.experiment import catalogue
from acclimate.methods import SCAFFOLD, FedAvg, FedProx, FedTHE
from acclimate.ops import augmix_kernel
from acclimate.ops.augmix import augmix
from acclimate.personal import FineTune, NoPersonal
from partners import models, partner, short
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
    for state in fit.rounds(
        worker, engine, fit.RoundPlan(rounds, 6, cohort), shards((5, 9, 6, 0, 8, 7), seed=1), state
    ):
        pass
    return worker, engine, state


ALL = [(name, 4, "cnn-batch") for name in catalogue.METHODS]
SOME = [(name, 6, "mlp-dropout") for name in ("fedavg", "scaffold", "fedthe")]


@pytest.mark.parametrize(("name", "cohort", "model"), ALL + SOME)
def test_captured_equals_eager_to_the_bit(name, cohort, model):
    method = small(catalogue.METHODS[name])
    _, engine, a = train(method, Vmap(), CUDA, model, cohort)
    assert any(key[0][0] == "train" for key in engine.recorder.recorded), "nothing was captured"
    assert not engine.recorder.refused
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
            if adapter.refusal(worker.task, engine.model_of(fast_models, 0)):
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
    assert not any(key[0][0] == "train" for key in engine.recorder.recorded)
    assert len([r for r in caplog.records if "not captured" in r.message]) == 1
    torch.rand(2, device=CUDA)  # the generator is usable again, and so is the next recording
    assert train(FedAvg(work=SMALL), Vmap(), CUDA)[1].recorder.recorded
    _, _, b = train(FedAvg(work=SMALL), Vmap(capture=False), CUDA)
    assert equal(a.server, b.server)


@pytest.mark.parametrize("name", catalogue.ADAPTERS)
def test_no_adapter_is_eager(name, monkeypatch):
    """Captured when it first comes, with the answers of the eager run to the bit."""
    made, begin = [], Recorder.__init__
    monkeypatch.setattr(Recorder, "__init__", lambda self, *a, **k: (made.append(self), begin(self, *a, **k))[1])
    worker, personal = partner(name)
    shelf.forget()  # what an adapter before this one recorded
    found = []
    for capture in (False, True):
        engine = Vmap(capture=capture).open(worker, shards((12, 9, 16)), CUDA)
        live = models(worker, engine, personal)
        found.append(engine.serve(live, shards((5, 9, 8), seed=2), short(name), Protocol(batch=2)))
    assert [why for recorder in made for why in recorder.refused.values()] == []
    assert {key[0][0] for recorder in made for key in recorder.recorded} & {"serve", "train"}
    assert equal(*found)


def test_a_step_is_recorded_once_however_many_there_are():
    made = []
    for epochs in (2, 50):
        worker = Worker(task(), small(FedAvg(), Work(epochs=epochs, batch=8)))
        engine = Vmap().open(worker, shards((16,) * 6), CUDA)
        engine.train(worker.method.download(worker.task, fit.start(worker, engine, 6).server), torch.arange(6), 0)
        (recorded,) = engine.recorder.recorded.values()
        made.append((_graphs(recorded.program), len(list(played(recorded.program)))))
    assert made[0][0] == made[1][0] and made[1][1] > 90


def _graphs(program):
    return sum(_graphs(part[0]) if isinstance(part, tuple) else 1 for part in program)


def test_a_second_run_of_the_process_records_nothing(monkeypatch):
    _, engine, a = train(small(SCAFFOLD()), Vmap(), CUDA, rounds=2)
    monkeypatch.setattr(Captured, "_record", lambda *a: pytest.fail("recorded again"))
    _, again, b = train(small(SCAFFOLD()), Vmap(), CUDA, rounds=2)
    assert again.recorder is engine.recorder and equal(a.server, b.server) and equal(a.mine, b.mine)


def test_uneven_clients_run_side_by_side_with_the_numbers_of_one_after_the_other():
    sizes, found = (200, 90, 60, 41, 33, 12), []
    for options in (Vmap(), Vmap(capture=False)):
        worker = Worker(task(), small(SCAFFOLD()))
        engine = options.open(worker, shards(sizes), CUDA)
        state = fit.start(worker, engine, 6)
        for state in fit.rounds(worker, engine, fit.RoundPlan(4, 6, 6), shards((5, 9, 6, 0, 8, 7), seed=1), state):
            pass
        found.append((state, engine))
    (a, engine), (b, _) = found
    assert len({key[2] for key in engine.recorder.recorded}) > 1, "all in one slot"
    assert equal(a.server, b.server) and equal(a.mine, b.mine)


@pytest.mark.parametrize(
    "methods",
    [
        [FedAvg(opt=SGD(lr=lr)) for lr in (0.01, 0.1, 0.3)],
        [FedProx(mu=mu) for mu in (0.01, 2.0)],
        [SCAFFOLD(opt=SGD(lr=lr)) for lr in (0.02, 0.1)],
    ],
    ids=["fedavg-lr", "fedprox-mu", "scaffold-lr"],
)
def test_a_sweep_trains_together_with_the_numbers_of_separate_runs(methods):
    lanes = [Lane(Worker(task(), small(m)), shards()) for m in methods]
    workers, engine = [lane.worker for lane in lanes], Vmap().open_lanes(lanes, CUDA)
    val, states = shards((5, 9, 6, 0, 8, 7), seed=1), fit.start_together(workers, engine, 6)
    for states in fit.rounds_together(workers, engine, fit.RoundPlan(3, 6, 4), [val] * len(lanes), states):
        pass
    assert engine.recorder.recorded and not engine.recorder.refused
    for method, state in zip(methods, states, strict=True):
        _, _, alone = train(small(method), Vmap(), CUDA)
        assert gap(state.server, alone.server) < 1e-5 and gap(state.mine, alone.mine) < 1e-5


def test_what_is_sent_from_files_and_host_memory_trains_the_same(tmp_path):
    far = Vmap(chunk=2, private="mapped", examples="host", folder=str(tmp_path))
    _, engine, a = train(small(SCAFFOLD()), far, CUDA)
    assert engine.feeder.serves(engine.mine)
    _, _, b = train(small(SCAFFOLD()), Vmap(chunk=2), CUDA)
    assert equal(a.server, b.server)
    assert equal(a.mine.take(torch.arange(6)), b.mine)


needs_triton = pytest.mark.skipif(
    not kernels.AVAILABLE, reason="needs Triton 3.6 or newer, which CUDA builds of torch have"
)
LAYERS = [(3, 8, 5, 1, 0), (16, 20, 3, 1, 1), (17, 4, 3, 2, 1), (4, 5, 3, 2, 1), (40, 7, 1, 2, 0), (64, 64, 3, 1, 1)]


@needs_triton
@pytest.mark.parametrize("case", LAYERS)
def test_convolutions_per_client_are_those_of_a_loop(case):
    i, o, k, step, pad = case
    g = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(3, 5, i, 11, 12, device=CUDA, generator=g)
    w = torch.randn(3, o, i, k, k, device=CUDA, generator=g) / (i * k * k) ** 0.5
    layer = PureConv2d(i, o, k, stride=step, padding=pad, bias=False)

    def loss(conv):
        return lambda x, w: conv(x, w).sin().sum()

    ours = vmap(grad(loss(lambda x, w: layer._conv_forward(x, w, None)), (0, 1)))(x, w)
    plain = grad(loss(lambda x, w: torch.nn.functional.conv2d(x, w, None, step, pad)), (0, 1))
    for c in range(3):
        for mine, theirs in zip(ours, plain(x[c], w[c]), strict=True):
            torch.testing.assert_close(mine[c], theirs, rtol=1e-3, atol=1e-3)


@needs_triton
@pytest.mark.parametrize("shape", [(3, 4, 5, 8, 8), (2, 3, 4, 7, 9)])
def test_pooling_per_client_is_torchs(shape):
    x = torch.randn(*shape).to(CUDA)
    layer = PureMaxPool2d(2)
    ours = vmap(grad(lambda x: layer(x).sin().sum()))(x)
    assert torch.equal(vmap(layer)(x), torch.stack([torch.nn.functional.max_pool2d(t, 2) for t in x]))
    plain = torch.stack([grad(lambda x: torch.nn.functional.max_pool2d(x, 2).sin().sum())(t) for t in x])
    torch.testing.assert_close(ours, plain)


def test_random_numbers_are_the_cpus():
    assert torch.equal(rng.bits(rng.key(3, "cuda"), 5000).cpu(), rng.bits(rng.key(3), 5000))
    keys = rng.fold(rng.key(1, "cuda"), "a", torch.arange(9, device=CUDA))
    assert torch.equal(vmap(lambda k: rng.uniform(k, 4))(keys).cpu()[2], rng.uniform(rng.fold(rng.key(1), "a", 2), 4))


@pytest.mark.parametrize("method", [FedAvg(private=("head",)), SCAFFOLD(), FedTHE()], ids=lambda m: type(m).__name__)
def test_seeds_trained_together_are_those_trained_alone(method):
    method, val = small(method), shards((5, 9, 6, 0, 8, 7), seed=1)
    lanes = [Lane(Worker(task(), method, seed=s), shards(seed=s)) for s in (0, 3)]
    workers, engine = [lane.worker for lane in lanes], Vmap().open_lanes(lanes, CUDA)
    states = fit.start_together(workers, engine, 6)
    for states in fit.rounds_together(workers, engine, fit.RoundPlan(2, 6, 4), [val, val], states):
        pass
    for lane, state in zip(lanes, states, strict=True):
        engine = Vmap().open(lane.worker, lane.train, CUDA)
        alone = fit.start(lane.worker, engine, 6)
        for alone in fit.rounds(lane.worker, engine, fit.RoundPlan(2, 6, 4), val, alone):
            pass
        assert gap(state.server, alone.server) < 1e-5 and gap(state.mine, alone.mine) < 1e-5


@pytest.mark.parametrize("adapter", [NoAdapt(), THE(), Tent(), MEMO(views=2, steps=1)], ids=lambda a: type(a).__name__)
def test_tests_that_come_again_are_captured_and_answer_the_same(adapter):
    _, engine, state = train(small(FedTHE()), Vmap(), CUDA, rounds=1)
    models = [engine.deploy(state.server, state.mine, FineTune(work=SMALL)) for _ in range(3)]
    assert equal(models[0], models[2])
    served = [engine.serve(models[0], shards(seed=2), adapter, Protocol(4)) for _ in range(3)]
    assert {key[0][0] for key in engine.recorder.recorded} == {"train", "deploy", "serve"}
    assert gap(served[0], served[2]) < 1e-6


@pytest.mark.parametrize(
    "adapter",
    [
        Together(),
        Together(weights="uniform", every=2),
        FedCTTA(),
        Latte(neighbours=2),
        FedTSA(steps=3),
        BNTogether(),
        BNTogether(weights="uniform"),
    ],
)
def test_an_exchange_is_captured_once_for_all_stretches_and_equals_the_eager_one(adapter, monkeypatch):
    opened, begin = [], VmapEngine.__init__
    monkeypatch.setattr(VmapEngine, "__init__", lambda self, *a: (opened.append(self), begin(self, *a))[1])
    worker, engine, state = train(FedAvg(work=SMALL), Vmap(), CUDA, rounds=1)

    def served(backend, device):
        other = backend.open(worker, shards(), torch.device(device))
        models = other.deploy(tree.to(state.server, device), other.mine, NoPersonal())
        return other.serve(models, shards((64,) * 6, seed=2), adapter, Protocol(batch=8))

    captured = served(Vmap(), CUDA)
    sends = opened[-2]  # the last one is for clients that do not send
    assert len(sends.recorder.recorded) == 2, "one for the first stretch, which receives nothing, one for all others"
    assert equal(captured, served(Vmap(capture=False), CUDA))
    assert gap(captured, served(Serial(), "cpu")) < 1e-4


def test_traces_and_maps_work_on_the_gpu():
    _, engine, state = train(small(FedTHE()), Vmap(), CUDA, rounds=1)
    models = engine.deploy(state.server, state.mine, NoPersonal())
    told = engine.serve(models, shards(seed=2), THE(), Protocol(4), trace=True)["trace"]
    assert told["personal_weight"].shape[:2] == (6, 40)
    assert tsne.embed(torch.randn(40, 8).to(CUDA)).isfinite().all()


@needs_triton
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_the_kernel_of_augmix_gives_the_views_of_torch_code(shape, monkeypatch):
    g = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randint(0, 256, (40, *shape), device=CUDA, dtype=torch.uint8, generator=g)
    keys = rng.rows(rng.key(3, device=CUDA), 40)

    def views(x, key):
        return augmix(x, key, views=16, severity=3.0)

    ours = vmap(views)(x, keys)
    assert torch.equal(ours[0], views(x[0], keys[0]))
    monkeypatch.setattr(augmix_kernel, "usable", lambda base: False)
    off = (ours - vmap(views)(x, keys)).abs()
    assert off.max() * 255 < 2 and (off > 1e-5).float().mean() < 1e-3  # a warp may round to the next level


def test_batch_norm_of_many_views_with_one_weight_is_that_of_each():
    """cuDNN refused what `vmap` maps over while the weight is no client's own (MBSL's views in a plain loop)."""
    layer = nn.BatchNorm2d(4).cuda()
    purify(layer)
    layer.follows = False
    x = torch.randn(3, 5, 4, 6, 6, device="cuda")
    found = vmap(layer)(x)
    assert torch.allclose(found, torch.stack([layer(one) for one in x]), atol=1e-5)
