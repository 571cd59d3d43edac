"""AugMix's chains and their mixture on a CPU: every operation runs on the images that drew it, and on no others.

Under `vmap` an operation cannot be left out, so each step of a chain would compute all of them for every image and keep
one. A function with a rule for `vmap` of its own sees plain tensors, and can look at what was drawn. Most draws change
nothing in the end (chains end early, weak warps move nothing) and cost nothing here. The bits are those of computing
all operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Apply = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`apply(op, images, amounts, matrices)`: the same operation for some images [N, C, H, W]."""


class ChainsOnCpu(torch.autograd.Function):
    """Views as `augmix_kernel.ChainMixture` has them; the last argument says how an operation is applied."""

    @staticmethod
    def forward(
        base: Tensor, op: Tensor, amount: Tensor, matrix: Tensor, weight: Tensor, keep: Tensor, apply: Apply
    ) -> Tensor:
        given = (base, op, amount, matrix, weight, keep)
        parts = zip(*(each.split(BLOCK) for each in given), strict=True)
        return torch.cat([_mixture(apply, *part) for part in parts])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Every view is on its own: the mapped axis joins theirs."""
        *tensors, apply = inputs
        return ChainsOnCpu.apply(*joined(info, in_dims, tensors), apply).unflatten(0, (info.batch_size, -1)), 0


def joined(info: Any, in_dims: tuple[int | None, ...], tensors: list[Tensor]) -> list[Tensor]:
    """Tensors whose mapped axis has joined the first one."""
    return [
        (t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)).flatten(0, 1)
        for t, d in zip(tensors, in_dims, strict=False)
    ]


def _mixture(
    apply: Apply, base: Tensor, op: Tensor, amount: Tensor, matrix: Tensor, weight: Tensor, keep: Tensor
) -> Tensor:
    """The views of some images."""
    views, chains, depth = op.shape
    image = base.repeat_interleave(chains, 0)
    for t in range(depth):
        drawn, amounts, maps = (each[:, :, t].flatten(0, 1) for each in (op, amount, matrix))
        for number, at in _who(drawn, maps):
            some = (each.index_select(0, at) for each in (image, amounts, maps))
            image.index_copy_(0, at, apply(number, *some))
    mixed = image.unflatten(0, (views, chains)).mul_(weight.view(views, chains, 1, 1, 1)).sum(1)
    kept = keep.view(views, 1, 1, 1)
    return mixed.mul_(1.0 - kept).add_(kept * base).div_(255.0)


BLOCK = 256
"""Views that are computed at once: their chains fit into a processor's caches."""
WARP = 4
"""The first operation that moves places; those before it change values. All warps are one operation with other maps."""


def _who(op: Tensor, matrix: Tensor) -> list[tuple[int, Tensor]]:
    """Which images an operation changes, for every one that was drawn."""
    still = torch.eye(2, 3, device=matrix.device)
    moves = (matrix != still).flatten(1).any(1)
    by_value = [(number, op == number) for number in range(WARP)]
    each = [(number, mask.nonzero()[:, 0]) for number, mask in [*by_value, (WARP, moves)]]
    return [(number, at) for number, at in each if len(at)]
