"""FedDPA, DPA and THE over two LoRAs: the equations against loops written out here."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters import DPA, THE, NoAdapt, THELoRA
from acclimate.core import SGD, Protocol, Task, Work, Worker, fit, rng, tree
from acclimate.methods import FedAvg, FedDPA, FedDPATHE
from acclimate.models import MLP, LoRA, ViT
from acclimate.ops import pairs
from acclimate.personal import NoPersonal
from support import BACKENDS, CLASSES, client_data, equal, gap, images, shards

TINY = ViT(patch=5, width=8, depth=1, heads=2, mlp_ratio=1.0)
WORK = Work(epochs=1, batch=8)
METHOD = FedDPATHE(work=WORK, local_work=WORK)


def task(private=2, base=TINY):
    return Task(LoRA(base, rank=3, private=private), (3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3)


def fitted(method, t, backend="serial", rounds=2):
    data = shards((24, 16, 9))
    worker = Worker(t, method, seed=0)
    engine = BACKENDS[backend].open(worker, data, torch.device("cpu"))
    state = fit.start(worker, engine, 3)
    for state in fit.rounds(worker, engine, fit.RoundPlan(rounds, 3, 3), shards((5, 6, 4), seed=1), state):
        pass
    return worker, engine, state


@cache
def trained():
    """A worker and client 1's live model, which no test changes."""
    worker, engine, state = fitted(METHOD, task())
    return worker, engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())[1]


def written_out(model, x, share):
    """The logits of one sample, each layer by hand: W h + (1 - share) c B_s A_s h + share c B_l A_l h."""
    hidden = torch.tensor(x).flatten() if not isinstance(x, torch.Tensor) else x.flatten()
    p, frozen = model["vars"]["params"], written_out.trunk
    for i in (0, 2):
        shared, local = ([p[f"trunk.body.{i}.{pair}.{m}"] for m in "ab"] for pair in ("shared", "local"))
        add = (1 - share) * (8.0 / 3) * shared[1] @ (shared[0] @ hidden)
        add = add + share * (8.0 / 2) * local[1] @ (local[0] @ hidden)
        hidden = (frozen[f"body.{i}.weight"] @ hidden + frozen[f"body.{i}.bias"] + add).relu()
    return p["trunk.head.weight"] @ hidden + p["trunk.head.bias"], hidden


