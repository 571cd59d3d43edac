"""Parts of a frozen transformer in few passes over its activations: a sum with layer norm after it, and the MLP.

On a GPU a frozen trunk of many clients spends more time on passes over activations than on products, unless sums and
norms are one pass. What only frozen weights see (the activation inside the MLP) is not kept. Both parts join the
clients' rows, have the derivative of their gradient from the formula written out, and the norms take kernels where
those serve (`core.nn.trials`), the MLP's products, too (`core.nn.hidden`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from ..core.nn import hidden, trials
from . import low_rank
from .low_rank import check_shared, joined


def add_norm(layer: nn.Module, x: Tensor, d: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x + d (x where there is no d) and the layer norm of that; at once where the layer is frozen, on a GPU."""
    if x.is_cuda and _frozen(layer):
        weight: Any = layer.weight
        return summed_norm(x, d, weight, layer.bias, layer.eps)  # type: ignore[arg-type]
    s = x if d is None else x + d
    return s, layer(s)


def norm_linear(norm: nn.Module, layer: nn.Module, x: Tensor, d: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x + d (x where there is no d), and what a linear layer makes of its layer norm; at once where both are frozen and
    the layer has pairs, on a GPU."""
    own: Any = getattr(layer, "own", None)
    alone = own is not None and not layer._forward_hooks and not layer._forward_pre_hooks
    pair = own() if x.is_cuda and alone and _frozen(norm) else None
    if pair is None:
        s, h = add_norm(norm, x, d)
        return s, layer(h)
    by: Any = (norm.weight, norm.bias, norm.eps)
    frozen: Any = (layer.weight, layer.bias)
    return normed_linear(x, d, by, frozen, pair)


def apply_mlp(mlp: Any, h: Tensor) -> Tensor:
    """mlp(h); without its hidden activations where both of its layers are frozen and have no pairs, on a GPU."""
    first, second = mlp.fc1, mlp.fc2
    if h.is_cuda and not mlp._forward_hooks and _frozen(first) and _frozen(second):
        return frozen_mlp(h, first.weight, first.bias, second.weight, second.bias)
    out: Tensor = mlp(h)
    return out


def _frozen(layer: nn.Module) -> bool:
    """Whether a layer has its weights from a trunk, and nothing beside them, nor anyone who looks at its output."""
    alone = not layer._forward_hooks and not any(True for _ in layer.children())
    return alone and "weight" not in layer._parameters and "bias" not in layer._parameters


def summed_norm(x: Tensor, d: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """s = x + d for [..., width], and layer norm of s over the last axis."""
    rows = (None if t is None else t.reshape(1, -1, t.shape[-1]) for t in (x, d))
    s, y, _, _ = _Norm.apply(*rows, weight, bias, eps)
    return s.view(x.shape), y.view(x.shape)


def _normed(x: Tensor, d: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    if trials.serves_rows(x):
        s, *rest = trials.norm(x.contiguous(), None if d is None else d.contiguous(), weight, bias, eps)
    else:
        s = x if d is None else x + d
        rest = list(torch.native_layer_norm(s, [x.shape[-1]], weight, bias, eps))
        rest[1:] = (t.squeeze(-1) for t in rest[1:])
    return s.view_as(s) if d is None else s, *rest  # an argument may not be a result


class _Norm(Function):
    """s, its norm, and the mean and inverse deviation of every row, of x and d [G, N, width]."""

    @staticmethod
    def forward(x: Tensor, d: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        return _normed(x, d, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.two, ctx.eps = inputs[1] is not None, inputs[4]
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[2], output[0], *output[2:])

    @staticmethod
    def backward(ctx: Any, more: Tensor | None, g: Tensor | None, *_: Any) -> Any:
        weight, *kept = ctx.saved_tensors
        to_s = more if g is None else _NormBack.apply(weight, ctx.eps, more, g, *kept, None, None)
        return to_s, to_s if ctx.two else None, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, d: Any, *frozen: Any) -> Any:
        check_shared(*dims[2:4])
        size = info.batch_size
        rows = joined(size, x, dims[0]), None if d is None else joined(size, d, dims[1])
        return tuple(t.unflatten(0, (size, -1)) for t in _Norm.apply(*rows, *frozen)), (0,) * 4


def _norm_slopes(g: Tensor, s: Tensor, weight: Tensor, mean: Tensor, unit: Tensor) -> Tensor:
    """The gradient of <g, norm of s> for s, in operations that can be differentiated again."""
    v, g = (s - mean[..., None]) * unit[..., None], g * weight
    return ((g - g.mean(-1, keepdim=True) - v * (g * v).mean(-1, keepdim=True)) * unit[..., None]).to(s.dtype)


class _NormBack(Function):
    """What comes to s through its norm, and beside it. The norm's gradient is g, or g + low A by groups."""

    @staticmethod
    def forward(
        weight: Tensor,
        eps: float,
        more: Tensor | None,
        g: Tensor,
        s: Tensor,
        mean: Tensor,
        unit: Tensor,
        low: Tensor | None = None,
        a: Tensor | None = None,
    ) -> Tensor:
        if low is not None and a is not None and not trials.serves_low(s, low.shape[-1]):
            g, low, a = torch.baddbmm(g, low, a), None, None
        if trials.serves_rows(s):
            beside, low, a = (None if t is None else t.contiguous() for t in (more, low, a))
            g, s, mean, unit = (t.contiguous() for t in (g, s, mean, unit))
            return trials.norm_back(beside, g, s, weight, mean, unit, low, a)
        about = ([s.shape[-1]], mean[..., None], unit[..., None], weight, None, [True, False, False])
        out: Tensor = torch.ops.aten.native_layer_norm_backward(g, s, *about)[0]
        return out if more is None else more + out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        weight, ctx.eps, more, g, s, _, _, low, a = inputs
        ctx.both = more is not None
        ctx.save_for_backward(weight, g, s, low, a)

    @staticmethod
    def backward(ctx: Any, wanted: Tensor) -> Any:
        weight, g, s, *pair = ctx.saved_tensors
        low = [t for t in pair if t is not None]

        def slopes(g: Tensor, s: Tensor, *low: Tensor) -> Tensor:
            var, mean = torch.var_mean(s, -1, correction=0)
            g = g + low[0] @ low[1] if low else g
            return _norm_slopes(g, s, weight, mean, (var + ctx.eps).rsqrt())

        back: Any = torch.func.vjp(slopes, g, s, *low)[1]
        to_g, to_s, *to_low = back(wanted)
        return None, None, wanted if ctx.both else None, to_g, to_s, None, None, *(to_low or (None, None))

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], weight: Tensor, eps: float, *given: Any) -> Any:
        check_shared(dims[0])
        size = info.batch_size
        each = (None if t is None else joined(size, t, d) for t, d in zip(given, dims[2:], strict=True))
        return _NormBack.apply(weight, eps, *each).unflatten(0, (size, -1)), 0


