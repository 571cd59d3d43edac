"""The network for texts: roles, padding, many clients at once, and what it refuses."""

import pytest
import torch
from torch.func import grad

from acclimate.core import Task, rng, tree
from acclimate.models import TextNet
from mapped import each_is_alone

X = torch.tensor([[5, 7, 9, 2, 0, 0], [3, 3, 8, 1, 4, 6], [9, 0, 0, 0, 0, 0]])
Y = torch.tensor([0, 1, 2])


def task(norm="layer", length=6, **more):
    return Task(TextNet(tokens=10, dim=4, norm=norm, **more), (length,), 3, tokens=10)


@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
def test_roles_are_head_norm_and_body(norm):
    t = task(norm)
    assert t.head == {"head.weight", "head.bias"} and t.dim == 4
    affine = {n for n in t.norm if n.endswith(("weight", "bias"))}
    layers = ("blocks.0.norm", "blocks.1.norm", "norm")
    assert affine == ({f"{n}.{p}" for n in layers for p in ("weight", "bias")} if norm != "none" else set())
    assert t.has_batch_norm == (norm == "batch") and not t.has_convolution and not t.dropout_keys


def test_padding_counts_nowhere():
    t, longer = task(), task(length=9)
    vars = t.init(rng.key(0))
    wide = torch.nn.functional.pad(X, (0, 3))
    assert torch.allclose(t.apply(vars, X).logits, longer.apply(vars, wide).logits, atol=1e-6)
    other = tree.map(torch.clone, vars)
    other["params"]["embedding.weight"][0] += 100.0
    assert torch.equal(t.apply(vars, X).logits, t.apply(other, X).logits)


def test_a_window_is_seen_and_no_more():
    t = task(layers=1, window=3)
    vars, one, far = t.init(rng.key(0)), X[:1].clone(), X[:1].clone()
    before = t.apply(vars, one).features
    assert not torch.equal(t.apply(vars, torch.tensor([[7, 5, 9, 2, 0, 0]])).features, before)  # the order counts
    w, b = vars["params"]["blocks.0.look.weight"], vars["params"]["blocks.0.look.bias"]
    e = vars["params"]["embedding.weight"][far[0, :4]]
    seen = torch.relu(torch.nn.functional.layer_norm(e, (4,)))
    edge = torch.zeros(1, 4)
    near = torch.cat((torch.cat((edge, seen[:-1])), seen, torch.cat((seen[1:], edge))), 1)
    largest = torch.relu(e + near @ w.T + b).amax(0)
    assert torch.allclose(torch.nn.functional.layer_norm(largest, (4,)), before[0], atol=1e-5)


@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
def test_many_clients_at_once_are_each_alone(norm):
    slope, vars, keys = each_is_alone(task(norm), X, Y)
    second = grad(lambda p: sum(g.square().sum() for g in slope(p, X, Y, keys[0]).values()))(vars["params"])
    assert bool(torch.isfinite(second["embedding.weight"]).all()) and float(second["head.weight"].abs().sum()) > 0


def test_what_it_cannot_read_is_refused():
    with pytest.raises(ValueError, match=r"tokens=10 is too few: the data has ids up to 11; set model.tokens=12"):
        Task(TextNet(tokens=10), (6,), 3, tokens=12)
    with pytest.raises(ValueError, match=r"needs token ids \[length\], as data=text gives, got inputs of shape \(3, 8"):
        Task(TextNet(), (3, 8, 8), 3)
    with pytest.raises(ValueError, match=r"needs token ids \(whole numbers\), and these inputs are numbers"):
        Task(TextNet(), (6,), 3)
    with pytest.raises(ValueError, match="window=4 must be odd"):
        TextNet(window=4)


def test_a_live_model_knows_all_ids_of_its_embedding():
    assert Task(TextNet(), (6,), 3, tokens=100).vocabulary == 257
