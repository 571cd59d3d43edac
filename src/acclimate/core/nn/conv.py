"""Two-dimensional convolution for clients with weights of their own, differentiable to any order.

Under `vmap` torch turns a convolution whose weights differ from client to client into a grouped one, which is slow on
every device. Here the client axis is an axis of the operation itself. A convolution y(x, w) is linear in both
arguments, and so are the gradients of its input and of its weights; each of the three has the other two as its
derivatives:

    convolve(x, w) -> y        spread(dy, w) -> dx        correlate(x, dy) -> dw

so three functions are closed under differentiation, and under `vmap`: an axis that both arguments have joins the client
axis, an axis that one has alone joins its batch or its channels. On a GPU the convolution is a batched matrix product
whose patches are gathered inside the product or written out before it, whichever is faster (`implicit.py`); on a CPU
clients are convolved one after the other, which is quicker there than a grouped convolution. Outside `vmap`, and on a
GPU without Triton, torch's own convolution is used as it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from . import implicit, kernels, products
from .cuts import Kind
from .mapping import is_batched as is_batched
from .mapping import is_tracked as is_tracked
from .products import Geometry as Geometry


class PureConv2d(nn.Conv2d):
    """A convolution that stays fast under `vmap` with a weight per client."""

    loose: bool = False
    """Whether what follows takes the result in the order it was computed in, a pixel's channels side by side."""
    loose_by_kernel: bool = False
    """The same of what kernels compute; torch's own order stays where they do not serve, as on a CPU."""
    turned: bool = False
    """Whether what follows takes a result whose examples lie side by side in memory."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert not isinstance(self.padding, str)
        kernel, pad = (weight.shape[-2], weight.shape[-1]), (self.padding[0], self.padding[1])
        geometry = Geometry((input.shape[-2], input.shape[-1]), kernel, self.stride[0], pad)
        alone = not (is_batched(input) or is_batched(weight))
        if not _supported(input) or (alone and not _trained(input, weight, geometry)):
            if _skips(input, geometry):
                return F.conv2d(_channels_last(input[..., :: geometry.step, :: geometry.step]), weight, bias)
            return super()._conv_forward(_channels_last(input), weight, bias)
        if alone and not torch._C._are_functorch_transforms_active():
            y: Tensor = products.Alone.apply(input, weight, bias, geometry)
            return y
        if self.turned and _few(input, weight, geometry):
            return _turned(input, weight, bias, geometry)
        if not alone:
            input, weight = implicit.aligned(input, weight)
        # squeeze, not [0]: the gradient of a selection is a copy into zeros
        y = _Convolve.apply(input.unsqueeze(0), weight.unsqueeze(0), geometry)[0].squeeze(0)
        y = y if bias is None else y + bias[:, None, None]
        free = self.loose or alone or (self.loose_by_kernel and kernels.takes(y))
        return y if free else y.contiguous()


def fits(layer: nn.Module) -> bool:
    """Whether a layer can become a `PureConv2d`: square steps, zero padding by numbers, no groups, no dilation."""
    return (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.stride[0] == layer.stride[1]
        and tuple(layer.dilation) == (1, 1)
        and not isinstance(layer.padding, str)
        and layer.padding_mode == "zeros"
    )


def _supported(x: Tensor) -> bool:
    """On a GPU, what the kernels know; on a CPU everything."""
    return not x.is_cuda or kernels.usable(x)


def _trained(x: Tensor, w: Tensor, g: Geometry) -> bool:
    """Whether a gradient is to go through a convolution that is quicker here than torch's own."""
    ours = not products.NATIVE and x.dim() == 4 and products.usable(x, w.shape[1], g)
    return ours and (is_tracked(x) or is_tracked(w))


def _channels_last(x: Tensor) -> Tensor:
    """Images on a CPU with a pixel's channels side by side, an order in which torch's own convolution is quicker."""
    return x if x.is_cuda or x.dim() != 4 else x.contiguous(memory_format=torch.channels_last)


