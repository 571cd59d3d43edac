"""Depthwise convolutions for clients with weights of their own, differentiable to any order.

As in `conv.py` three functions are closed under differentiation, and under `vmap`; clients are an axis of each of them:

    convolve(x, w) -> y        spread(dy, w) -> dx        correlate(x, dy) -> dw

They are the kernels of `depthwise_kernels`, which read and write images with a pixel's channels side by side, as those
of other convolutions and of norms do: between them nothing is copied. torch's own depthwise convolutions want channels
apart from each other. They serve on a CPU, outside of `vmap`, and wherever a kernel does not work: each is tried once
for every size and step of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms

from . import depthwise_kernels, kernels, switches, trials
from .depthwise_kernels import Window
from .mapping import is_batched

KERNELS, STEPS = (3, 5), (1, 2)
"""Sizes of the kernels and steps that Triton kernels are made for."""
Sides = tuple[int, int, int, int]
"""Zeros around an image, as `F.pad` takes them: left, right, above, below."""


class PureDepthwise2d(nn.Conv2d):
    """A depthwise convolution that stays fast under `vmap`, also with a weight per client."""

    loose_by_kernel: bool = False
    """Whether what follows takes a kernel's result with a pixel's channels side by side."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert not isinstance(self.padding, str)
        above, left = self.padding
        y = self._by_kernel(input, weight, bias, (left, left, above, above))
        return super()._conv_forward(input, weight, bias) if y is None else y

    def padded(self, input: Tensor, sides: Sides) -> Tensor:
        """The convolution of an image with zeros around it, besides the layer's own padding, which must be none."""
        hooks = self._forward_hooks or self._forward_pre_hooks
        y = None if hooks else self._by_kernel(input, self.weight, self.bias, sides)
        return self(F.pad(input, sides)) if y is None else y

    def _by_kernel(self, input: Tensor, weight: Tensor, bias: Tensor | None, sides: Sides) -> Tensor | None:
        """The result, or None where the kernels do not serve."""
        if not serves(input, weight, self.stride[0]):
            return None
        k, step, (left, right, above, below) = weight.shape[-1], self.stride[0], sides
        image = (input.shape[-2], input.shape[-1])
        out = ((image[0] + above + below - k) // step + 1, (image[1] + left + right - k) // step + 1)
        if min(out) < 1:
            return None  # torch says what is wrong
        window = Window(image, out, k, step, (above, left))
        y: Tensor = _Convolve.apply(input.unsqueeze(0), weight.squeeze(1).unsqueeze(0), window).squeeze(0)
        y = y if bias is None else y + bias[:, None, None]
        return y if self.loose_by_kernel else y.contiguous()


def fits(layer: nn.Module) -> bool:
    """Whether a layer can become a `PureDepthwise2d`: a kernel for each channel, square, zero padding by numbers."""
    return (
        type(layer) is nn.Conv2d
        and layer.groups == layer.in_channels == layer.out_channels
        and layer.kernel_size[0] == layer.kernel_size[1]
        and layer.kernel_size[0] in KERNELS
        and layer.stride[0] == layer.stride[1]
        and layer.stride[0] in STEPS
        and tuple(layer.dilation) == (1, 1)
        and not isinstance(layer.padding, str)
        and layer.padding_mode == "zeros"
    )


def serves(x: Tensor, w: Tensor, step: int) -> bool:
    """Whether the kernels are for these images [B, C, h, w] and weights [C, 1, k, k], clients mapped over."""
    here = x.dim() == 4 and x.dtype == w.dtype and x.numel() > 0 and kernels.takes(x)
    if not here or not (is_batched(x) or is_batched(w)) or not switches.on("depthwise"):
        return False
    k, channels = w.shape[-1], min(x.shape[1], 32 + x.shape[1] % 32)
    kind = ("depthwise", k, step, channels)
    return trials.works(kind, x, lambda: _trial(x, k, step, channels), recorded=True)


class _Convolve(torch.autograd.Function):
    """y [G, B, C, oh, ow] of x [G, B, C, h, w] and w [G, C, k, k]."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, window: Window) -> Tensor:
        return depthwise_kernels.convolve(x, w, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ctx.window = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx = _Spread.apply(dy, w, ctx.window) if ctx.needs_input_grad[0] else None
        dw = _Correlate.apply(x, dy, ctx.window) if ctx.needs_input_grad[1] else None
        return dx, dw, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, w: Tensor, window: Window) -> tuple[Tensor, int]:
        return _with_weights(_Convolve.apply, info.batch_size, dims, x, w, window)


class _Spread(torch.autograd.Function):
    """The input's gradient dx of dy and w."""

    @staticmethod
    def forward(dy: Tensor, w: Tensor, window: Window) -> Tensor:
        return depthwise_kernels.spread(dy, w, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        dy, w, ctx.window = inputs
        ctx.save_for_backward(dy, w)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        dy, w = ctx.saved_tensors
        to_dy = _Convolve.apply(dx, w, ctx.window) if ctx.needs_input_grad[0] else None
        to_w = _Correlate.apply(dx, dy, ctx.window) if ctx.needs_input_grad[1] else None
        return to_dy, to_w, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], dy: Tensor, w: Tensor, window: Window) -> tuple[Tensor, int]:
        return _with_weights(_Spread.apply, info.batch_size, dims, dy, w, window)


