"""Kernels of products, pairs, rows, GELU and attention where they work: each is tried once for every kind of input.

A kernel that does not compile, or does not agree with torch's own operations, is left out, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import (
    attention_block_kernels,
    attention_head,
    attention_kernels,
    gelu_kernels,
    kernels,
    pair_kernels,
    patch_kernels,
    product_kernels,
    rehearsal,
    resident,
    row_kernels,
)
from .attention_block_kernels import Blocks
from .attention_head import HELD
from .product_kernels import CUTS, Tiling
from .resident import RESIDENT
from .streams import unrecorded

log = logging.getLogger("acclimate")

APART = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""How far results may be from those of torch's operations, relative to their norm; else something is wrong."""
FEW = 300
"""Rows of a trial: more than a tile has, and no multiple of it."""
norm, norm_back = row_kernels.norm, row_kernels.norm_back
slopes = pair_kernels.slopes
gelu, gelu_back = gelu_kernels.gelu, gelu_kernels.gelu_back
cut, placed = patch_kernels.cut, patch_kernels.placed


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float = 1.0, cut: Tiling = CUTS[0]
) -> tuple[Tensor, Tensor]:
    """As `product_kernels.product`, which it is, or `resident.product` with its cut."""
    if cut == RESIDENT:
        return resident.product(x, weight, bias, a, v, scale)
    return product_kernels.product(x, weight, bias, a, v, scale, cut)


def summed(x: Tensor, weight: Tensor, u: Tensor, v: Tensor, cut: Tiling = CUTS[0]) -> Tensor:
    """As `product_kernels.summed`, likewise."""
    if cut == RESIDENT:
        return resident.summed(x, weight, u, v)
    return product_kernels.summed(x, weight, u, v, cut)


def serves(x: Tensor, weight: Tensor, rank: int, cut: Tiling = CUTS[0]) -> bool:
    """Whether `product` and `summed` are for these rows, this weight and pairs of this rank, with this cut.

    They spare a pass over y and are slower than torch's product, which pays unless y is narrower than x.
    """
    if not product_kernels.usable(x, weight) or (x.is_cuda and weight.shape[0] < weight.shape[1]):
        return False
    if cut == RESIDENT and not resident.usable(x, weight, rank):
        return False
    kind = ("product", tuple(weight.shape), weight.stride(-1) == 1, rank, cut.name)
    return works(kind, x, lambda: _product_trial(x, weight, rank, cut))


def serves_rows(x: Tensor) -> bool:
    """Whether `norm` and `norm_back` are for these rows."""
    usable = kernels.usable(x) or (kernels.INTERPRETED and x.dtype == torch.float32)
    return usable and 0 < x.shape[-1] <= row_kernels.TILE and works(("rows", x.shape[-1]), x, lambda: _rows_trial(x))


def serves_low(x: Tensor, rank: int) -> bool:
    """Whether `norm_back` is for these rows [G, N, width] and a gradient with a part of this rank."""
    fits = rank <= row_kernels.RANK and serves_rows(x)
    return fits and works(("low rows", x.shape[-1], rank), x, lambda: _low_trial(x, rank))


def serves_pairs(x: Tensor, v: Tensor) -> bool:
    """Whether `slopes` is for these rows [G, N, inputs] and pairs like V [G, outputs, rank]."""
    kind = ("pair", x.shape[-1], *v.shape[1:])
    return pair_kernels.usable(x, v.shape[-1]) and works(kind, x, lambda: _pair_trial(x, v))


def serves_gelu(x: Tensor) -> bool:
    """Whether `gelu` and `gelu_back` are for these numbers."""
    return gelu_kernels.usable(x) and works(("gelu",), x, lambda: _gelu_trial(x))


def serves_patches(x: Tensor, side: int) -> bool:
    """Whether `cut` is for images [N, C, H, W] like these, and patches of this side."""
    kind = ("patches", *x.shape[1:], side)
    return patch_kernels.usable(x) and works(kind, x, lambda: _patches_trial(x, side))


def serves_places(y: Tensor) -> bool:
    """Whether `placed` is for rows of tokens [N, T, width] like these."""
    return patch_kernels.usable(y) and works(("places", *y.shape[1:]), y, lambda: _places_trial(y))


