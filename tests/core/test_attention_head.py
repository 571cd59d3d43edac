"""Attention with a whole head in a processor's memory: its values, without a GPU, and when it is used."""

import math

import pytest
import torch

from acclimate.core.nn import attention_block_kernels, attention_head, attention_kernels, heads, trials
from acclimate.core.nn import attention_head_back_kernels as back_kernels
from acclimate.core.nn import attention_head_kernels as kernels
from acclimate.core.nn.attention_head import HELD
from gluon_on_cpu import Box, Machine, Pointer

SHARED = 232_448
"""Bytes of shared memory that a program of an H100 or H200 may have."""
plain = pytest.mark.skipif(kernels.gluon is not None, reason="its functions are compiled where Triton has Gluon")
SIZES = [17, 50, 64, 65, 80, 81, 128, 197, 256]
OLD, NEW = (3, 6), attention_head.APART
"""Versions of Triton with small blocks and without them."""
CASES = [*((tokens, OLD) for tokens in SIZES), (80, NEW), (197, NEW)]
SAMPLES, HEADS, D = 2, 2, 64


def run(monkeypatch, kernel, *given, **sizes):
    """Run a kernel's programs one after the other, without views that overlap where it has no small block."""
    for program in range(SAMPLES * HEADS):
        for name, value in Machine(program, overlaps=sizes["LEFT"] == 1).names().items():
            for module in (kernels, back_kernels):
                monkeypatch.setattr(module, name, value, raising=False)
        kernel(*given, **sizes)


def drawn(tokens, low=0.0):
    """Queries, keys and values, a gradient for the output, and by torch: output, sums and the gradient for all. Queries
    are moved up by `low`, and keys down."""
    g = torch.Generator().manual_seed(tokens)
    qkv = 1.5 * torch.randn(SAMPLES, tokens, 3, HEADS * D, generator=g)
    qkv = (qkv + low * torch.tensor([1.0, -1.0, 0.0])[:, None]).flatten(2).bfloat16()
    dy = torch.randn(SAMPLES, tokens, HEADS * D, generator=g).bfloat16()
    whole = qkv.double().requires_grad_()
    q, k, v = whole.unflatten(-1, (3, HEADS, D)).movedim(2, 0).transpose(2, 3)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    sums = (q @ k.mT * D**-0.5).logsumexp(-1)
    (slopes,) = torch.autograd.grad(y, whole, dy.double())
    return qkv, dy, y.detach(), sums.detach(), slopes


@plain
@pytest.mark.parametrize(("tokens", "version"), CASES)
def test_output_and_sums_are_those_of_torch(monkeypatch, tokens, version):
    monkeypatch.setattr(attention_head, "VERSION", version)
    qkv, _, y, sums, _ = drawn(tokens)
    whole, left = attention_head._blocks(tokens)
    out, found = torch.full_like(y, float("nan"), dtype=torch.bfloat16), torch.full(sums.shape, float("nan"))
    boxes = Box(qkv, 1, 64, D), Box(qkv, 1, 16, D), Box(out, 1, 64, D)
    run(
        monkeypatch, kernels._held_mix, *boxes, Pointer(qkv), Pointer(found), D**-0.5,
        T=tokens, H=HEADS, D=D, WHOLE=whole, LEFT=left, KEYS=64, LOG=1 / math.log(2),
    )  # fmt: skip
    assert trials.apart(out, y) < 4e-3 and trials.apart(found, sums) < 1e-6


