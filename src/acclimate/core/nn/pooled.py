"""A convolution with what follows it, 2 x 2 maximum pooling and ReLU, in one pass: under `vmap`, to any order.

A layer's full result is four times as large as what is left of it, and is never written where a kernel does all three.
Which of four pixels was the largest is kept in a byte, and 4 says that ReLU lets nothing through; so the gradient needs
one pass, too (`pool._Unpool`), before those of the convolution. A `PureSequential` finds such layers in a row; with
hooks on one of them, and wherever there is no kernel, they run one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import conv, implicit, kernels, lone, switches
from .active import Active
from .linear import PureLinear
from .mapping import led
from .pool import PureMaxPool2d, _Pick, _Unpool
from .products import Geometry


class PureSequential(nn.Sequential):
    """Layers in a row, of which some run in one pass."""

    def forward(self, input: Tensor) -> Tensor:
        here = kernels.AVAILABLE and conv.is_batched(input)
        if not (here or (torch.is_grad_enabled() and lone.serves(input))):
            out: Tensor = super().forward(input)
            return out
        at_once, layers, at = _at_once if here else _alone, list(self), 0
        while at < len(layers):
            taken, relu = _follow(layers[at : at + 3])
            done = at_once(layers[at : at + taken], relu, input) if taken else None
            input, at = (layers[at](input), at + 1) if done is None else (done, at + taken)
        return input


FOLLOWING: tuple[tuple[bool, tuple[type[nn.Module], ...]], ...] = (
    *((True, (PureMaxPool2d, nn.ReLU)), (True, (nn.ReLU, PureMaxPool2d)), (False, (PureMaxPool2d,))),
    (True, (nn.ReLU,)),
)
"""What may follow a convolution in its pass, and whether ReLU is part of it; the first that fits is taken. ReLU alone
may follow a linear layer, too."""


def _follow(chain: list[nn.Module]) -> tuple[int, bool]:
    """How many of these layers could run in one pass (or none), and whether ReLU is one of them."""
    kinds = [type(layer) for layer in chain]
    for relu, wanted in FOLLOWING:
        count = len(wanted) + 1
        first = (conv.PureConv2d, PureLinear) if wanted == (nn.ReLU,) else (conv.PureConv2d,)
        if kinds[1:count] == [*wanted] and kinds[0] in first:
            seen = any(layer._forward_hooks or layer._forward_pre_hooks for layer in chain[:count])
            return 0 if seen else count, relu
    return 0, False


def _alone(chain: list[nn.Module], relu: bool, x: Tensor) -> Tensor | None:
    """The same of a client that is alone on x86: with pooling right after the convolution, and None elsewhere."""
    return lone.pooled(chain[0], relu, x) if isinstance(chain[1], PureMaxPool2d) else None


def _at_once(chain: list[nn.Module], relu: bool, x: Tensor) -> Tensor | None:
    """What these layers make of x, in one pass; None where that does not serve."""
    layer: Any = chain[0]
    if isinstance(layer, PureLinear):
        return layer.at_once(x, relu)
    if not (switches.on("implicit") and conv.is_batched(x) and conv.is_batched(layer.weight) and kernels.takes(x)):
        return None
    geometry = Geometry((x.shape[-2], x.shape[-1]), tuple(layer.weight.shape[-2:]), layer.stride[0], layer.padding)
    pools = any(isinstance(part, PureMaxPool2d) for part in chain)
    if pools and min(geometry.out) < 2:
        return None
    bias = None if layer.bias is None else layer.bias.unsqueeze(0)
    if not pools:
        x, w = implicit.aligned(x, layer.weight)
        y = Active.apply(x.unsqueeze(0), w.unsqueeze(0), bias, geometry).squeeze(0)
        return y if layer.loose else y.contiguous()
    loose, planar = (any(getattr(part, name, False) for part in chain[1:]) for name in ("loose", "planar"))
    x, w = implicit.widened(x), layer.weight
    y = _Pooled.apply(x.unsqueeze(0), w.unsqueeze(0), bias, geometry, relu, planar or not loose)[0].squeeze(0)
    return y if loose else y.contiguous()


class _Pooled(torch.autograd.Function):
    """Maxima [G, B, O, oh / 2, ow / 2] of a convolution of x and w, bias [G, O] and ReLU after them, and which; maxima
    lie channel by channel where `planar` says so. x may have channels of zeros for which w has no weights."""

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, relu: bool, planar: bool
    ) -> tuple[Tensor, Tensor]:
        done = implicit.product("pooled", _one_by_one, x, w, g, bias, relu, planar)
        return both(x, w, g, bias, relu) if done is None else done

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, w, bias, ctx.geometry = inputs[:4]
        ctx.biased = bias is not None
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # those of bytes would be zeros to write
        ctx.save_for_backward(x, w, output[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        (x, w, which), g, wanted = ctx.saved_tensors, ctx.geometry, ctx.needs_input_grad
        full = unpooled(dy, which, g) if wanted[0] else None
        dx = None if full is None else implicit.filled(conv._Spread.apply(full, w, g), x.shape[2])
        dw = None
        if wanted[1]:
            dw = _Sum.apply(x, dy, which, g, w.shape[2]) if full is None else _weights_of(x, full, g, w.shape[2])
        db = (dy * (which < 4)).sum((1, 3, 4)) if ctx.biased and wanted[2] else None
        return dx, dw, db, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry, relu: bool,
        planar: bool,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:  # fmt: skip
        lead = led(info.batch_size, in_dims, (x, w, bias))
        y, which = _Pooled.apply(*lead, g, relu, planar)
        return (y.unflatten(0, (info.batch_size, -1)), which.unflatten(0, (info.batch_size, -1))), (0, 0)


class _Sum(torch.autograd.Function):
    """The gradient of weights of so many channels, of x, and dy of maxima: without what lies between, where nothing
    else needs it."""

    @staticmethod
    def forward(x: Tensor, dy: Tensor, which: Tensor, g: Geometry, channels: int) -> Tensor:
        done = implicit.product("pooled_correlate", _sum_one_by_one, x, dy, g, which, channels)
        return _sum(x, dy, which, g)[:, :, :channels] if done is None else done

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.geometry, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
        (x, dy, which), g, wanted = ctx.saved_tensors, ctx.geometry, ctx.needs_input_grad
        dw = implicit.filled(dw, x.shape[2])
        to_x = conv._Spread.apply(unpooled(dy, which, g), dw, g) if wanted[0] else None
        if not wanted[1]:
            return to_x, None, None, None, None
        y = _rows(conv._Convolve.apply(x, dw, g)[0]).flatten(0, 1)
        picked = _Pick.apply(y, _rows(which).flatten(0, 1), g.out).unflatten(0, dy.shape[:2])
        return to_x, picked.permute(0, 1, 4, 2, 3), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, dy: Tensor, which: Tensor, g: Geometry, channels: int
    ) -> tuple[Tensor, int]:
        lead = led(info.batch_size, in_dims, (x, dy, which))
        return _Sum.apply(*lead, g, channels).unflatten(0, (info.batch_size, -1)), 0


def unpooled(dy: Tensor, which: Tensor, g: Geometry) -> Tensor:
    """The gradient of what maxima were taken of."""
    rows = _Unpool.apply(_rows(dy).flatten(0, 1), _rows(which).flatten(0, 1), g.out)
    full: Tensor = rows.unflatten(0, dy.shape[:2]).permute(0, 1, 4, 2, 3)
    return full


def _weights_of(x: Tensor, dy: Tensor, g: Geometry, channels: int) -> Tensor:
    """The gradient of weights of so many of the channels of x."""
    dw: Tensor = conv._Correlate.apply(x, dy, conv._nothing(x), g)
    return dw if dw.shape[2] == channels else dw[:, :, :channels]


def _sum(x: Tensor, dy: Tensor, which: Tensor, g: Geometry) -> Tensor:
    return conv._correlate(x, unpooled(dy, which, g), conv._nothing(x), g)


def _sum_one_by_one(x: Tensor, dy: Tensor, g: Any) -> Tensor:
    return _sum(x, dy, implicit.which_of(dy), g)


def both(x: Tensor, w: Tensor, g: Geometry, bias: Tensor | None, relu: bool) -> tuple[Tensor, Tensor]:
    """The same by two kernels, one after the other."""
    y = conv._convolve(x, implicit.filled(w, x.shape[2]), g)[0]
    y = y if bias is None else y + bias[:, None, :, None, None]
    found = kernels.pool(_rows(y).flatten(0, 1), relu)
    small, which = (t.unflatten(0, x.shape[:2]).permute(0, 1, 4, 2, 3) for t in found)
    return small, which


def _one_by_one(x: Tensor, w: Tensor, g: Any) -> Tensor:
    return both(x, w, g, None, True)[0]


def _rows(x: Tensor) -> Tensor:
    """[G, B, C, h, w] as [G, B, h, w, C]."""
    return x.permute(0, 1, 3, 4, 2)