def attention_back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int, cut: Blocks | None = None) -> Tensor:
    """As `attention_kernels.back`, which it is, or `attention_block_kernels.back` with tokens cut into blocks, or
    `attention_head.back` with its cut."""
    if cut is None:
        return attention_kernels.back(qkv, out, g, sums, heads)
    if cut == HELD:
        return attention_head.back(qkv, out, g, sums, heads)
    return attention_block_kernels.back(qkv, out, g, sums, heads, cut)


def serves_attention(qkv: Tensor, heads: int, cut: Blocks | None = None, asked: int | None = None) -> bool:
    """Whether `attention_back` is for these queries, keys and values [B, T, 3 * heads * d], for this cut, and for the
    output of all tokens, or of the first that are asked for."""
    asked = asked or qkv.shape[1]
    kind = ("attention", qkv.shape[1:], heads, asked, *([] if cut is None else [cut.name]))
    return _holds(qkv, heads, cut, asked) and works(kind, qkv, lambda: _attention_trial(qkv, heads, cut, asked))


def mix(qkv: Tensor, heads: int, cut: Blocks, asked: int) -> tuple[Tensor, Tensor]:
    """As `attention_block_kernels.forward`, which it is, or `attention_head.forward` with its cut."""
    if cut == HELD:
        return attention_head.forward(qkv, heads)
    return attention_block_kernels.forward(qkv, heads, cut, asked)


def serves_mixing(qkv: Tensor, heads: int, cut: Blocks, asked: int) -> bool:
    """Whether `mix` is for these queries, keys and values, and for this cut."""
    kind = ("mixing", qkv.shape[1:], heads, asked, cut.name)
    return _holds(qkv, heads, cut, asked) and works(kind, qkv, lambda: _mixing_trial(qkv, heads, cut, asked))


def _holds(qkv: Tensor, heads: int, cut: Blocks | None, asked: int) -> bool:
    """Whether kernels with this cut take these queries, keys and values, and so many that are asked for."""
    if cut == HELD and not (asked == qkv.shape[1] and attention_head.usable(qkv, heads)):
        return False
    return attention_kernels.usable(qkv, heads)


_tried: dict[Any, bool] = {}
_plain: list[None] = []


@contextmanager
def without() -> Iterator[None]:
    """As long as this lasts, torch's own operations do it all: to compare with them, and to count what they do."""
    _plain.append(None)
    try:
        yield
    finally:
        _plain.pop()


def resting() -> bool:
    """Whether torch's own operations do it all."""
    return bool(_plain)


def works(kind: tuple[Any, ...], x: Tensor, trial: Callable[[], float], recorded: bool = False) -> bool:
    """Whether the trial of this kind, for numbers like x, says that results are near enough those of plain code. While
    a graph is recorded nothing is tried, unless `recorded`: then it is on a stream of its own. Whoever measures ways
    where this says yes wants a run before, as nothing is measured in a recording."""
    key = (*kind, x.dtype, x.device)
    if _plain:
        return False
    if key in _tried:
        return _tried[key]
    if rehearsal.running():
        return _rehearsed(key, trial)
    recording = x.is_cuda and torch.cuda.is_current_stream_capturing()
    if recording and not recorded:
        raise RuntimeError("a kernel is not tried while a graph is recorded; run the function once before")
    try:
        with torch.no_grad(), unrecorded(x.device) if recording else nullcontext():
            apart = trial()
        reason = None if apart <= APART[x.dtype] else f"a result is {apart:.1e} from that of plain code"
    except Exception as error:  # whatever a compiler says
        if recording:
            raise rehearsal.Untried(f"a kernel for {kind[0]} cannot be tried while a graph is recorded") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    _tried[key] = reason is None
    if reason is not None:
        log.warning("a kernel for %s %s is left out: %s", kind[0], kind[1:], reason)
    return _tried[key]


def _rehearsed(key: Any, trial: Callable[[], float]) -> bool:
    """Launch what a trial launches, once, and remember no result: there are no numbers to compare."""
    if rehearsal.anew("trial", key):
        with torch.no_grad(), suppress(Exception):  # the trial itself will say what is wrong
            trial()
    return True


