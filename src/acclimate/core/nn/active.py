"""A convolution with bias and ReLU after it in one pass: under `vmap`, to any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import conv, implicit
from .mapping import led
from .products import Geometry


class Active(torch.autograd.Function):
    """y [G, B, O, oh, ow] of x [G, B, I, h, w], w [G, O, I, kh, kw] and bias [G, O] or None."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        done: Tensor | None = implicit.product("convolve", _written, x, w, g, bias, True)
        if done is not None:
            return done
        y = conv._convolve(x, w, g)[0]
        return (y if bias is None else y + bias[:, None, :, None, None]).relu()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, ctx.geometry = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, w, output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, w, y), g, wanted = ctx.saved_tensors, ctx.geometry, ctx.needs_input_grad
        let = torch.ops.aten.threshold_backward(dy, y, 0)
        dx = conv._Spread.apply(let, w, g) if wanted[0] else None
        dw = conv._Correlate.apply(x, let, conv._nothing(x), g) if wanted[1] else None
        return dx, dw, let.sum((1, 3, 4)) if ctx.biased and wanted[2] else None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry
    ) -> tuple[Tensor, int]:
        y = Active.apply(*led(info.batch_size, in_dims, (x, w, bias)), g)
        return y.unflatten(0, (info.batch_size, -1)), 0


def _written(x: Tensor, w: Tensor, g: Any) -> Tensor:
    return conv._convolve(x, w, g)[0]