BLOCK = 16
"""Channels from which on oneDNN may pass over pixels itself."""


def _skips(x: Tensor, g: Geometry) -> bool:
    """Whether pixels that a 1 x 1 convolution passes over are left out of its input beforehand, on a CPU.

    With few channels, side by side, oneDNN's gradient of such weights is wrong on x86, or writes where it may not and
    ends the process (uxlfoundation/oneDNN, issue 6035: channels that do not fill a block of 8, or 16 with AVX-512).
    """
    return not x.is_cuda and g.kernel == (1, 1) and g.step > 1 and g.pad == (0, 0) and x.shape[-3] < BLOCK


FEW, SIDE = 2**18, 16
"""Numbers in the patches of a client's batch up to which they are written out on a CPU, and examples from which on."""


def _few(x: Tensor, w: Tensor, g: Geometry) -> bool:
    """Whether clients on a CPU share a small convolution of many examples each."""
    size = len(x) * math.prod(g.out) * math.prod(w.shape[1:])
    return not x.is_cuda and not is_batched(w) and len(x) >= SIDE and size <= FEW


def _turned(x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """A convolution as one matrix product per client, y [B, O, oh, ow] of x [B, I, h, w], examples side by side.

    With few channels torch's own takes several times as long, and so does batch norm in another order.
    """
    padded = F.pad(x, (g.pad[1], g.pad[1], g.pad[0], g.pad[0])) if any(g.pad) else x
    rows = padded.permute(1, 2, 3, 0).contiguous()
    down, right = (range(k) for k in g.kernel)
    high, wide = ((n - 1) * g.step + 1 for n in g.out)
    seen = [rows[:, i : i + high : g.step, j : j + wide : g.step] for i in down for j in right]
    y = w.flatten(1) @ torch.stack(seen, 1).flatten(0, 1).flatten(1)
    y = y if bias is None else y + bias[:, None]
    return y.unflatten(1, (*g.out, len(x))).permute(3, 0, 1, 2)


class _Convolve(torch.autograd.Function):
    """y [G, B, O, oh, ow] of x [G, B, I, h, w] and w [G, O, I, kh, kw], and the patches that were written out for it.

    The patches are a means to an end: the weights' gradient needs them again, and small ones are kept till then.
    """

    @staticmethod
    def forward(x: Tensor, w: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        return _convolve(x, w, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, w, ctx.geometry = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w, output[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        x, w, seen = ctx.saved_tensors
        dx = _Spread.apply(dy, w, ctx.geometry) if ctx.needs_input_grad[0] else None
        dw = _Correlate.apply(x, dy, seen, ctx.geometry) if ctx.needs_input_grad[1] else None
        return dx, dw, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, geometry: Geometry
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
        at_x, at_w, _ = in_dims
        if at_x is not None and at_w is not None:
            y, seen = _Convolve.apply(_join(x, at_x, 0), _join(w, at_w, 0), geometry)
            return (_part(y, info.batch_size, 0), _part(seen, info.batch_size, 0)), (0, 0)
        if at_x is not None:
            y, seen = _Convolve.apply(_join(x, at_x, 1), w, geometry)
            return (_part(y, info.batch_size, 1), _part(seen, info.batch_size, 1)), (1, 1)
        assert at_w is not None
        y, seen = _Convolve.apply(x, _join(w, at_w, 1), geometry)
        return (_part(y, info.batch_size, 2), seen), (2, None)


class _Spread(torch.autograd.Function):
    """The input's gradient dx of dy and w."""

    @staticmethod
    def forward(dy: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        return _spread(dy, w, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        dy, w, ctx.geometry = inputs
        ctx.save_for_backward(dy, w)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        dy, w = ctx.saved_tensors
        to_dy = _Convolve.apply(dx, w, ctx.geometry)[0] if ctx.needs_input_grad[0] else None
        to_w = _Correlate.apply(dx, dy, _nothing(dx), ctx.geometry) if ctx.needs_input_grad[1] else None
        return to_dy, to_w, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], dy: Tensor, w: Tensor, geometry: Geometry
    ) -> tuple[Tensor, int]:
        at_y, at_w, _ = in_dims
        if at_y is not None and at_w is not None:
            dx = _Spread.apply(_join(dy, at_y, 0), _join(w, at_w, 0), geometry)
            return _part(dx, info.batch_size, 0), 0
        if at_y is not None:
            return _part(_Spread.apply(_join(dy, at_y, 1), w, geometry), info.batch_size, 1), 1
        assert at_w is not None
        return _part(_Spread.apply(dy, _join(w, at_w, 2), geometry), info.batch_size, 2), 2


class _Correlate(torch.autograd.Function):
    """The weights' gradient dw of x and dy. `seen` holds x's patches where they were kept: no argument by itself."""

    @staticmethod
    def forward(x: Tensor, dy: Tensor, seen: Tensor, geometry: Geometry) -> Tensor:
        return _correlate(x, dy, seen, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, dy, _, ctx.geometry = inputs
        ctx.save_for_backward(x, dy)

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
        x, dy = ctx.saved_tensors
        to_x = _Spread.apply(dy, dw, ctx.geometry) if ctx.needs_input_grad[0] else None
        to_dy = _Convolve.apply(x, dw, ctx.geometry)[0] if ctx.needs_input_grad[1] else None
        return to_x, to_dy, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, dy: Tensor, seen: Tensor, geometry: Geometry
    ) -> tuple[Tensor, int]:
        at_x, at_y, at_seen, _ = in_dims
        if at_x is not None and at_y is not None:
            seen = _join(seen, at_seen, 0) if at_seen is not None else _nothing(x)
            dw = _Correlate.apply(_join(x, at_x, 0), _join(dy, at_y, 0), seen, geometry)
            return _part(dw, info.batch_size, 0), 0
        if at_x is not None:
            return _part(_Correlate.apply(_join(x, at_x, 2), dy, _nothing(x), geometry), info.batch_size, 2), 2
        assert at_y is not None
        dw = _Correlate.apply(x, _join(dy, at_y, 2), seen if at_seen is None else _nothing(x), geometry)
        return _part(dw, info.batch_size, 1), 1


def _join(x: Tensor, mapped: int, into: int) -> Tensor:
    """Fold the mapped axis into another one (counted without it), as its slower part."""
    return x.movedim(mapped, into).flatten(into, into + 1)


def _part(x: Tensor, size: int, axis: int) -> Tensor:
    """Take an axis apart again: its slower part, of `size`, comes first."""
    return x.unflatten(axis, (size, -1))


KEPT = 2**17
"""Numbers in one example's patches up to which they are kept from the convolution for the gradient of its weights."""


def _nothing(like: Tensor) -> Tensor:
    """No patches, with the axes of clients and examples that patches would have."""
    return like.new_empty(*like.shape[:2], 0, 0)


def _convolve(x: Tensor, w: Tensor, g: Geometry) -> tuple[Tensor, Tensor]:
    if (done := implicit.product("convolve", lambda *a: _convolve(*a)[0], x, w, g)) is not None:
        return done, _nothing(x)
    if _writes("convolve", x, w, g):
        seen = _seen(x, g)
        y = _product(seen.flatten(1, 2), _matrix(w)).unflatten(1, (x.shape[1], *g.out)).permute(0, 1, 4, 2, 3)
        own = seen.data_ptr() == x.data_ptr()  # the image itself, which an operation may not give back
        return y, seen if math.prod(seen.shape[2:]) <= KEPT and not own else _nothing(x)
    if products.usable(x, x.shape[2], g):
        y, seen = products.convolve(x, w, g)
        return y, seen if math.prod(seen.shape[2:]) <= KEPT else _nothing(x)
    y = torch.stack([F.conv2d(a, b, None, g.step, g.pad) for a, b in zip(x, w, strict=True)])
    return y, _nothing(x)


def _spread(dy: Tensor, w: Tensor, g: Geometry) -> Tensor:
    if (done := implicit.product("spread", _spread, dy, w, g)) is not None:
        return done
    if _writes("spread", dy, w, g):
        cols = _product(_pixels(dy), _matrix(w).transpose(1, 2))
        cols = cols.view(dy.shape[0] * dy.shape[1], g.out[0] * g.out[1], -1)
        return kernels.unpatch(cols, w.shape[2], g.image, g.out, g.kernel, g.step, g.pad).unflatten(0, dy.shape[:2])
    if products.usable(dy, w.shape[2], g):
        return products.spread(dy, w, g)
    shape = (dy.shape[1], w.shape[2], *g.image)
    return torch.stack([conv2d_input(shape, b, a, g.step, g.pad) for a, b in zip(dy, w, strict=True)])


def _correlate(x: Tensor, dy: Tensor, seen: Tensor, g: Geometry) -> Tensor:
    written = lambda x, dy, g: _correlate(x, dy, _nothing(x), g)  # noqa: E731
    if (done := implicit.product("correlate", written, x, dy, g)) is not None:
        return done
    if _writes("correlate", x, dy, g):
        length = g.kernel[0] * g.kernel[1] * x.shape[2]
        above, seen = _pixels(dy), (seen if seen.shape[-1] else _seen(x, g)).flatten(1, 2)
        parts = _parts(len(x), above.shape[1], above.shape[2] * seen.shape[2])
        above, seen = (t.reshape(len(x) * parts, -1, t.shape[-1]) for t in (above, seen))
        dw = _product(above.transpose(1, 2), seen).unflatten(0, (-1, parts)).sum(1)[..., :length]
        return dw.unflatten(2, (*g.kernel, x.shape[2])).permute(0, 1, 4, 2, 3)
    if products.usable(x, x.shape[2], g):
        return products.correlate(x, dy, seen, g)
    shape = (dy.shape[2], x.shape[2], *g.kernel)
    return torch.stack([conv2d_weight(a, shape, b, g.step, g.pad) for a, b in zip(x, dy, strict=True)])


def _writes(kind: Kind, a: Tensor, b: Tensor, g: Geometry) -> bool:
    """Whether patches are written out by a kernel: of several clients always, of one where that was faster."""
    return (a.is_cuda and len(a) > 1) or implicit.writes(kind, a, b, g)


def _parts(clients: int, pixels: int, size: int) -> int:
    """How many pieces a sum over pixels is cut into, so that few clients with small kernels still fill the device."""
    blocks = clients * max(size // (64 * 64), 1)
    parts = 1
    while blocks * parts < 256 and pixels % (2 * parts) == 0 and pixels // (2 * parts) >= 512:
        parts *= 2
    return parts


def _seen(x: Tensor, g: Geometry) -> Tensor:
    """The patches of every client, [G, B, oh * ow, K]."""
    return kernels.patches(x.flatten(0, 1), g.out, g.kernel, g.step, g.pad).unflatten(0, x.shape[:2])


def _pixels(y: Tensor) -> Tensor:
    """[G, B, O, oh, ow] as [G, B * oh * ow, O]."""
    return y.permute(0, 1, 3, 4, 2).flatten(1, 3)


def _matrix(w: Tensor) -> Tensor:
    """The weights as [G, K, O], with zero rows up to K's multiple of 8."""
    flat = w.permute(0, 3, 4, 2, 1).flatten(1, 3)
    return F.pad(flat, (0, 0, 0, -flat.shape[1] % 8))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A batched matrix product with the precision that torch's switch for convolutions asks for."""
    switch = torch.backends.cuda.matmul
    before, switch.allow_tf32 = switch.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        return torch.bmm(a, b)
    finally:
        switch.allow_tf32 = before
