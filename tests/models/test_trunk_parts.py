"""Parts of a frozen transformer: values and gradients of any order, under vmap, are those of the formula.

Kernels: `TRITON_INTERPRET=1 PYTHONPATH=src:tests python -m pytest --noconftest tests/models/test_trunk_parts.py`.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from acclimate.core import Task, rng
from acclimate.core.nn import (
    attention_kernels,
    gelu_kernels,
    hidden,
    hidden_kernels,
    kernels,
    pair_kernels,
    product_kernels,
    row_kernels,
    trials,
)
from acclimate.core.nn import heads as by_heads
from acclimate.core.nn.attention_block_kernels import BLOCKS, Blocks
from acclimate.models import LoRA, ViT, low_rank, trunk_parts

G = torch.Generator().manual_seed(0)
CLIENTS, BATCH, TOKENS, WIDTH, HIDDEN, RANK = 3, 2, 17, 24, 40, 2
DTYPE = torch.float32 if kernels.INTERPRETED else torch.float64
TIGHT = {"rtol": 1e-3, "atol": 1e-3} if kernels.INTERPRETED else {"rtol": 1e-9, "atol": 1e-9}
BYTES = {"rtol": 1e-2, "atol": 1e-2} if kernels.INTERPRETED else TIGHT
"""Where slopes of GELU are kept as bytes."""
works = pytest.mark.skipif(not kernels.INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")


def draw(*shape):
    return torch.randn(*shape, generator=G, dtype=DTYPE)


X, D = draw(CLIENTS, BATCH, TOKENS, WIDTH), draw(CLIENTS, BATCH, TOKENS, WIDTH)
SCALE, SHIFT = draw(WIDTH), draw(WIDTH)
W1, B1, W2, B2 = (0.1 * draw(*shape) for shape in ((HIDDEN, WIDTH), (HIDDEN,), (WIDTH, HIDDEN), (WIDTH,)))
A, V = 0.2 * draw(CLIENTS, RANK, WIDTH), 0.2 * draw(CLIENTS, HIDDEN, RANK)


def norm_at_once(x, d):
    s, y = trunk_parts.summed_norm(x, d, SCALE, SHIFT, 1e-3)
    return torch.cat((s.sin(), y.cos()), -1)


def norm_written_out(x, d):
    s = x + d
    y = (s - s.mean(-1, keepdim=True)) * (s.var(-1, correction=0, keepdim=True) + 1e-3).rsqrt() * SCALE + SHIFT
    return torch.cat((s.sin(), y.cos()), -1)


def alone_at_once(x, d):
    s, y = trunk_parts.summed_norm(x * d, None, SCALE, SHIFT, 1e-3)
    return s.sin() * y


def alone_written_out(x, d):
    return (x * d).sin() * F.layer_norm(x * d, [WIDTH], SCALE, SHIFT, 1e-3)


def mlp_at_once(x, d):
    return x * trunk_parts.frozen_mlp(d, W1, B1, W2, B2).sin()


def mlp_written_out(x, d):
    hidden = F.linear(d, W1, B1)
    return x * F.linear(hidden * torch.special.ndtr(hidden), W2, B2).sin()


def pair_at_once(x, d, a, v):
    return low_rank.linear((x * d), W1, B1, a, v, 1.5).sin()


def pair_written_out(x, d, a, v):
    return ((x * d) @ (W1 + 1.5 * v @ a).T + B1).sin()


def normed_pair_at_once(x, d, a, v):
    s, y = trunk_parts.normed_linear(x, d, (SCALE, SHIFT, 1e-3), (W1, B1), (a, v, 1.5))
    return torch.cat((s.sin(), y.cos()), -1)


def normed_pair_written_out(x, d, a, v):
    s, h = x + d, F.layer_norm(x + d, [WIDTH], SCALE, SHIFT, 1e-3)
    return torch.cat((s.sin(), (h @ (W1 + 1.5 * v @ a).T + B1).cos()), -1)


def lone_normed_pair_at_once(x, d, a, v):
    s, y = trunk_parts.normed_linear(x * d, None, (SCALE, SHIFT, 1e-3), (W1, None), (a, v, 1.5))
    return torch.cat((s.sin(), y.cos()), -1)


def lone_normed_pair_written_out(x, d, a, v):
    h = F.layer_norm(x * d, [WIDTH], SCALE, SHIFT, 1e-3)
    return torch.cat(((x * d).sin(), (h @ (W1 + 1.5 * v @ a).T).cos()), -1)


CASES = {
    "norm": (norm_at_once, norm_written_out, (X, D)),
    "norm alone": (alone_at_once, alone_written_out, (X, D)),
    "mlp": (mlp_at_once, mlp_written_out, (X, D)),
    "pair": (pair_at_once, pair_written_out, (X, D, A, V)),
    "norm and pair": (normed_pair_at_once, normed_pair_written_out, (X, D, A, V)),
    "norm and pair alone": (lone_normed_pair_at_once, lone_normed_pair_written_out, (X, D, A, V)),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_of_two_orders_are_those_of_the_formula(case):
    ours, theirs, given = CASES[case]
    every = tuple(range(len(given)))

    def slopes(f):
        return lambda *args: grad(lambda *a: f(*a).square().sum(), every)(*args)

    def steepness(f):
        def length(*args):
            return sum((g * g).sum() for g in slopes(f)(*args))

        return lambda *args: grad(length, every)(*args)

    for way in (lambda f: f, slopes, steepness):
        found, expected = vmap(way(ours))(*given), vmap(way(theirs))(*given)
        near = BYTES if case == "mlp" else TIGHT
        torch.testing.assert_close(found, expected, **near)
        one = tuple(t[1] for t in given)
        torch.testing.assert_close(way(ours)(*one), way(theirs)(*one), **near)


def test_a_block_takes_norm_and_pairs_at_once_as_on_a_gpu_unless_someone_looks(monkeypatch):
    given = LoRA(ViT(patch=4, width=16, depth=2, heads=2), rank=2, targets=("attn.qkv", "attn.proj"))
    module, x = given.build((3, 8, 8), 5), torch.rand(2, 3, 8, 8, generator=G)
    for p in module.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=G)

    def slopes():
        module.zero_grad()
        with trials.without():
            module(x)[1].square().sum().backward()
        return [p.grad.clone() for p in module.parameters()]

    expected, taken, seen = slopes(), [], []
    run = trunk_parts.normed_linear
    monkeypatch.setattr(trunk_parts, "normed_linear", lambda *a: (taken.append(a[1] is None), run(*a))[1])
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    torch.testing.assert_close(slopes(), expected, rtol=1e-4, atol=1e-5)
    assert taken == [True, False]
    first, second = (block.attn for block in module.trunk.blocks)
    handles = [first.register_forward_hook(lambda m, i, out: seen.append(tuple(i[0].shape)))]
    handles.append(second.qkv.register_forward_pre_hook(lambda m, i: seen.append(tuple(i[0].shape))))
    torch.testing.assert_close(slopes(), expected, rtol=1e-4, atol=1e-5)
    assert seen == [(2, 5, 16), (2, 5, 16)] and len(taken) == 2
    for handle in handles:
        handle.remove()


def test_frozen_weights_that_differ_by_client_are_refused():
    with pytest.raises(NotImplementedError, match="the same for all clients"):
        vmap(lambda x, w: trunk_parts.summed_norm(x, None, w, SHIFT, 1e-3))(X, SCALE.expand(CLIENTS, -1))


@works
@pytest.mark.parametrize(("rank", "cut"), [(1, 0), (3, 1), (20, 0)])
def test_the_kernel_agrees_with_torchs_operations(rank, cut):
    x, weight, cut = draw(2, 5, 72), draw(88, 72), product_kernels.CUTS[cut]
    assert trials._product_trial(x, weight, rank, cut) < 1e-5
    assert trials._product_trial(x, draw(72, 88).T, rank, cut) < 1e-5
    assert product_kernels.usable(x, weight) and not product_kernels.usable(x, draw(88, 71))


@works
@pytest.mark.parametrize(("rank", "outputs"), [(1, 88), (8, 24), (20, 40)])
def test_kernels_of_pairs_agree_with_torchs_operations(rank, outputs):
    x, v = draw(2, 5, 72), draw(2, outputs, rank)
    assert pair_kernels.usable(x, rank) and trials._pair_trial(x, v) < 1e-5
    found = pair_kernels.slopes(draw(2, 5, outputs), x, draw(2, 5, rank), v)
    assert all(t.is_contiguous() for t in found)  # torch casts others one by one
    assert not pair_kernels.usable(x, 65) and not pair_kernels.usable(x[:, :0], rank)


@works
def test_gelu_of_the_kernels_is_that_of_the_error_function():
    x = torch.linspace(-12, 12, 3001)
    exact = x.double().requires_grad_()
    y = exact * torch.special.ndtr(exact)
    (slope,), y = torch.autograd.grad(y.sum(), exact), y.detach()
    assert float((gelu_kernels.gelu(x) - y).abs().max()) < 1e-6
    assert float((gelu_kernels.gelu_back(torch.ones_like(x), x) - slope).abs().max()) < 1e-6
    assert trials._gelu_trial(x) < 1e-6


@works
@pytest.mark.parametrize("width", [24, 384])
def test_kernels_of_rows_agree_with_torchs_operations(width):
    assert trials._rows_trial(draw(1, width)) < 1e-5
    for rank in (1, 8) if width == 24 else ():
        assert trials._low_trial(draw(1, width), rank) < 1e-5


@works
@pytest.mark.parametrize(("tokens", "heads", "d"), [(17, 2, 16), (197, 1, 32), (256, 1, 16)])
def test_the_gradient_of_attention_agrees_with_the_formula(tokens, heads, d):
    qkv = draw(1, tokens, 3 * heads * d)
    assert attention_kernels.usable(qkv, heads) and trials._attention_trial(qkv, heads) < 1e-5
    assert not attention_kernels.usable(qkv[:, :15], heads) and not attention_kernels.usable(qkv, 4 * heads * d)


@works
@pytest.mark.parametrize(
    ("tokens", "heads", "d", "cut"),
    [
        (17, 2, 16, Blocks(64, 64, 32, 4, 1)),
        (64, 1, 16, Blocks(64, 64, 32, 4, 1)),
        (69, 1, 32, Blocks(64, 64, 32, 4, 1)),
        (43, 1, 16, Blocks(32, 16, 32, 4, 1)),
    ],
)
def test_so_do_attention_and_its_gradient_by_blocks(tokens, heads, d, cut):
    torch.use_deterministic_algorithms(True)  # fresh memory is not a number: nobody may read it
    try:
        assert trials._attention_trial(draw(1, tokens, 3 * heads * d), heads, cut) < 1e-5
        for asked in (tokens, 1):
            assert trials._mixing_trial(draw(1, tokens, 3 * heads * d), heads, cut, asked) < 1e-5
        assert trials._attention_trial(draw(1, tokens, 3 * heads * d), heads, cut, 1) < 1e-5
    finally:
        torch.use_deterministic_algorithms(False)


@works
def test_keys_that_are_not_there_have_no_weight_where_logits_are_very_low():
    tokens, d = 37, 16
    q, k, v = torch.full((tokens, d), 10.0), torch.full((tokens, d), -10.0), draw(tokens, d)
    logits, g = q @ k.mT * d**-0.5, draw(1, tokens, d)  # all of them -400: exp(400), for a key that is not there
    out, sums = (logits.softmax(-1) @ v)[None], logits.logsumexp(-1)[None, None]
    qkv = torch.cat((q, k, v), -1)[None]
    to_q, to_k, to_v = trials.attention_back(qkv, out, g, sums, 1, Blocks(32, 32, 16, 4, 1))[0].split(d, -1)
    torch.testing.assert_close(to_v, g[0].mean(0).expand_as(v), rtol=1e-3, atol=1e-4)
    slopes = (g[0] @ v.mT - (g[0] @ v.mT).mean(-1, keepdim=True)) / tokens * d**-0.5
    torch.testing.assert_close(to_k, slopes.mT @ q, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(to_q, slopes @ k, rtol=1e-3, atol=1e-3)


@works
@pytest.mark.parametrize("cut", hidden_kernels.CUTS, ids=lambda cut: cut.name)
@pytest.mark.parametrize("biased", [True, False])
def test_products_with_gelu_inside_agree_with_torchs_operations_in_double(cut, biased):
    """The tail of the distribution is right to 1e-4 of its slope, and a byte is right to 0.0025."""
    for weight in (draw(88, 72), draw(72, 88).T):
        x, g, back, b = draw(2, 77, 72), draw(2, 77, 24), draw(24, 88), draw(88)
        assert hidden_kernels.usable(x, weight) and hidden.trial("raised", x, weight, cut) < 5e-5
        assert hidden.trial("lowered", x, weight, cut) < 3e-5
        h = (x.double() @ weight.double().T + (b.double() if biased else 0.0)).requires_grad_()
        y = F.gelu(h)
        (slope,) = torch.autograd.grad(y.sum(), h)
        found, kept = hidden_kernels.forward(x, weight, b if biased else None, cut)
        torch.testing.assert_close(found.double(), y, rtol=0, atol=5e-5)
        bytes = hidden_kernels.slopes(kept, 77, 88)
        torch.testing.assert_close(bytes.double(), slope, rtol=0, atol=2.7e-3)
        for order in (back, back.T.contiguous().T):
            lowered = hidden_kernels.backward(g, order, kept, cut)
            exact = (g.double() @ back.double()) * bytes.double()
            torch.testing.assert_close(lowered.double(), exact, rtol=1e-4, atol=5e-4)
            torch.testing.assert_close(hidden._lowered(g, order, kept), lowered, rtol=1e-4, atol=5e-4)
    assert not hidden_kernels.usable(x, draw(88, 71))
    assert not hidden_kernels.usable(draw(6 * 72)[1:361].view(1, 5, 72), weight)


@works
def test_every_cut_finds_the_slopes_that_another_has_kept():
    x, weight = draw(3, 130, 40), draw(136, 40)
    kept = [hidden_kernels.forward(x, weight, None, cut)[1] for cut in hidden_kernels.CUTS]
    slopes = [hidden_kernels.slopes(k, 130, 136) for k in kept]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=0.0051)


@works
def test_far_numbers_go_through_gelu_as_they_are_or_not_at_all():
    far = torch.tensor([[-1e4, -30.0, -7.0, 0.0, 7.0, 30.0, 1e4, 2e4]]).expand(1, 8, 8).contiguous()
    ones, cut = torch.eye(8), hidden_kernels.CUTS[0]
    y, kept = hidden_kernels.forward(far, ones, None, cut)
    torch.testing.assert_close(y, far.clamp(min=0), rtol=1e-6, atol=1e-6)
    slope = (far > 0).float() + 0.5 * (far == 0)
    torch.testing.assert_close(hidden_kernels.slopes(kept, 8, 8), slope, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(hidden_kernels.backward(torch.ones(1, 8, 8), ones, kept, cut), 8 * slope / 8)


@works
def test_an_mlp_takes_the_kernel_and_without_kernels_it_does_not(monkeypatch):
    ran = []
    for name in ("forward", "backward"):
        run = getattr(hidden_kernels, name)
        monkeypatch.setattr(hidden_kernels, name, lambda *a, name=name, run=run: (ran.append(name), run(*a))[1])

    def slope():
        return grad(lambda d: mlp_at_once(X[0], d).sum())(D[0])

    hidden.lowered(X[0], W2, hidden.raised(X[0], W1, B1)[1])  # trials
    ran.clear()
    found = slope()
    assert ran == ["forward", "backward"]
    with trials.without():
        torch.testing.assert_close(found, slope(), **BYTES)
    assert ran == ["forward", "backward"]


@pytest.mark.skipif(not kernels.AVAILABLE or kernels.INTERPRETED, reason="needs Triton, not interpreted")
def test_a_kernel_is_compiled_once_for_any_number_of_rows():
    """A trial has other numbers of rows than the work, and Triton compiles anew for multiples of 16."""
    free = {
        product_kernels._product: {"rows", "tiles"},
        hidden_kernels._hidden: {"rows", "tiles"},
        pair_kernels._pieces: {"rows"},
        pair_kernels._added: {"pieces"},
        row_kernels._norm: {"rows"},
        row_kernels._norm_back: {"rows"},
    }
    for kernel, names in free.items():
        assert {p.name for p in kernel.params if p.do_not_specialize} == names


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9, reason="needs a copy engine"
)


@hopper
@pytest.mark.parametrize("cut", hidden_kernels.CUTS, ids=lambda cut: cut.name)
def test_on_a_gpu_products_with_gelu_inside_agree(cut):
    x, weight = (
        torch.empty(1, 5, 384, dtype=torch.bfloat16, device="cuda"),
        torch.empty(1536, 384, device="cuda").bfloat16(),
    )
    for w in (weight, weight.T.contiguous().T):
        assert hidden.trial("raised", x, w, cut) < 1e-2 and hidden.trial("lowered", x, w, cut) < 1e-2


@hopper
@pytest.mark.parametrize("cut", BLOCKS, ids=lambda cut: cut.name)
@pytest.mark.parametrize(("tokens", "heads", "d"), [(197, 6, 64), (37, 2, 64), (256, 3, 32)])
def test_on_a_gpu_attention_and_its_gradient_agree_by_blocks(tokens, heads, d, cut):
    qkv = torch.empty(1, tokens, 3 * heads * d, dtype=torch.bfloat16, device="cuda")
    for asked in (tokens, 1):
        assert trials._attention_trial(qkv, heads, cut, asked) < 2e-2
        assert trials._mixing_trial(qkv, heads, cut, asked) < 1e-2


@gpu
@pytest.mark.parametrize("least", [None, 1], ids=["as it is", "whatever its size"])
def test_a_step_of_lora_with_kernels_is_that_of_torchs_operations(caplog, monkeypatch, least):
    """Gradients of clients with adapters of their own, mapped over: bf16 against float32 without kernels."""
    for module in (hidden, by_heads) if least else ():
        monkeypatch.setattr(module, "LEAST", least)
    base = ViT(patch=8, width=128, depth=2, heads=2)
    given = Task(LoRA(base, rank=8, targets=("attn.qkv", "attn.proj")), (3, 48, 48), 10)
    params = {
        n: torch.stack([p + 0.05 * torch.randn(p.shape, generator=G) for _ in range(3)]).cuda()
        for n, p in given.init(rng.key(0))["params"].items()
    }
    x, y = torch.rand(3, 4, 3, 48, 48, generator=G).cuda(), torch.randint(0, 10, (3, 4), generator=G).cuda()

    def slopes(task):
        def loss(p, x, y):
            return F.cross_entropy(task.apply({"params": p, "buffers": {}}, x, "train").logits, y)

        return vmap(grad(loss))(params, x, y)

    found = slopes(given.computing(torch.bfloat16))
    with trials.without():
        expected = slopes(given)
    assert "is left out" not in caplog.text
    for name, g in expected.items():
        assert float((found[name] - g).norm() / g.norm()) < 0.05, name