@plain
@pytest.mark.parametrize(
    ("tokens", "version", "low"), [*((*case, 0.0) for case in CASES), (50, OLD, 5.0), (197, OLD, 5.0), (197, NEW, 5.0)]
)
def test_gradients_are_those_of_torch(monkeypatch, tokens, version, low):
    """With low logits, those of keys that are not there would have weights beyond float32."""
    monkeypatch.setattr(attention_head, "VERSION", version)
    qkv, dy, y, sums, slopes = drawn(tokens, low)
    whole, left = attention_head._blocks(tokens)
    to, notes = torch.full_like(qkv, float("nan")), torch.full((SAMPLES * HEADS, 2, tokens), float("nan"))
    boxes = Box(qkv, 1, 64, D), Box(qkv, 1, 16, D), Box(dy, 1, 64, D), Box(dy, 1, 16, D), Box(to, 1, 64, D)
    given = Pointer(to), Pointer(y.bfloat16()), Pointer(dy), Pointer(sums.float().contiguous()), Pointer(notes), D**-0.5
    run(
        monkeypatch, back_kernels._held_back, *boxes, *given, T=tokens, H=HEADS, D=D, WHOLE=whole, LEFT=left,
        KEYS=64, QUERIES=64, ALL=1 << (tokens - 1).bit_length(), LOG=1 / math.log(2),
    )  # fmt: skip
    for part, expected in zip(to.chunk(3, -1), slopes.chunk(3, -1), strict=True):
        assert trials.apart(part, expected) < (3e-2 if low else 6e-3)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(17, (1, 0)), (50, (1, 0)), (64, (1, 0)), (80, (1, 1)), (81, (2, 0)), (197, (3, 1))]
)
def test_a_small_block_is_for_few_tokens(monkeypatch, tokens, blocks):
    monkeypatch.setattr(attention_head, "VERSION", (3, 7))
    assert attention_head._blocks(tokens) == blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(17, 1), (64, 1), (80, 2), (128, 2), (197, 4), (256, 4)])
@pytest.mark.parametrize("version", [(3, 8), (3, 10), (4, 0)])
def test_no_block_is_small_where_views_may_not_overlap(monkeypatch, version, tokens, blocks):
    monkeypatch.setattr(attention_head, "VERSION", version)
    assert attention_head._blocks(tokens) == (blocks, 0)


@pytest.mark.parametrize(("tokens", "version"), CASES)
def test_a_head_fits_in_a_processors_memory(monkeypatch, tokens, version):
    monkeypatch.setattr(attention_head, "VERSION", version)
    whole, left = attention_head._blocks(tokens)
    rows = 64 * whole + 16 * left
    assert 2 * D * (4 * rows + 64) + 8 <= SHARED
    assert (
        tokens != 197 or version == NEW or 2 * (2 * D * (4 * rows + 64) + 8 + 1024) <= 233_472
    )  # two programs share a processor


def test_it_is_for_hopper_in_bfloat16_and_for_heads_of_64(monkeypatch):
    monkeypatch.setattr(attention_head, "gluon", object())
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))

    def takes(tokens=197, d=64, dtype=torch.bfloat16):
        return attention_head.usable(torch.empty(2, tokens, 3 * 6 * d, dtype=dtype), 6)

    assert takes() and takes(17) and takes(256)
    assert not takes(16) and not takes(257) and not takes(d=32) and not takes(dtype=torch.float16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    assert not takes()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(attention_head, "gluon", None)
    assert not takes()


def test_nothing_is_held_on_a_cpu():
    assert not attention_head.usable(torch.empty(2, 197, 1152, dtype=torch.bfloat16), 6)


def test_it_is_not_for_the_first_tokens_alone(monkeypatch):
    monkeypatch.setattr(attention_head, "usable", lambda qkv, heads: True)
    monkeypatch.setattr(attention_kernels, "usable", lambda qkv, heads: True)
    monkeypatch.setattr(trials, "works", lambda *_: True)
    qkv = torch.empty(2, 197, 1152)
    assert trials.serves_attention(qkv, 6, HELD) and trials.serves_mixing(qkv, 6, HELD, 197)
    assert not trials.serves_attention(qkv, 6, HELD, 1) and not trials.serves_mixing(qkv, 6, HELD, 1)


def test_the_cut_decides_who_computes(monkeypatch):
    for module in (attention_head, attention_block_kernels, attention_kernels):
        for name in ("forward", "back"):
            said = (module.__name__.rpartition(".")[2], name)
            monkeypatch.setattr(module, name, lambda *given, said=said: (*said, len(given)), raising=False)
    x, first = torch.empty(0), heads.BLOCKS[0]
    assert trials.mix(x, 6, HELD, 197) == ("attention_head", "forward", 2)
    assert trials.mix(x, 6, first, 197) == ("attention_block_kernels", "forward", 4)
    assert trials.attention_back(x, x, x, x, 6, HELD) == ("attention_head", "back", 5)
    assert trials.attention_back(x, x, x, x, 6, first) == ("attention_block_kernels", "back", 6)
    assert trials.attention_back(x, x, x, x, 6) == ("attention_kernels", "back", 5)
    assert HELD in heads.CUTS and HELD.name not in [cut.name for cut in heads.BLOCKS]