def draw(x: Tensor, *shape: int) -> Tensor:
    """Random numbers of the kind of x, the same every time."""
    g = torch.Generator(x.device).manual_seed(sum(shape))
    return torch.randn(shape, generator=g, device=x.device).to(x.dtype)


def rows_of(x: Tensor, outputs: int, cut: Tiling) -> int:
    """How many rows of each client the trial of a product has, which must show how a program goes on to other tiles."""
    return resident.several(x, outputs) if cut == RESIDENT else FEW


def repeated(x: Tensor, count: int, *shape: int) -> Tensor:
    """So many draws of this shape, to measure with: some of them again and again, which takes less memory."""
    some = draw(x, min(count, FEW), *shape)
    return some.repeat(-(-count // len(some)), *[1] * len(shape))[:count]


def apart(found: Tensor, expected: Tensor) -> float:
    """How far a result is from the expected one, by the length of that."""
    distance = float((found.float() - expected).norm() / expected.norm().clamp(min=1e-20))
    return distance if distance == distance else float("inf")


def _product_trial(x: Tensor, weight: Tensor, rank: int, cut: Tiling = CUTS[0]) -> float:
    """How far the kernel's results are from those of torch's operations, in float32, for rows of two clients."""
    outputs, inputs = weight.shape
    count = rows_of(x, outputs, cut)
    rows, w, a = (draw(x, *shape) for shape in ((2, count, inputs), (outputs, inputs), (2, rank, inputs)))
    w, a, v, b = w * inputs**-0.5, a * inputs**-0.5, draw(x, 2, outputs, rank), draw(x, outputs)
    w = w if weight.stride(-1) == 1 else w.T.contiguous().T
    y, low = product(rows, w, b, a, v, 2.0, cut)
    u = 2.0 * rows.float() @ a.mT.float()
    own, plain = u @ v.mT.float(), rows.float() @ w.mT.float()
    pairs = [(low, u), (y, plain + b.float() + own), (product(rows, w, None, a, v, 2.0, cut)[0], plain + own)]
    pairs.append((summed(rows, w, low, v, cut), plain + low.float() @ v.mT.float()))
    return max(apart(*p) for p in pairs)


def _pair_trial(x: Tensor, v: Tensor) -> float:
    """How far the gradients of pairs are from those of torch's operations, in float32, for rows of two clients."""
    (outputs, rank), inputs = v.shape[1:], x.shape[-1]
    g, rows, low, own = (draw(x, 2, *s) for s in ((FEW, outputs), (FEW, inputs), (FEW, rank), (outputs, rank)))
    found = slopes(g, rows, low, own * outputs**-0.5, 2.0)
    up = 2.0 * g.float() @ (own * outputs**-0.5).float()
    expected = (up, up.mT @ rows.float(), g.float().mT @ low.float())
    return max(apart(*pair) for pair in zip(found, expected, strict=True))


def _gelu_trial(x: Tensor) -> float:
    """How far GELU and its gradient are from those of torch's operations, in float32."""
    given, g = draw(x, 3, 1000), draw(x, 1000, 3).T.contiguous()
    expected = torch.ops.aten.gelu_backward(g.float(), given.float())
    return max(apart(gelu(given), F.gelu(given.float())), apart(gelu_back(g, given), expected))


def patches_of(x: Tensor, side: int) -> Tensor:
    """What `cut` gives, by torch's operations, of images [..., C, H, W]."""
    parts = x.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))  # [..., C, H/p, p, W/p, p]
    return parts.transpose(-3, -2).movedim(-5, -3).flatten(-3).flatten(-3, -2)


def places_of(y: Tensor, places: Tensor) -> Tensor:
    """What `placed` gives, by torch's operations, of [..., T, width]."""
    return F.pad(y, (0, 0, 1, 0)) + places


def _patches_trial(x: Tensor, side: int) -> float:
    """How far patches of two images are from those that torch cuts."""
    images = draw(x, 2, *x.shape[1:])
    return apart(cut(images, side), patches_of(images, side).float())


def _places_trial(y: Tensor) -> float:
    """How far the tokens of two images are from those of torch's operations, in float32."""
    rows, places = draw(y, 2, *y.shape[1:]), draw(y, y.shape[1] + 1, y.shape[2])
    return apart(placed(rows, places), places_of(rows.float(), places.float()))


