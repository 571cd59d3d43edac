"""The two pairs of a model with a shared and a local LoRA (`models.LoRA(private=...)`), and how much each counts.

A layer gives W x + (1 - share) B_s A_s x + share B_l A_l x. A share is a number, or one per sample.
"""

from __future__ import annotations

from torch import Tensor
from torch.func import vmap

from ..core import Key, Mode, Out, Task, Tree
from .params import merge, with_params


def local_names(task: Task) -> frozenset[str]:
    """The parameters of the local pairs; none where a model has none."""
    return frozenset(n for n in task.params if ".local." in n)


def whole(vars: Tree, mine: Tree) -> Tree:
    """Variables with the client's own local pairs, `mine["local"]`, where it has any."""
    return merge(vars, {"params": mine["local"], "buffers": {}}) if "local" in mine else vars


def mixed(vars: Tree, share: Tensor | float) -> Tree:
    """Variables with which each layer gives the mixture: B is scaled, because the product is linear in it."""
    weights = {".local.b": share, ".shared.b": 1.0 - share}
    scaled = {n: p * w for n, p in vars["params"].items() for end, w in weights.items() if n.endswith(end)}
    new: Tree = with_params({"vars": vars}, scaled)["vars"]
    return new


def apply(task: Task, vars: Tree, share: Tensor, x: Tensor, mode: Mode = "eval", key: Key | None = None) -> Out:
    """The mixture's outputs: one share for all samples, or a share for each, [B]."""
    if share.dim() == 0:
        return task.apply(mixed(vars, share), x, mode, key)

    def one(share: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        out = task.apply(mixed(vars, share), x[None], mode, key)
        return out.logits[0], out.features[0]

    return Out(*vmap(one)(share, x), vars["buffers"])


def share_of(model: Tree, share: Tensor | float) -> Tree:
    """The deployed model with another share of the local pairs; a client that never trained them has none of them."""
    return {**model, "share": share * model["seen"]}
