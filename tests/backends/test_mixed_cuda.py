"""Federations of several architectures on a GPU: captured rounds and welcomes equal eager ones, and those of the CPU.

With torch, numpy and pytest alone: run pytest with --noconftest and PYTHONPATH=src:tests.
"""

import pytest
import torch

from acclimate.adapters import NoAdapt
from acclimate.adapters.fedtta import FedTTA as Adapt
from acclimate.backends import Serial, Vmap
from acclimate.backends.mixed import MixedEngine
from acclimate.core import Protocol, Task, Worker, fit
from acclimate.methods.heterofedtta import HeteroFedTTA
from support import CLASSES, FEW, MODELS, equal, gap, images, shards

METHOD = HeteroFedTTA(inner_lr=0.3, work=FEW, digest_batch=12)
TEST = shards((9, 12, 5, 8), seed=2)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def trained(backend, device, rounds=3):
    """The state after some rounds of cohorts of four, and what four newcomers get in two looks."""
    public, about = images(20, seed=4)[0], ((3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3)
    models = [MODELS[name] for name in ("cnn-plain", "cnn-group", "mlp-dropout")]
    tasks = [Task(model, *about, public=public) for model in models]
    workers = [Worker(task, METHOD.for_model(i)) for i, task in enumerate(tasks)]
    engine = MixedEngine(workers, lambda n: [c % 3 for c in range(n)], shards(), torch.device(device), backend)
    state, seen = fit.start(engine.worker, engine, 6), []
    for state in fit.rounds(engine.worker, engine, fit.RoundPlan(rounds, 6, 4), shards((5, 9, 6, 0, 8, 7), 1), state):
        models = engine.join(state.server, 4)
        seen.append([engine.serve(models, TEST, a, Protocol(batch=4))["loss"] for a in (NoAdapt(), Adapt())])
    return engine, state, {str(i): torch.stack(s) for i, s in enumerate(seen)}


def test_serial_and_vmap_agree_on_the_cpu():
    (_, a, seen), (_, b, also) = (trained(backend, "cpu", rounds=2) for backend in (Serial(), Vmap(chunk=2)))
    assert gap(a.server, b.server) < 1e-5 and gap(seen, also) < 1e-4


@needs_cuda
def test_captured_equals_eager_to_the_bit():
    engine, a, seen = trained(Vmap(), "cuda")
    assert all(part.engine.recorder.recorded for part in engine.parts), "nothing was captured"
    _, b, also = trained(Vmap(capture=False), "cuda")
    assert equal(a.server, b.server) and equal(a.mine, b.mine) and equal(seen, also)


@needs_cuda
def test_the_gpu_agrees_with_the_cpu():
    _, a, _ = trained(Vmap(precision="fp32"), "cuda", rounds=2)
    _, b, _ = trained(Serial(), "cpu", rounds=2)
    assert gap(a.server["logits"], {k: v.to("cuda") for k, v in b.server["logits"].items()}) < 1e-3
