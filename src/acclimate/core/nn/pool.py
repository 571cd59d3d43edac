"""2 x 2 maximum pooling under `vmap`, differentiable to any order.

On a GPU each of three functions has the next as its derivative: `pool` gives maxima and where they were, its gradient
puts numbers back there, and the gradient of that picks them up again. On a CPU halves of the images are compared, which
is several times quicker than torch's own pooling, unless a pixel's channels lie side by side. That is used elsewhere;
all choose the first of equal numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import kernels
from .mapping import is_batched, is_tracked


class PureMaxPool2d(nn.MaxPool2d):
    """Maximum pooling of 2 x 2 blocks that is fast under `vmap`."""

    loose: bool = False
    """As `PureConv2d.loose`."""
    planar: bool = False
    """Whether what follows reads the result channel by channel."""

    def forward(self, input: Tensor) -> Tensor:
        if not is_batched(input) or (input.is_cuda and not kernels.usable(input)):
            return super().forward(input)
        if input.is_cuda:
            y = _Pool.apply(input.permute(0, 2, 3, 1))[0].permute(0, 3, 1, 2)
            return y if self.loose else y.contiguous()
        if input.stride(1) == 1:  # a pixel's channels side by side: torch's own is quicker
            return super().forward(input)
        y = _halved(_halved(input, -1), -2)
        return y if self.loose and input.stride(0) == 1 else y.contiguous()  # as `PureConv2d.turned` left it


def fits(layer: nn.Module) -> bool:
    """Whether a layer can become a `PureMaxPool2d`."""
    if type(layer) is not nn.MaxPool2d:
        return False
    sizes = [v if isinstance(v, tuple) else (v, v) for v in (layer.kernel_size, layer.stride, layer.padding)]
    plain = not (layer.ceil_mode or layer.return_indices) and layer.dilation in (1, (1, 1))
    return plain and sizes == [(2, 2), (2, 2), (0, 0)]


def _halved(x: Tensor, axis: int) -> Tensor:
    """The larger of every two neighbours along an axis; an odd last one is left out."""
    a, b = x.narrow(axis, 0, x.shape[axis] // 2 * 2).unflatten(axis, (-1, 2)).unbind(axis)
    if not is_tracked(x):
        return torch.maximum(a, b)
    return torch.where((b > a) | b.isnan(), b, a)  # the maximum of equal numbers would share the gradient among them


def _mapped(f: Any, info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Tensor, ...], *rest: Any) -> Any:
    """Run f with the mapped axis folded into the leading one: every image is on its own."""
    lead = [
        (t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)).flatten(0, 1)
        for t, d in zip(tensors, in_dims, strict=False)
    ]
    return f(*lead, *rest)


class _Pool(torch.autograd.Function):
    """Maxima of [N, a, b, c] over 2 x 2 blocks of a and b, and which of the four they were."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.pool(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.size = (inputs[0].shape[1], inputs[0].shape[2])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> Tensor:
        dx: Tensor = _Unpool.apply(dy, ctx.saved_tensors[0], ctx.size)
        return dx

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        y, which = _mapped(_Pool.apply, info, in_dims, (x,))
        return (y.unflatten(0, (info.batch_size, -1)), which.unflatten(0, (info.batch_size, -1))), (0, 0)


class _Unpool(torch.autograd.Function):
    """Numbers put back where the maxima were."""

    @staticmethod
    def forward(dy: Tensor, which: Tensor, size: tuple[int, int]) -> Tensor:
        return kernels.unpool(dy, which, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.size = inputs[2]

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None, None]:
        return _Pick.apply(dx, ctx.saved_tensors[0], ctx.size), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], dy: Tensor, which: Tensor, size: Any) -> tuple[Tensor, int]:
        dx = _mapped(_Unpool.apply, info, in_dims, (dy, which), size)
        return dx.unflatten(0, (info.batch_size, -1)), 0


class _Pick(torch.autograd.Function):
    """Numbers picked up where the maxima were."""

    @staticmethod
    def forward(x: Tensor, which: Tensor, size: tuple[int, int]) -> Tensor:
        return kernels.pick(x, which)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.size = inputs[2]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return _Unpool.apply(dy, ctx.saved_tensors[0], ctx.size), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, which: Tensor, size: Any) -> tuple[Tensor, int]:
        y = _mapped(_Pick.apply, info, in_dims, (x, which), size)
        return y.unflatten(0, (info.batch_size, -1)), 0
