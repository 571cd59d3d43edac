"""LoRA: equalities with its base, a trunk that clients share, and what is refused."""

import math
import os
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from acclimate.backends import Vmap
from acclimate.core import Task, Work, Worker, fit, rng, tree
from acclimate.methods import FedAvg
from acclimate.models import CNN, MLP, LoRA, Prompts, ViT, low_rank
from acclimate.models.lora import LOCAL, merged, trunk
from support import CLASSES, shards

TINY = ViT(patch=5, width=8, depth=2, heads=2, mlp_ratio=2.0)
SHAPE = (3, 10, 10)


def task(spec):
    return Task(spec, SHAPE, CLASSES)


def noisy(vars, scale=0.3):
    g = torch.Generator().manual_seed(0)
    return tree.map(lambda p: p + scale * torch.randn(p.shape, generator=g), vars)


@pytest.mark.parametrize("base", [TINY, MLP(hidden=(9, 7)), CNN(widths=(3, 4), hidden=8, kernel=3, norm="batch")])
def test_zero_b_is_the_base_to_the_bit_and_merged_is_unmerged(base):
    t = task(LoRA(base, rank=2, private=1))
    vars, x = t.init(rng.key(1)), torch.rand(4, *SHAPE)
    plain, same = merged(t, vars)
    frozen = trunk(base, SHAPE, CLASSES).tensors
    assert all(torch.equal(same["params"][n], frozen[n]) for n in same["params"] if "head" not in n)
    assert torch.equal(plain.apply(same, x).logits, t.apply(vars, x).logits)
    moved = noisy(vars) if not vars["buffers"] else {**vars, "params": noisy(vars["params"])}
    plain, added = merged(t, moved)
    assert float((plain.apply(added, x).logits - t.apply(vars, x).logits).abs().max()) > 1e-2
    torch.testing.assert_close(plain.apply(added, x).logits, t.apply(moved, x).logits, rtol=1e-5, atol=1e-5)


@dataclass(frozen=True)
class Mirror:
    """Two layers that share a weight, and one that is there under two names."""

    def build(self, shape, num_classes):
        return _Mirror(math.prod(shape), num_classes)


