"""AugMix as keyed tensor code. Hendrycks et al., ICLR 2020, Algorithm 1, with the nine operations that MEMO uses.

A view is a random crop and flip of the image, mixed by a Beta(1, 1) weight with a Dirichlet(1) mixture of chains of
one to three operations. All views, chains and images run at once: every step of a chain is one table look-up (the
operations on values) and one bilinear warp (those on places), each the identity where the other was drawn.

As in PIL the chains work on 8-bit levels, channel by channel, and places outside the image become grey 128. Unlike
PIL: a warp rounds to the nearest level (PIL truncates), autocontrast is computed in whole numbers (PIL's floats can be
one level off), the grey is grey in every channel (PIL reads the released code's `fillcolor=128` on colour images as
dark red), and translations scale with the side (the released code is for 32 px).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import rng
from . import augmix_kernel
from .augment import FlipCrop
from .augmix_chains import ChainsOnCpu

OPS = (
    "autocontrast",
    "equalize",
    "posterize",
    "solarize",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
"""The operations a chain draws from, with equal chance."""

_GREY = 128.0
_AT = {name: i for i, name in enumerate(OPS)}


def augmix(
    x: Tensor, key: rng.Key, *, views: int, severity: float = 1.0, chains: int = 3, depth: int = 3, pad: int = 4
) -> Tensor:
    """`views` random views [views, C, H, W] of one image (uint8, or floats in 0..1): floats in 0..1."""
    base = FlipCrop(pad).several(to_levels(x), views, rng.fold(key, "crop"))
    draw = functools.partial(rng.uniform, rng.fold(key, "chain"))
    kind, strength, sign, length = draw(3 * depth + 1, views * chains).split([depth, depth, depth, 1])
    op = (kind * len(OPS)).to(torch.int64)
    last = (length * depth).to(torch.int64)  # a chain of one to `depth` operations
    op = torch.where(torch.arange(depth, device=x.device)[:, None] <= last, op, len(OPS))
    level = 0.1 + strength * (severity - 0.1)
    drawn = _drawn(op, level, torch.where(sign > 0.5, -1.0, 1.0), (base.shape[-2], base.shape[-1]))
    weight = -torch.log1p(-rng.uniform(rng.fold(key, "mix"), views, chains)) + 1e-12  # exponentials: Dirichlet(1)
    weight = weight / weight.sum(-1, keepdim=True)
    keep = rng.uniform(rng.fold(key, "keep"), views)
    each = [t.movedim(0, 1).unflatten(0, (views, chains)) for t in drawn]
    if augmix_kernel.usable(base):
        mixed: Tensor = augmix_kernel.ChainMixture.apply(base, *each, weight, keep, _GREY)
        return mixed
    if _looks(base):
        mixed = ChainsOnCpu.apply(base, *each, weight, keep, _only)
        return mixed
    image = base.repeat_interleave(chains, 0)
    for t in range(depth):
        image = _apply(image, Drawn(*(d[t] for d in drawn)))
    mixed = (weight.view(views, chains, 1, 1, 1) * image.unflatten(0, (views, chains))).sum(1)
    keep = keep.view(views, 1, 1, 1)
    return (keep * base + (1.0 - keep) * mixed) / 255.0


def _looks(base: Tensor) -> bool:
    """Whether the host may look at what was drawn: a GPU would have to be waited for."""
    return base.device.type == "cpu"


class Drawn(NamedTuple):
    """What was drawn for each step of each chain: [depth, N], and the maps [depth, N, 2, 3]."""

    op: Tensor
    """Which of `OPS`; beyond the last one: none."""
    amount: Tensor
    """The width of posterize's steps, or solarize's threshold."""
    matrix: Tensor
    """Maps from places of the output to places of the input; the identity where the operation is one on values."""


def _drawn(op: Tensor, level: Tensor, sign: Tensor, shape: tuple[int, int]) -> Drawn:
    """Strengths 0.1..10 as what the operations take."""
    h, w = shape

    def at(name: str, value: Tensor) -> Tensor:
        return torch.where(op == _AT[name], value, 0.0)

    matrix = affine(
        turn=at("rotate", sign * (level * 3.0).floor()),
        shear=(at("shear_x", sign * level * 0.03), at("shear_y", sign * level * 0.03)),
        shift=(at("translate_x", sign * (level * w / 30).floor()), at("translate_y", sign * (level * h / 30).floor())),
        shape=shape,
    )
    width = torch.exp2(4.0 + (level * 0.4).floor())  # 4 bits are left, or fewer
    return Drawn(op, torch.where(op == _AT["posterize"], width, 256 - (level * 25.6).floor()), matrix)


def to_levels(x: Tensor) -> Tensor:
    """Pixels (uint8, or floats in 0..1) as whole numbers 0..255 in float32."""
    if x.dtype == torch.uint8:
        return x.to(torch.float32)
    return (x.to(torch.float32) * 255.0).round().clamp(0.0, 255.0)


def _only(op: int, image: Tensor, amount: Tensor, matrix: Tensor) -> Tensor:
    """The same operation on some images, and no other: the numbers of `_apply`, tables only where needed."""
    if op >= len(OPS) - 5:
        return warp_in_place(image, matrix)
    values = image.flatten(2)
    size = amount[:, None, None]
    if OPS[op] == "posterize":
        values = (values / size).floor() * size
    elif OPS[op] == "solarize":
        values = torch.where(values < size, values, 255.0 - values)
    else:
        levels = values.to(torch.int64)
        table = autocontrast_table(image) if OPS[op] == "autocontrast" else equalize_table(levels)
        values = table.gather(-1, levels)
    return values.view_as(image)


def _apply(image: Tensor, drawn: Drawn) -> Tensor:
    """One operation per image [N, C, H, W]."""
    op = drawn.op

    def table(name: str, value: Tensor, other: Tensor) -> Tensor:
        return torch.where((op == _AT[name])[:, None, None], value, other)

    levels = image.flatten(2).to(torch.int64)
    lut = table("autocontrast", autocontrast_table(image), _values(image).expand(*image.shape[:2], 256))
    lut = table("equalize", equalize_table(levels), lut)
    lut = table("posterize", posterize_table(drawn.amount, image)[:, None], lut)
    lut = table("solarize", solarize_table(drawn.amount, image)[:, None], lut)
    return warp(lut.gather(-1, levels).view_as(image), drawn.matrix)


def _values(like: Tensor) -> Tensor:
    return torch.arange(256, device=like.device, dtype=torch.float32)


def autocontrast_table(image: Tensor) -> Tensor:
    """Per channel, the levels stretched so that the darkest becomes 0 and the lightest 255."""
    low, high = image.flatten(2).amin(-1, keepdim=True), image.flatten(2).amax(-1, keepdim=True)
    v = _values(image)
    stretched = ((v - low) * 255.0 / (high - low).clamp_min(1.0)).floor().clamp(0.0, 255.0)
    return torch.where(high > low, stretched, v)


def equalize_table(levels: Tensor) -> Tensor:
    """Per channel, histogram equalisation in PIL's whole-number arithmetic (it leaves images below 256 px alone).

    Levels are integers [N, C, pixels].
    """
    v = _values(levels)
    one = torch.ones((), device=levels.device).expand(levels.shape)
    counts = torch.zeros(*levels.shape[:2], 256, device=levels.device).scatter_add(-1, levels, one)
    top = counts.gather(-1, levels.amax(-1, keepdim=True))
    step = ((levels.shape[-1] - top) / 255.0).floor()
    below = counts.cumsum(-1) - counts
    spread = (((step / 2.0).floor() + below) / step.clamp_min(1.0)).floor().clamp_max(255.0)
    return torch.where(step > 0, spread, v)


def posterize_table(width: Tensor, like: Tensor) -> Tensor:
    """The levels [..., 256], each at the lower end of its step of this width."""
    width = width[..., None]
    return (_values(like) / width).floor() * width


def solarize_table(threshold: Tensor, like: Tensor) -> Tensor:
    """The levels [..., 256], inverted from the threshold upwards."""
    v = _values(like)
    return torch.where(v < threshold[..., None], v, 255.0 - v)


def affine(turn: Tensor, shear: tuple[Tensor, Tensor], shift: tuple[Tensor, Tensor], shape: tuple[int, int]) -> Tensor:
    """Maps [N, 2, 3] from places of the output to places of the input, in pixels.

    A turn (degrees) about the centre, shears about the upper left corner, and shifts; one of them per image.
    """
    cy, cx = shape[0] / 2, shape[1] / 2
    cos, sin = torch.cos(turn * math.pi / 180), torch.sin(turn * math.pi / 180)
    across = torch.stack((cos, sin + shear[0], cx - cos * cx - sin * cy + shift[0]), -1)
    down = torch.stack((shear[1] - sin, cos, cy + sin * cx - cos * cy + shift[1]), -1)
    return torch.stack((across, down), -2)


def warp(image: Tensor, matrix: Tensor) -> Tensor:
    """Levels [N, C, H, W] seen through the maps [N, 2, 3], bilinear, rounded, grey outside."""
    h, w = image.shape[-2:]
    px, py = _places(image, matrix)
    grid = torch.stack((px * (2.0 / w) - 1.0, py * (2.0 / h) - 1.0), -1)
    seen = F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=False).round()
    outside = (px < 0) | (px >= w) | (py < 0) | (py >= h)
    return torch.where(outside[:, None], _GREY, seen)


def warp_in_place(image: Tensor, matrix: Tensor) -> Tensor:
    """The same numbers, written over each other: on a CPU most of the time goes into memory."""
    h, w = image.shape[-2:]
    places = _places(image, matrix)
    grid = torch.empty(*places[0].shape, 2, device=image.device)
    outside = torch.zeros(places[0].shape, dtype=torch.bool, device=image.device)
    for i, (p, side) in enumerate(zip(places, (w, h), strict=True)):
        outside |= (p < 0).logical_or_(p >= side)
        torch.sub(p.mul_(2.0 / side), 1.0, out=grid[..., i])
    seen = F.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return seen.round_().masked_fill_(outside[:, None], _GREY)


def _places(image: Tensor, matrix: Tensor) -> list[Tensor]:
    """Where the maps [N, 2, 3] take every pixel's centre, across and down: two of [N, H, W]."""
    h, w = image.shape[-2:]
    x, y = (torch.arange(side, device=image.device) + 0.5 for side in (w, h))
    m = matrix[:, :, :, None, None]
    return [torch.addcmul(m[:, i, 1] * y[:, None] + m[:, i, 2], m[:, i, 0], x) for i in range(2)]