def normed_linear(
    x: Tensor,
    d: Tensor | None,
    norm: tuple[Tensor, Tensor, float],
    frozen: tuple[Tensor, Tensor | None],
    own: low_rank.Own,
) -> tuple[Tensor, Tensor]:
    """s = x + d for [..., width], and h W^T + b + scale (h A^T) V^T of its layer norm h."""
    rows = (None if t is None else t.reshape(1, -1, t.shape[-1]) for t in (x, d))
    a, v, scale = own
    s, y, *_ = _NormLinear.apply(*rows, *norm, *frozen, a[None], v[None], scale)
    return s.view(x.shape), y.view(*x.shape[:-1], -1)


class _NormLinear(Function):
    """Of x and d [G, N, width], with A and V of each group: s, the layer's output, and what the gradients need: the
    norm of s, scale h A^T, and the mean and inverse deviation of every row. The part of low rank of the gradient for h
    is added where the norm's gradient reads it, not in a pass of its own."""

    @staticmethod
    def forward(
        x: Tensor,
        d: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        w: Tensor,
        b: Tensor | None,
        a: Tensor,
        v: Tensor,
        scale: float,
    ) -> tuple[Tensor, ...]:
        s, h, mean, unit = _normed(x, d, weight, bias, eps)
        y, low = low_rank.with_pairs(h, w, b, a, v, scale)
        return s, y, h, low, mean, unit

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, d, weight, _, ctx.eps, w, _, a, v, ctx.scale = inputs
        s, _, h, low, *rest = output
        ctx.two = d is not None
        ctx.mark_non_differentiable(*rest)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, w, a, v, h, low, s, *rest)

    @staticmethod
    def backward(
        ctx: Any, more: Tensor | None, g: Tensor | None, to_h: Tensor | None, to_u: Tensor | None, *_: Any
    ) -> Any:
        weight, w, a, v, h, low, *kept = ctx.saved_tensors
        g = torch.zeros(*h.shape[:-1], len(w), dtype=h.dtype, device=h.device) if g is None else g
        to_low, to_a, to_v = low_rank.slopes(g, h, low, v, ctx.scale, to_u)
        to_s = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            up = low_rank.linear(g, w.mT, None)
            up = up if to_h is None else up + to_h
            to_s = _NormBack.apply(weight, ctx.eps, more, up, *kept, to_low, a)
        return to_s, to_s if ctx.two else None, None, None, None, None, None, to_a, to_v, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
        check_shared(*dims[2:4], *dims[5:7])
        size, (x, d, *norm), frozen, own, scale = info.batch_size, given[:5], given[5:7], given[7:9], given[9]
        rows = joined(size, x, dims[0]), None if d is None else joined(size, d, dims[1])
        pair = (joined(size, t, dim) for t, dim in zip(own, dims[7:9], strict=True))
        found = _NormLinear.apply(*rows, *norm, *frozen, *pair, scale)
        return tuple(t.unflatten(0, (size, -1)) for t in found), (0,) * 6