def _rows_trial(x: Tensor) -> float:
    """How far sum, norm and their gradient are from those of torch's operations, in float32."""
    width, aten = x.shape[-1], torch.ops.aten
    a, d, more, dy = (draw(x, n, FEW, width)[0] for n in (1, 2, 3, 4))
    weight, bias = draw(x, width), draw(x, width, 1)[:, 0]
    s, y, mean, unit = norm(a, d, weight, bias, 1e-6)
    shape, own = [width], (weight.float(), bias.float())
    expected, m, r = torch.native_layer_norm(s.float(), shape, *own, 1e-6)
    back = aten.native_layer_norm_backward(dy.float(), s.float(), shape, m, r, *own, [True, False, False])[0]
    pairs = [
        (s, a.float() + d.float()),
        (y, expected),
        (norm_back(more, dy, s, weight, mean, unit), back + more.float()),
        (norm(a, None, weight, bias, 1e-6)[1], F.layer_norm(a.float(), shape, *own, 1e-6)),
        (norm_back(None, dy, s, weight, mean, unit), back),
    ]
    return max(apart(*p) for p in pairs)


def _low_trial(x: Tensor, rank: int) -> float:
    """How far the gradient of norms is from that of torch's operations, in float32, with a part of low rank for rows of
    two clients."""
    width, rows = x.shape[-1], (2, FEW)
    s, dy, low, a = (draw(x, *shape) for shape in ((*rows, width), (2 * FEW, width), (*rows, rank), (2, rank, width)))
    weight, dy = draw(x, width), dy.view_as(s)
    _, mean, unit = torch.native_layer_norm(s.float(), [width], weight.float(), None, 1e-6)
    given = dy.float() + low.float() @ a.float()
    about = (s.float(), [width], mean, unit, weight.float(), None, [True, False, False])
    expected = torch.ops.aten.native_layer_norm_backward(given, *about)[0]
    found = norm_back(None, dy, s, weight, mean.squeeze(-1), unit.squeeze(-1), low, a)
    return max(apart(found, expected), apart(norm_back(s, dy, s, weight, mean, unit, low, a), expected + s.float()))


def _headed(t: Tensor, heads: int, parts: int) -> Tensor:
    """[B, T, parts * heads * d] as [B, parts, heads, T, d], in float32."""
    return t.float().unflatten(-1, (parts, heads, -1)).movedim(1, 3)


def _mixing_trial(qkv: Tensor, heads: int, cut: Blocks, asked: int) -> float:
    """How far attention's output and the logarithms of its sums are from those of the formula, in float32."""
    given = draw(qkv, 3, *qkv.shape[1:])
    q, k, v = _headed(given, heads, 3).unbind(1)
    logits = q[:, :, :asked] @ k.mT * q.shape[-1] ** -0.5
    out, sums = mix(given, heads, cut, asked)
    expected = (logits.softmax(-1) @ v).movedim(1, 2).flatten(2)
    return max(apart(out, expected), apart(sums, logits.logsumexp(-1)))


def _attention_trial(qkv: Tensor, heads: int, cut: Blocks | None = None, asked: int | None = None) -> float:
    """How far the gradient of attention, for the first tokens that are asked for, is from that of the formula, in
    float32."""
    tokens, width = qkv.shape[1], qkv.shape[2] // 3
    given, g = draw(qkv, 3, tokens, 3 * width), draw(qkv, 3, asked or tokens, width)
    q, k, v = _headed(given, heads, 3).unbind(1)
    q, dy = q[:, :, :asked], _headed(g, heads, 1)[:, 0]
    logits = q @ k.mT * q.shape[-1] ** -0.5
    p, sums = logits.softmax(-1), logits.logsumexp(-1)
    y, along = p @ v, dy @ v.mT
    ds = p * (along - (p * along).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    to_q = F.pad(ds @ k, (0, 0, 0, tokens - q.shape[2]))
    expected = torch.stack((to_q, ds.mT @ q, p.mT @ dy), 1).movedim(3, 1).flatten(2)
    out = y.movedim(1, 2).flatten(2).to(qkv.dtype)
    return apart(attention_back(given, out, g, sums.contiguous(), heads, cut), expected)
