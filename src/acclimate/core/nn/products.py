"""Convolutions on a CPU as matrix products of patches.

A pixel's channels lie side by side, so one row of a patch is one run of memory, and writing patches out costs little
beside the product. On ARM the product runs near the limit of the processor, forward and backward; torch's own
convolutions reach that forward only, and with few channels not even there (`benchmarks/conv_cpu.py` compares them). On
x86 they are oneDNN's, which are quicker than products both ways: there a client that trains alone takes them.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 2**20
"""Numbers in one example's patches up to which they are written out; beyond, torch's own convolution costs less."""
KEPT = 2**26
"""Numbers in all patches of a convolution up to which they are kept for the gradient of its weights."""


def native() -> bool:
    """Whether this is a kind of processor on which torch's own convolutions are quicker than products."""
    return platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()


NATIVE = native()
"""The same, asked for once. It counts for a client that runs alone; under `vmap` products are used everywhere."""


@dataclass(frozen=True)
class Geometry:
    """What a convolution is besides its tensors: sizes of input and kernel, step and padding.

    No tuple, which torch would take apart and put together in every call.
    """

    image: tuple[int, int]
    kernel: tuple[int, int]
    step: int
    pad: tuple[int, int]

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        h, w = ((n + 2 * p - k) // self.step + 1 for n, p, k in zip(self.image, self.pad, self.kernel, strict=True))
        return h, w


def usable(x: Tensor, channels: int, g: Geometry) -> bool:
    """Whether a convolution of so many channels is computed here; x is any tensor of its kind."""
    size = math.prod(g.out) * math.prod(g.kernel) * channels
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and size <= LARGEST


class Alone(torch.autograd.Function):
    """y [B, O, oh, ow] of x [B, I, h, w], w and a bias: one client, outside all transforms.

    What `conv._Convolve` is for all other cases, with one call forward and one backward.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
        seen, rows = patches(x, g).flatten(0, 1), w.permute(0, 2, 3, 1).flatten(1)
        y = seen @ rows.T if bias is None else torch.addmm(bias, seen, rows.T)
        ctx.geometry = g
        ctx.save_for_backward(x, w, seen if seen.numel() <= KEPT else None)
        return y.unflatten(0, (len(x), *g.out)).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, w, seen), g, wanted = ctx.saved_tensors, ctx.geometry, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # someone wants the gradient of this gradient
            more = ([g.step] * 2, g.pad, [1, 1], False, [0, 0], 1, wanted)
            return (*torch.ops.aten.convolution_backward(dy, x, w, [len(w)], *more), None)
        above = dy.permute(0, 2, 3, 1).flatten(0, 2)
        dx = spread(dy[None], w[None], g)[0] if wanted[0] else None
        dw = None
        if wanted[1]:
            seen = patches(x, g).flatten(0, 1) if seen is None else seen
            dw = (above.T @ seen).unflatten(1, (*g.kernel, w.shape[1])).permute(0, 3, 1, 2)
        return dx, dw, above.sum(0) if wanted[2] else None, None


def convolve(x: Tensor, w: Tensor, g: Geometry) -> tuple[Tensor, Tensor]:
    """y [G, B, O, oh, ow] of x [G, B, I, h, w] and w [G, O, I, kh, kw], and the patches [G, B, oh * ow, K]."""
    seen = patches(x.flatten(0, 1), g).unflatten(0, x.shape[:2])
    y = seen.flatten(1, 2) @ w.permute(0, 1, 3, 4, 2).flatten(2).transpose(1, 2)
    return y.unflatten(1, (x.shape[1], *g.out)).permute(0, 1, 4, 2, 3), seen


def spread(dy: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """The input's gradient dx [G, B, I, h, w] of dy and w: what every row of the kernel adds, one after the other."""
    (clients, batch), channels, (down, right) = dy.shape[:2], w.shape[2], g.kernel
    above, rows = _pixels(dy), w.permute(3, 0, 1, 4, 2).flatten(3)
    tall, wide = (n + 2 * p for n, p in zip(g.image, g.pad, strict=True))
    dx = dy.new_zeros(clients, batch, tall, wide, channels)
    high, long = ((n - 1) * g.step + 1 for n in g.out)
    for i in range(down):
        part = (above @ rows[i]).view(clients, batch, *g.out, right, channels)
        row = dx[:, :, i : i + high : g.step]
        for j in range(right):
            row[:, :, :, j : j + long : g.step].add_(part[..., j, :])
    inner = dx[:, :, g.pad[0] : g.pad[0] + g.image[0], g.pad[1] : g.pad[1] + g.image[1]]
    return inner.permute(0, 1, 4, 2, 3)


def correlate(x: Tensor, dy: Tensor, seen: Tensor, g: Geometry) -> Tensor:
    """The weights' gradient dw [G, O, I, kh, kw] of x and dy; `seen` has the patches, or nothing."""
    seen = seen if seen.shape[-1] else patches(x.flatten(0, 1), g).unflatten(0, x.shape[:2])
    dw = _pixels(dy).transpose(1, 2) @ seen.flatten(1, 2)
    return dw.unflatten(2, (*g.kernel, x.shape[2])).permute(0, 1, 4, 2, 3)


def patches(x: Tensor, g: Geometry) -> Tensor:
    """What every output pixel of x [B, I, h, w] sees, [B, oh * ow, kh * kw * I], channels fastest."""
    (down, right), (high, wide) = g.kernel, g.out
    rows = x.permute(0, 2, 3, 1)
    rows = F.pad(rows, (0, 0, g.pad[1], g.pad[1], g.pad[0], g.pad[0])) if any(g.pad) else rows.contiguous()
    a, b, c, _ = rows.stride()
    runs = rows.as_strided((len(x), high, wide, down, right * x.shape[1]), (a, g.step * b, g.step * c, b, 1))
    return runs.flatten(3).flatten(1, 2)


def _pixels(y: Tensor) -> Tensor:
    """[G, B, O, oh, ow] as [G, B * oh * ow, O]."""
    return y.permute(0, 1, 3, 4, 2).flatten(1, 3)