class _Correlate(torch.autograd.Function):
    """The weights' gradient dw of x and dy."""

    @staticmethod
    def forward(x: Tensor, dy: Tensor, window: Window) -> Tensor:
        return depthwise_kernels.correlate(x, dy, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, dy, ctx.window = inputs
        ctx.save_for_backward(x, dy)

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
        x, dy = ctx.saved_tensors
        to_x = _Spread.apply(dy, dw, ctx.window) if ctx.needs_input_grad[0] else None
        to_dy = _Convolve.apply(x, dw, ctx.window) if ctx.needs_input_grad[1] else None
        return to_x, to_dy, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, dy: Tensor, window: Window) -> tuple[Tensor, int]:
        return _as_clients(_Correlate.apply, info.batch_size, dims, x, dy, window)


Product = Callable[[Tensor, Tensor, Window], Tensor]


def _as_clients(
    f: Product, size: int, dims: tuple[int | None, ...], a: Tensor, b: Tensor, window: Window
) -> tuple[Tensor, int]:
    """f with the mapped axis folded into that of clients; who has none is every client's, without a copy where there
    is one client."""
    a, b = (
        (t.expand(size, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1)
        for t, d in zip((a, b), dims, strict=False)
    )
    return f(a, b, window).unflatten(0, (size, -1)), 0


def _with_weights(
    f: Product, size: int, dims: tuple[int | None, ...], x: Tensor, w: Tensor, window: Window
) -> tuple[Tensor, int]:
    """The same; images alone are more images of a client's where there is one client."""
    if dims[0] is None or dims[1] is not None or len(w) > 1:
        return _as_clients(f, size, dims, x, w, window)
    return f(x.movedim(dims[0], 1).flatten(1, 2), w, window).unflatten(1, (size, -1)), 1


def _trial(like: Tensor, k: int, step: int, channels: int) -> float:
    """How far the kernels' results are from those of torch's operations, in float32, for images of two clients."""
    with outside_transforms():
        out = (8 // step + 1, (8 + k // 2 - k) // step + 1)  # zeros above and below, and on the left alone
        window = Window((9, 8), out, k, step, (k // 2, k // 2))
        x, w = trials.draw(like, 2, 3, channels, 9, 8), trials.draw(like, 2, channels, k, k)
        dy = trials.draw(like, 2, 3, channels, *window.out)
        found = (
            depthwise_kernels.convolve(x, w, window),
            depthwise_kernels.spread(dy, w, window),
            depthwise_kernels.correlate(x, dy, window),
        )
        expected = plain(x.float(), w.float(), dy.float(), window)
        return max(trials.apart(*pair) for pair in zip(found, expected, strict=True))


def plain(x: Tensor, w: Tensor, dy: Tensor, g: Window) -> tuple[Tensor, Tensor, Tensor]:
    """y, dx and dw in plain tensor code, tap by tap."""
    (high, wide), (above, left), (tall, long) = g.image, g.pad, g.out
    ends = (tall - 1) * g.step + g.kernel, (long - 1) * g.step + g.kernel
    sides = (left, max(ends[1] - left - wide, 0), above, max(ends[0] - above - high, 0))
    room, y = F.pad(x, sides), torch.zeros_like(dy)
    dx, slopes = torch.zeros_like(room), []
    for tap in range(g.kernel**2):
        i, j = divmod(tap, g.kernel)
        at = (..., slice(i, i + (tall - 1) * g.step + 1, g.step), slice(j, j + (long - 1) * g.step + 1, g.step))
        weight = w[:, None, :, i, j, None, None]
        y += room[at] * weight
        dx[at] += dy * weight
        slopes.append((room[at] * dy).sum((1, 3, 4)))
    dw = torch.stack(slopes, -1).unflatten(-1, (g.kernel, g.kernel))
    return y, dx[..., above : above + high, left : left + wide], dw