class _Mirror(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.there, self.back, self.again = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.back.weight, self.other = self.there.weight, self.again
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        features = self.other(self.again(self.back(self.there(x.flatten(1)).tanh()).tanh()).tanh()).tanh()
        return features, self.head(features)


@pytest.mark.parametrize(("target", "twin"), [("there", "back"), ("back", "there")])
def test_tied_weights_of_the_base_are_frozen_under_all_their_names(target, twin):
    t = task(LoRA(Mirror(), rank=2, targets=(target,)))
    vars, x = t.init(rng.key(0)), torch.rand(4, *SHAPE)
    assert sorted(n for n in t.params if "shared" not in n) == ["trunk.head.bias", "trunk.head.weight"]
    full = trunk(Mirror(), SHAPE, CLASSES).tensors
    plain = _Mirror(math.prod(SHAPE), CLASSES)
    plain.load_state_dict({**full, **{f"head.{p}": vars["params"][f"trunk.head.{p}"] for p in ("weight", "bias")}})
    torch.testing.assert_close(t.apply(vars, x).logits, plain(x)[1])
    with pytest.raises(
        ValueError, match=f"'{target}.weight' is one weight with '{twin}.weight'.* out of LoRA's targets"
    ):
        merged(t, vars)


@pytest.mark.parametrize("spec", [LoRA(TINY, train=("norm",)), LoRA(TINY, train=()), Prompts(TINY, train=("norm",))])
def test_a_head_that_nobody_trains_is_refused(spec):
    with pytest.raises(ValueError, match=r"train=\(.*\) leaves out the head, which clients train at least; add head"):
        task(spec)


def test_a_layer_gives_what_the_paper_says():
    t = task(LoRA(MLP(hidden=(6,)), rank=3, alpha=12.0, targets=("body.0",)))
    vars = noisy(t.init(rng.key(0)))
    p, frozen, x = vars["params"], trunk(MLP(hidden=(6,)), SHAPE, CLASSES).tensors, torch.rand(1, *SHAPE)
    low = p["trunk.body.0.shared.b"] @ (p["trunk.body.0.shared.a"] @ x.flatten())
    hidden = (frozen["body.0.weight"] @ x.flatten() + frozen["body.0.bias"] + 12.0 / 3 * low).relu()
    torch.testing.assert_close(t.apply(vars, x).features[0], hidden)


def test_weights_of_the_base_are_those_of_its_file(tmp_path):
    own = Task(TINY, SHAPE, CLASSES).init(rng.key(5))["params"]
    torch.save(own, tmp_path / "a.pt")
    base = ViT(patch=5, width=8, depth=2, heads=2, mlp_ratio=2.0, weights=str(tmp_path / "a.pt"))
    t, x = task(LoRA(base)), torch.rand(3, *SHAPE)
    plain = Task(base, SHAPE, CLASSES)
    before = t.apply(t.init(rng.key(0)), x).logits
    assert torch.equal(before, plain.apply(plain.init(rng.key(0)), x).logits)
    date = (tmp_path / "a.pt").stat().st_mtime_ns
    torch.save({n: p + 0.1 for n, p in own.items()}, tmp_path / "b.pt")
    os.utime(tmp_path / "b.pt", ns=(date, date))  # as a copy that keeps its date, or within a tick of the clock
    (tmp_path / "b.pt").replace(tmp_path / "a.pt")
    again, plain = task(LoRA(base)), Task(base, SHAPE, CLASSES)
    after = again.apply(again.init(rng.key(0)), x).logits
    assert torch.equal(after, plain.apply(plain.init(rng.key(0)), x).logits)  # the file holds others now
    assert not torch.allclose(after, before)


def test_heads_follow_the_key_and_the_trunk_does_not():
    t = task(LoRA(TINY))
    a, b = (t.init(rng.key(k)) for k in (0, 1))
    assert not torch.equal(a["params"]["trunk.head.weight"], b["params"]["trunk.head.weight"])
    x, again = torch.rand(2, *SHAPE), pickle.loads(pickle.dumps(t))
    assert torch.equal(t.apply(a, x).features, t.apply(b, x).features)  # B is zero
    assert torch.equal(t.apply(a, x).logits, again.apply(a, x).logits)


class Products(TorchDispatchMode):
    """The shapes of every matrix product that runs."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        plain, adding = ("mm", "bmm"), ("addmm", "baddbmm", "baddbmm_")
        if (name := func._schema.name.removeprefix("aten::")) in plain + adding:
            self.shapes.append(tuple(tuple(a.shape) for a in args[name in adding :][:2]))
        return func(*args, **(kwargs or {}))


def test_under_vmap_all_clients_go_through_one_product_with_the_trunk():
    t, clients, batch = task(LoRA(TINY, rank=3)), 4, 7
    vars = tree.map(lambda p: p.expand(clients, *p.shape).clone(), t.init(rng.key(0)))
    x, y = torch.rand(clients, batch, *SHAPE), torch.zeros(clients, batch, dtype=torch.int64)

    def step(vars, x, y):
        return grad(lambda p: t.loss({**vars, "params": p}, {"x": x, "y": y}, rng.key(0))[0])(vars["params"])

    with Products() as seen:
        vmap(step)(vars, x, y)
    rows, width, hidden = clients * batch * 5, 8, 16
    for weight in ((width, 3 * width), (width, hidden), (hidden, width)):
        assert ((rows, weight[0]), weight) in seen.shapes
    per_client = {s[1][1:] for s in seen.shapes if len(s[1]) == 3 and s[1][0] == clients}
    assert not per_client & {(width, 3 * width), (3 * width, width), (width, hidden), (hidden, width)}
    # a frozen weight has no gradient: no product has its shape
    made = {(a[-2], b[-1]) for a, b in seen.shapes}
    assert not made & {(3 * width, width), (hidden, width), (width, hidden)}


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor that an operation makes: a view of another tensor is none."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out._base is None and not func.is_view:
            self.size = max(self.size, out.untyped_storage().nbytes() // out.element_size())
        return out


def largest_of_a_step(spec, clients=6):
    """The numbers of the largest tensor that a step of all clients makes."""
    t, x, y = task(spec), torch.rand(clients, 2, *SHAPE), torch.zeros(clients, 2, dtype=torch.int64)
    vars = tree.map(lambda p: p.expand(clients, *p.shape).clone(), t.init(rng.key(0)))

    def step(vars, x, y):
        return grad(lambda p: t.loss({**vars, "params": p}, {"x": x, "y": y}, rng.key(0))[0])(vars["params"])

    with Largest() as seen:
        vmap(step)(vars, x, y)
    return seen.size


def test_a_step_of_many_clients_makes_no_copy_of_the_trunk():
    base, weight = MLP(hidden=(300, 300)), 300 * 300
    assert largest_of_a_step(base) == 6 * weight  # gradients of a weight that each client has for itself
    for targets in (("*",), ("body.0",), ("body.2",)):  # the layer without a pair is frozen, too
        assert largest_of_a_step(LoRA(base, rank=1, targets=targets)) < weight // 4  # not one of a single client


def test_pairs_and_bias_are_added_by_the_products_and_gradients_of_any_order_are_the_formulas():
    """Values, first and second derivatives of x W^T + b + (x A^T) V^T against the formula written out, for clients
    with pairs of their own within seeds (nested vmap)."""
    seeds, clients, rows, inputs, outputs, rank = 2, 3, 5, 4, 6, 2
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    x, a, v = draw(seeds, clients, rows, inputs), draw(seeds, clients, rank, inputs), draw(clients, outputs, rank)
    w, b = draw(outputs, inputs), draw(outputs)

    def plain(x, a, v):
        return x @ w.T + b + (x @ a.T) @ v.T

    def ours(x, a, v):
        return low_rank.linear(x, w, b, a, v)

    def slope(f):
        return lambda x, a, v: grad(lambda *t: f(*t).sin().sum(), argnums=(0, 1, 2))(x, a, v)

    def bend(f):
        return grad(lambda x, a, v: sum(t.cos().sum() for t in slope(f)(x, a, v)), argnums=(0, 1, 2))

    for what in (lambda f: f, slope, bend):
        over = lambda f: vmap(vmap(f), in_dims=(0, 0, None))  # noqa: E731
        found, expected = (over(what(f))(x, a, v) for f in (ours, plain))
        torch.testing.assert_close(found, expected)
    alone = vmap(vmap(slope(lambda x, a, v: low_rank.linear(x, w, None))))(x, a, a)[0]
    torch.testing.assert_close(alone, vmap(vmap(slope(lambda x, a, v: x @ w.T)))(x, a, a)[0])


def test_two_pairs_of_a_layer_are_one_of_their_ranks_together():
    a, b, c, d = (torch.randn(*s, dtype=torch.float64) for s in ((2, 4), (6, 2), (3, 4), (6, 3)))
    first, second, scale = low_rank.pairs((a, b, 0.5), (c, d, 3.0))
    torch.testing.assert_close(scale * second @ first, 0.5 * b @ a + 3.0 * d @ c)
    first, second, scale = low_rank.pairs((a, b, 0.5))
    torch.testing.assert_close(scale * second @ first, 0.5 * b @ a)


def test_clients_hold_and_send_adapters_and_head_alone():
    t = task(LoRA(TINY, rank=2, private=1))
    worker, data = Worker(t, FedAvg(work=Work(epochs=1, batch=8), private=(LOCAL,)), seed=0), shards((16, 12, 9))
    engine = Vmap().open(worker, data, torch.device("cpu"))
    state = fit.start(worker, engine, 3)
    for state in fit.rounds(worker, engine, fit.RoundPlan(1, 3, 3), shards((4, 4, 4), seed=1), state):
        pass
    width, hidden = 8, 16
    sides = sum(a + b for a, b in ((width, 3 * width), (width, width), (width, hidden), (hidden, width)))
    head = CLASSES * (width + 1)
    assert tree.numel(state.mine) == 3 * (2 * sides * 1)  # three clients, two blocks, rank 1
    assert tree.numel(state.server["vars"]) == 2 * sides * 2 + head
    sent = sum(p["bytes"] for p in state.cost["message"] if p["group"] == "delta")
    assert sent == 4 * (2 * sides * 2 + head)
    assert len({id(s.source) for s in t._skeletons.values()}) == 1


def test_norms_are_trained_where_asked_and_batch_norm_always():
    assert task(LoRA(TINY)).norm == frozenset()
    assert len(task(LoRA(TINY, train=("head", "norm"))).norm) == 10
    t = task(LoRA(CNN(widths=(3, 4), hidden=8, kernel=3, norm="batch"), rank=2))
    assert t.has_batch_norm and len(t.norm) == 8
    named = task(LoRA(TINY, train=("head", "cls_token")))
    assert "trunk.cls_token" in named.params and "trunk.pos_embed" not in named.params


def test_half_precision_takes_the_trunk_along():
    t = task(LoRA(TINY)).computing(torch.bfloat16)
    vars, x = noisy(t.init(rng.key(0)), 0.1), torch.rand(4, *SHAPE)
    full = t.computing(None).apply(vars, x).logits
    half = t.apply(vars, x).logits
    assert half.dtype == torch.float32 and 0 < float((half - full).abs().max()) < 0.1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rank": 9}, "rank=9 is more than layer 'blocks.0.attn.qkv' has, 8 inputs and 24 outputs; choose at most 8"),
        ({"private": 9}, "private=9 is more than layer"),
        ({"targets": ("qvk",)}, "no linear layer of ViT matches 'qvk'; did you mean 'qkv'"),
        ({"targets": ()}, "must name at least one linear layer"),
        ({"train": ("nrom",)}, "'nrom' names nothing in ViT; allowed are head, norm"),
        ({"rank": 0}, "rank=0 must be a whole number of at least 1"),
        ({"alpha": 0.0}, "alpha=0.0 must be"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(given, told):
    with pytest.raises(ValueError, match=told):
        task(LoRA(TINY, **given))


def test_bases_that_are_no_records_are_refused():
    for base in (torch.nn.Linear(2, 2), LoRA()):
        with pytest.raises(ValueError, match="must be a model record"):
            LoRA(base)
    with pytest.raises(ValueError, match="must be a LoRA, it is a MLP"):
        merged(task(MLP()), {})


def test_prompts_are_tokens_among_the_trunks_own():
    t, x = task(Prompts(TINY, count=3)), torch.rand(2, *SHAPE)
    assert set(t.params) == {"trunk.prompts", "trunk.head.weight", "trunk.head.bias"}
    vars = t.init(rng.key(0))
    plain = Task(TINY, SHAPE, CLASSES)
    net = plain.module({"params": trunk(TINY, SHAPE, CLASSES).tensors, "buffers": {}})
    with torch.no_grad():
        tokens = torch.cat((net.cls_token.expand(2, 1, 8), net.patch_embed(x)), 1) + net.pos_embed
        own = vars["params"]["trunk.prompts"].expand(2, 3, 8)
        tokens = torch.cat((tokens[:, :1], own, tokens[:, 1:]), 1)
        for block in net.blocks:
            tokens = sum(block(tokens))
        features = net.norm(tokens)[:, 0]
    torch.testing.assert_close(t.apply(vars, x).features, features)
    assert not torch.allclose(
        features, plain.apply({"params": dict(net.named_parameters()), "buffers": {}}, x).features
    )
    with pytest.raises(ValueError, match="must be a ViT; for other models use LoRA"):
        Prompts(MLP())