def test_dpa_weighs_every_sample_as_written_out():
    t = task(base=MLP(hidden=(6, 7)))
    worker, engine, state = fitted(FedDPA(work=WORK, local_work=WORK, anchors=4), t)
    model = engine.deploy(worker.method.download(t, state.server), state.mine, NoPersonal())[0]
    from acclimate.models.lora import trunk

    written_out.trunk = trunk(MLP(hidden=(6, 7)), (3, 10, 10), CLASSES).tensors
    x = images(6, seed=5)[0]
    logits, _, trace = DPA(scale=0.8).trace(t, worker.predict(), model, {}, x, rng.key(0))
    weights = []
    for i, pixels in enumerate(t.normalise(x)):
        feature = written_out(model, pixels, 1.0)[1]
        alike = sum(float(F.cosine_similarity(feature, a, dim=0)) for a in model["anchors"]) / 4
        weights.append(0.8 * max(alike, 0.0))
        torch.testing.assert_close(logits[i], written_out(model, pixels, weights[-1])[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trace["personal_weight"], torch.tensor(weights), rtol=1e-4, atol=1e-5)
    assert max(weights) - min(weights) > 1e-4  # the weight really is the sample's own
    halves = torch.stack([written_out(model, pixels, 0.5)[0] for pixels in t.normalise(x)])
    torch.testing.assert_close(worker.predict()(model, x).logits, halves, rtol=1e-4, atol=1e-5)


def test_with_one_lora_it_is_fedavg():
    t = task(private=0)
    ours, plain = (fitted(m, t)[2] for m in (FedDPA(work=WORK), FedAvg(work=WORK)))
    assert equal(ours.server["vars"], plain.server["vars"])
    assert tree.numel(ours.mine) == 0


@pytest.mark.parametrize("base", [MLP(hidden=(6, 7)), TINY], ids=["mlp", "vit"])
def test_the_shared_half_is_fedavg_whatever_the_local_pairs_are(base):
    t, one, own = task(base=base), task(0, base), client_data(shards(), 0)
    down, mine = METHOD.init_server(t, 3, rng.key(0)), METHOD.init_mine(t, rng.key(0))

    def sent(local):
        wild = {**mine, "local": tree.map(lambda p: torch.full_like(p, local), mine["local"])}
        return METHOD.client(t, down, wild, own, rng.key(1))[0]

    up, other = sent(3.0), sent(-7.0)
    plain, _ = FedAvg(work=WORK).client(one, {"vars": down["vars"]}, {}, own, rng.key(1))
    assert equal(up["delta"], other["delta"])
    # not to the bit on every processor: torch may round products of six ranks otherwise than of three
    torch.testing.assert_close(up["delta"], plain["delta"], rtol=1e-5, atol=1e-7)
    assert not any(".local." in n for n in up["delta"]["params"])


def test_local_pairs_walk_down_the_gradient_of_the_half_mixture():
    t, own = task(), client_data(shards(), 0)
    method = FedDPA(local_work=Work(iterations=1, batch=8), local_opt=SGD(lr=0.1))
    down, mine = method.init_server(t, 3, rng.key(0)), method.init_mine(t, rng.key(0))
    mine = {**mine, "local": tree.map(lambda p: p + 0.1, mine["local"])}
    new = method.finish_personal(t, down, mine, own, rng.key(7))
    positions, _ = method.local_work.plan(own, rng.fold(rng.key(7), "plan"))
    rows = own["rows"][positions[0]]
    params = {n: p.clone().requires_grad_() for n, p in mine["local"].items()}
    both = {**down["vars"]["params"], **params}
    halved = {n: p / 2 if n.endswith((".shared.b", ".local.b")) else p for n, p in both.items()}
    logits = t.apply({"params": halved, "buffers": {}}, own["x"][rows]).logits
    F.cross_entropy(logits, own["y"][rows]).backward()
    expected = {n: p.detach() - 0.1 * p.grad for n, p in params.items()}
    assert gap(new["local"], expected) < 1e-6 < gap(new["local"], mine["local"])
    assert float(new["seen"]) == 1.0
    alone = {n: p * float(not n.endswith(".shared.b")) for n, p in {**both, **new["local"]}.items()}
    features = t.apply({"params": alone, "buffers": {}}, own["x"][own["rows"]]).features.detach()
    assert all(min(float((a - f).norm()) for f in features) < 1e-5 for a in new["anchors"])  # its own examples


@pytest.mark.parametrize("when", ["rounds", "end"])
def test_who_never_trained_answers_with_the_shared_pairs(when):
    t = task()
    method = replace(METHOD, when=when)
    down, mine = method.init_server(t, 3, rng.key(0)), method.init_mine(t, rng.key(0))
    x = images(4)[0]
    newcomer = method.deploy(t, down, {**mine, "local": tree.map(torch.ones_like, mine["local"])})
    shared = t.apply(pairs.mixed(newcomer["vars"], 0.0), x).logits
    torch.testing.assert_close(method.predict(t, newcomer, x).logits, shared)
    worker = Worker(t, method)
    torch.testing.assert_close(DPA().step(t, worker.predict(), newcomer, {}, x, rng.key(0))[0], shared)
    _, after = method.client(t, down, mine, client_data(shards(), 0), rng.key(1))
    assert float(after["seen"]) == (1.0 if when == "rounds" else 0.0)
    assert float(method.finish_personal(t, down, after, client_data(shards(), 0), rng.key(1))["seen"]) == 1.0


def test_the_lora_is_the_of_both_answers():
    worker, model = trained()
    x, adapter = images(7, seed=4)[0], THELoRA(steps=5)
    state = adapter.init(worker.task, model)
    shared = worker.predict()({**model, "share": torch.zeros(())}, x)
    half = worker.predict()({**model, "share": torch.tensor(0.5)}, x)
    e, _ = THE(steps=5).weigh(model, state, shared.features, shared.logits, half.logits)
    logits, _ = adapter.step(worker.task, worker.predict(), model, state, x, rng.key(0))
    torch.testing.assert_close(logits, e * shared.logits + (1 - e) * half.logits)
    assert gap(shared.logits, half.logits) > 1e-4 and float(e.std()) > 1e-6


def test_serial_and_vmap_agree_and_send_no_trunk():
    runs = [fitted(METHOD, task(), backend) for backend in ("serial", "vmap")]
    assert gap(*(r[2].server for r in runs)) < 1e-4
    scores = []
    for worker, engine, state in runs:
        models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())
        for adapter in (NoAdapt(), DPA(), THELoRA(steps=3)):
            scores.append(engine.serve(models, shards((5, 6, 4), seed=2), adapter, Protocol(4))["loss"])
    for serial, vmapped in zip(scores[:3], scores[3:], strict=True):
        torch.testing.assert_close(serial, vmapped, rtol=1e-3, atol=1e-4)
    sent = {p["name"] for p in runs[0][2].cost["message"]}
    assert any("shared.a" in n for n in sent) and not any(".local." in n or "norm" in n for n in sent)


def test_models_without_pairs_are_refused_by_name():
    t = task(private=0)
    model = {"vars": t.init(rng.key(0))}
    assert "needs share, anchors" in DPA().refusal(t, model)
    assert "needs share, descriptors" in THELoRA().refusal(t, model)
