"""Per-FedAvg's equalities, worked out by hand or by autograd's own double backward."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from acclimate.core import SGD, Task, Work, rng, tree
from acclimate.core.local import batch_of
from acclimate.methods import FedAvg
from acclimate.methods.perfedavg import PerFedAvg
from support import SMALL, client_data, equal, fitted, gap, images, shards, task

KEY = rng.key(5)


def squares(vars, batch, key):
    """Half the mean squared error of the one-weight model: gradient w a - b, Hessian a."""
    wrong = vars["params"]["w"] * batch["x"] - batch["y"]
    return 0.5 * (wrong**2).mean(), {}


def labelled(count: int, seed: int = 0) -> tree.Tree:
    x, y = images(count, seed)
    return {"x": x.double() / 255.0, "y": y}


def double(vars: tree.Tree) -> tree.Tree:
    return tree.map(lambda v: v.double(), vars)


def by_autograd(t: Task, vars: tree.Tree, batch: tree.Tree, size: int, alpha: float) -> tree.Tree:
    """(I - alpha H(w, D'')) g(w~, D') with modules' own backward, step by step as Algorithm 1 writes it."""
    w = {k: v.clone().requires_grad_() for k, v in vars["params"].items()}
    parts = [{k: v[i * size : (i + 1) * size] for k, v in batch.items()} for i in range(3)]

    def gradient(params, part, **options):
        ce = F.cross_entropy(t.apply({**vars, "params": params}, part["x"]).logits, part["y"])
        return torch.autograd.grad(ce, list(params.values()), **options)

    stepped = [p - alpha * g for p, g in zip(w.values(), gradient(w, parts[0]), strict=True)]
    stepped = {k: p.detach().requires_grad_() for k, p in zip(w, stepped, strict=True)}
    v = gradient(stepped, parts[1])
    at_w = gradient(w, parts[2], create_graph=True)
    product = torch.autograd.grad(at_w, list(w.values()), grad_outputs=v)
    return {k: a - alpha * h for k, a, h in zip(w, v, product, strict=True)}


def meta_gradient(method: PerFedAvg, loss, vars: tree.Tree, batch: tree.Tree) -> tree.Tree:
    return grad(lambda p: method.objective(loss)({**vars, "params": p}, batch, KEY)[0])(vars["params"])


def test_a_quadratic_by_hand():
    # D: x = 1, y = 3, so g(w) = w - 3;  D': x = 2, y = 2, so g(w) = 4 w - 4;  D'': x = 3, so H = 9.
    batch = {"x": torch.tensor([1.0, 2.0, 3.0]), "y": torch.tensor([3.0, 2.0, 7.0])}
    vars = {"params": {"w": torch.tensor(1.0)}, "buffers": {}}
    method = PerFedAvg(alpha=0.1, work=Work(batch=1))
    # w~ = 1 - 0.1 (1 - 3) = 1.2;  g(w~, D') = 0.8;  (1 - 0.1 * 9) 0.8 = 0.08, and 0.8 without the Hessian
    assert meta_gradient(method, squares, vars, batch)["w"] == pytest.approx(0.08, abs=1e-6)
    first = replace(method, order="first")
    assert meta_gradient(first, squares, vars, batch)["w"] == pytest.approx(0.8, abs=1e-6)
    assert method.objective(squares)(vars, batch, KEY)[0] == pytest.approx(0.5 * (1.2 * 2 - 2) ** 2, abs=1e-6)


@pytest.mark.parametrize("model", ["cnn-plain", "cnn-group"])
def test_the_second_order_gradient_is_that_of_a_double_backward(model):
    t, size, alpha = task(model), 6, 0.3
    vars, batch = double(t.init(rng.key(0))), labelled(3 * size)
    method = PerFedAvg(alpha=alpha, work=Work(batch=size))
    ours = meta_gradient(method, t.loss, vars, batch)
    assert gap(ours, by_autograd(t, vars, batch, size, alpha)) < 1e-6
    first = meta_gradient(replace(method, order="first"), t.loss, vars, batch)
    assert gap(ours, first) > 1e-3  # the Hessian matters here


def test_clients_can_be_vectorised_through_the_second_order():
    t, size = task("cnn-plain"), 4
    method = PerFedAvg(alpha=0.3, work=Work(batch=size))
    starts, batches = [double(t.init(rng.key(s))) for s in (1, 2)], [labelled(3 * size, s) for s in (1, 2)]
    one_by_one = [meta_gradient(method, t.loss, v, b) for v, b in zip(starts, batches, strict=True)]
    together = vmap(lambda v, b: meta_gradient(method, t.loss, v, b))(tree.stack(starts), tree.stack(batches))
    assert gap(together, tree.stack(one_by_one)) < 1e-10


@pytest.mark.parametrize("order", ["first", "second"])
def test_without_an_inner_step_it_walks_down_fedavgs_gradient(order):
    t, own, lr = task("cnn-batch"), client_data(shards(), 0), 0.1
    start, key = t.init(rng.key(0)), rng.key(9)
    method = PerFedAvg(alpha=0.0, order=order, opt=SGD(lr=lr), work=Work(iterations=1, batch=6))
    up, mine = method.client(t, {"vars": start}, {}, own, key)
    drawn = Work(iterations=1, batch=18 if order == "second" else 12).plan(own, rng.fold(key, "plan"))[0][0]
    outer = batch_of(own, drawn[6:12])
    g, buffers = grad(lambda p: t.loss({**start, "params": p}, outer, key), has_aux=True)(start["params"])
    assert gap(up["delta"]["params"], tree.scale(g, -lr)) < 1e-6
    assert gap(up["delta"]["buffers"], tree.sub(buffers, start["buffers"])) < 1e-6
    assert mine == {}


@pytest.mark.parametrize("model", ["mlp-dropout", "cnn-batch"])
def test_serial_and_vmap_agree_on_uneven_clients(model):
    a, b = (fitted(PerFedAvg(work=SMALL), backend, model, rounds=2) for backend in ("serial", "vmap"))
    assert gap(a[2].server, b[2].server) < 1e-5
    assert a[2].history[-1]["val_accuracy"] == pytest.approx(b[2].history[-1]["val_accuracy"], abs=1e-6)


def test_the_live_model_is_some_inner_steps_from_the_shared_one():
    t, own = task("cnn-batch"), client_data(shards(), 1)
    down, method = {"vars": t.init(rng.key(0))}, PerFedAvg(alpha=0.1, steps=3, work=SMALL)
    live = method.deploy(t, down, method.finish_personal(t, down, {}, own, KEY))["vars"]
    tuned = FedAvg(opt=SGD(lr=0.1), work=Work(iterations=3, batch=8)).client(t, down, {}, own, KEY)[0]["delta"]
    assert gap(live, tree.add(down["vars"], tuned)) < 1e-6
    for unmoved in (replace(method, steps=0), replace(method, alpha=0.0)):
        assert equal(unmoved.deploy(t, down, unmoved.finish_personal(t, down, {}, own, KEY))["vars"], down["vars"])
    assert equal(method.deploy(t, down, {})["vars"], down["vars"])  # a newcomer without labels


@pytest.mark.parametrize(("field", "value"), [("alpha", -0.1), ("order", "third"), ("steps", -1)])
def test_fields_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=f"PerFedAvg: {field}={value!r}"):
        PerFedAvg(**{field: value})
