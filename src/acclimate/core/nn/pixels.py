"""Images of many clients as a network's input, in one kernel: scaled, normalised, a pixel's channels side by side.

Kernels for convolutions fetch four channels at once. So there is room for a fourth where images have three, and it
holds zeros: `widened` gives such images with it, without a copy.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms

from . import kernels
from .kernels import AVAILABLE, jit
from .mapping import is_batched, lowest
from .rehearsal import blank, late
from .streams import recording, unrecorded

if AVAILABLE:
    import triton.language as tl

BLOCK = 1024
"""Numbers that one program writes."""
MARK = "_acclimate_room"
"""What a tensor has that `normalised` made, with room for a fourth channel."""


@late
@jit
def _pixels(x, mean, std, y, total, C: tl.constexpr, ROOM: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr):
    """y[n, p, c] = (x[n, c, p] / 255 - mean[c]) / std[c], and zeros from the channel C on."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, pixel = at % ROOM, at // ROOM
    real = (at < total) & (c < C)
    v = tl.load(x + ((pixel // PLANE) * C + c) * PLANE + pixel % PLANE, mask=real, other=0).to(tl.float32)
    v = tl.math.div_rn(v, tl.full((), 255.0, tl.float32))
    v = tl.math.div_rn(v - tl.load(mean + c, mask=real, other=0.0), tl.load(std + c, mask=real, other=1.0))
    tl.store(y + at, tl.where(real, v, 0.0).to(y.dtype.element_ty), mask=at < total)


@functools.lru_cache(maxsize=64)
def constant(values: tuple[float, ...], ndim: int, device: torch.device) -> Tensor:
    """Numbers of channels on a device, in the shape that images with so many axes are combined with."""
    # Memoised: making a tensor from Python numbers is a host-to-device copy, which a graph capture refuses. Outside all
    # transforms: a tensor made inside two nested `grad`s stays wrapped when they are over, and its next use fails.
    with outside_transforms(), unrecorded(device) if recording(device) else nullcontext():
        return torch.tensor(values, device=device).view(-1, *[1] * (ndim - 2))


SLACK = 0.01
"""How far floats may lie outside 0..1 and still be pixels: resampling overshoots a little."""


def are_pixels(x: Tensor) -> bool:
    """Whether inputs [N, C, H, W] can be pixels: uint8, or floats from 0 to 1. Other inputs are no images, and may be
    anything."""
    if x.dim() != 4 or not x.is_floating_point() or not x.numel():
        return True
    return float(x.min()) >= -SLACK and float(x.max()) <= 1.0 + SLACK


class ClippedFloats(ValueError):
    """Views would clip images that are no pixels."""


def check_augment(augment: object, pixels: bool, tokens: int | None) -> None:
    """Refuse a record that changes training images where the inputs are token ids, or floats that it would clip."""
    if augment is not None and tokens is not None:
        raise ValueError(f"augment={augment!r} changes images, and these inputs are token ids; leave augment out")
    if not pixels and getattr(augment, "clips", False):
        raise ClippedFloats(
            f"augment={augment!r} clips images to 0..1, and these floats lie outside: scale them, and set mean and std "
            "of the data record where the model is to have them normalised, or take FlipCrop, which leaves values alone"
        )


def serves(x: Tensor) -> bool:
    """Whether the kernel is for these images, clients mapped over."""
    here = AVAILABLE and (x.is_cuda or kernels.INTERPRETED)
    return here and x.dtype == torch.uint8 and x.dim() == 4 and x.shape[1] <= 4 and is_batched(x) and x.numel() > 0


def normalised(x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """Images [B, C, h, w] of bytes, scaled to 0..1, less `mean` [C] and over `std` [C]."""
    y: Tensor = _Pixels.apply(x, mean, std, dtype)
    if y.shape[1] == 3:
        setattr(lowest(y), MARK, True)
    return y


class _Pixels(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
        count, channels, height, width = x.shape
        room = 4 if channels == 3 else channels
        y = blank(count, height, width, room, dtype=dtype, device=x.device)
        grid = (-(-y.numel() // BLOCK),)
        _pixels[grid](x.contiguous(), mean, std, y, y.numel(), channels, room, height * width, BLOCK)
        return y[..., :channels].permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, int]:
        assert in_dims[0] is not None and in_dims[1] is None and in_dims[2] is None
        y = _Pixels.apply(x.movedim(in_dims[0], 0).flatten(0, 1), mean, std, dtype)
        return y.unflatten(0, (info.batch_size, -1)), 0


def widened(x: Tensor) -> Tensor:
    """Images [B, 3, h, w] with a fourth channel of zeros, a pixel's channels side by side."""
    if getattr(lowest(x), MARK, False):
        y: Tensor = _Room.apply(x)
        return y
    return F.pad(x.permute(0, 2, 3, 1), (0, 1)).permute(0, 3, 1, 2)


class _Room(torch.autograd.Function):
    """The fourth channel of images that `normalised` made."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.as_strided((len(x), 4, *x.shape[2:]), x.stride())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy[:, :3]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        y = _Room.apply(x.movedim(in_dims[0], 0).flatten(0, 1))
        return y.unflatten(0, (info.batch_size, -1)), 0
