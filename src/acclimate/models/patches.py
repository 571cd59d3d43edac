"""Images as tokens: cut into patches, multiplied, and put in their places behind a class token.

On a GPU the tokens of a frozen trunk take fewer passes over images (`core.nn.patch_kernels`, where those serve); any
order of gradient works.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from ..core.nn import trials
from ..core.nn.trials import patches_of, places_of
from . import low_rank
from .low_rank import check_shared, joined


def tokens_of(layer: Patches, x: Tensor, places: Tensor, alike: bool) -> Tensor:
    """A zero and the layer's output for images [..., C, H, W], along tokens, + places [1, T + 1, width]. On a GPU a
    trunk's layer takes few passes where places are alike for all clients."""
    watched = layer._forward_hooks or layer._forward_pre_hooks
    if not x.is_cuda or not alike or layer.learns() or watched:
        return places_of(layer(x), places)
    return frozen_tokens(x, layer.side, layer.proj.weight.flatten(1), layer.proj.bias, places[0])


def frozen_tokens(x: Tensor, side: int, weight: Tensor, bias: Tensor, places: Tensor) -> Tensor:
    """The same for patches of this side, frozen weights [width, C * side * side], and places [T + 1, width]."""
    y = low_rank.linear(_Cut.apply(x.reshape(-1, *x.shape[-3:]), side), weight, bias)
    out: Tensor = _Placed.apply(y, places)
    return out.unflatten(0, x.shape[:-3])


class Patches(nn.Module):
    """A convolution whose step is its kernel, as the matrix product that it is."""

    def __init__(self, channels: int, side: int, width: int) -> None:
        super().__init__()
        self.side = side
        self.proj = _Kernel(channels, width, side)

    def forward(self, x: Tensor) -> Tensor:
        patches = patches_of(x, self.side)
        weight, bias = self.proj.weight.flatten(1), self.proj.bias
        if self.learns():
            return F.linear(patches, weight, bias)
        return low_rank.linear(patches, weight, bias)  # of a trunk: the same for all clients

    def learns(self) -> bool:
        """Whether its weights are its own, not a trunk's."""
        return bool(self.proj._parameters)


class _Kernel(nn.Module):
    """Weights by the names and shapes of a convolution, [width, channels, patch, patch]."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels, patch, patch))
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.weight.data.view(width, -1))


class _Cut(Function):
    """Patches [N, T, C * side * side] of images [N, C, H, W]."""

    @staticmethod
    def forward(x: Tensor, side: int) -> Tensor:
        return trials.cut(x.contiguous(), side) if trials.serves_patches(x, side) else trials.patches_of(x, side)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape, ctx.side = inputs[0].shape[1:], inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (channels, high, wide), side = ctx.shape, ctx.side
        parts = g.unflatten(-1, (channels, side, side)).unflatten(1, (high // side, wide // side))
        return parts.permute(0, 3, 1, 4, 2, 5).reshape(len(g), channels, high, wide), None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, side: int) -> Any:
        return _Cut.apply(joined(info.batch_size, x, dims[0]), side).unflatten(0, (info.batch_size, -1)), 0


class _Placed(Function):
    """Tokens [N, T + 1, width] of y [N, T, width] and frozen places."""

    @staticmethod
    def forward(y: Tensor, places: Tensor) -> Tensor:
        if trials.serves_places(y):
            return trials.placed(y.contiguous(), places.contiguous())
        return trials.places_of(y, places)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g[:, 1:], None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], y: Tensor, places: Tensor) -> Any:
        check_shared(dims[1])
        size = info.batch_size
        return _Placed.apply(joined(size, y, dims[0]), places).unflatten(0, (size, -1)), 0