def frozen_mlp(h: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """W2 gelu(W1 h + b1) + b2 for [..., width], with frozen weights."""
    out: Tensor = _MLP.apply(h.reshape(1, -1, h.shape[-1]), w1, b1, w2, b2)[0]
    return out.view(*h.shape[:-1], -1)


class _MLP(Function):
    """The MLP's output of h [G, N, width], and what its gradient is to know of what enters GELU."""

    @staticmethod
    def forward(h: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
        raised, kept = hidden.raised(h, w1, b1)
        return F.linear(raised.flatten(0, 1), w2, b2).view(*h.shape[:2], len(w2)), kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:4], output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _: Any) -> Any:
        return None if g is None else _MLPBack.apply(g, *ctx.saved_tensors), None, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], h: Tensor, *frozen: Tensor) -> Any:
        check_shared(*dims[1:])
        found = _MLP.apply(joined(info.batch_size, h, dims[0]), *frozen)
        return tuple(t.unflatten(0, (info.batch_size, -1)) for t in found), (0, 0)


def _mlp_slopes(g: Tensor, h: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The gradient of <g, MLP> for its input, in operations that can be differentiated again."""
    x = F.linear(h, w1, b1)
    slope = 0.5 * (1 + torch.erf(x * 0.5**0.5)) + x * torch.exp(-0.5 * x * x) * (2 * torch.pi) ** -0.5
    return ((g @ w2) * slope) @ w1


class _MLPBack(Function):
    """The gradient of the MLP for its input h, of which something is `kept`."""

    @staticmethod
    def forward(g: Tensor, h: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, kept: Tensor) -> Tensor:
        return (hidden.lowered(g, w2, kept).flatten(0, 1) @ w1).view(*g.shape[:2], w1.shape[1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:5])

    @staticmethod
    def backward(ctx: Any, wanted: Tensor) -> Any:
        g, h, *frozen = ctx.saved_tensors
        back: Any = torch.func.vjp(lambda g, h: _mlp_slopes(g, h, *frozen), g, h)[1]
        return *back(wanted), None, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], g: Tensor, h: Tensor, *given: Tensor) -> Any:
        check_shared(*dims[2:5])
        size = info.batch_size
        rows = joined(size, g, dims[0]), joined(size, h, dims[1])
        found = _MLPBack.apply(*rows, *given[:3], joined(size, given[3], dims[5]))
        return found.unflatten(0, (size, -1)), 0
