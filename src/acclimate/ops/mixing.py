"""Mixes of what clients have tuned: how far they moved, how alike they are, and each client's own mean."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Tree, tree

TINY = 1e-12
"""Below it a length is none, and a direction has no meaning."""


def moved(model: Tree, params: Tree) -> Tree:
    """How far tuned parameters, or buffers, are from those of the deployed model."""
    move: Tree = tree.sub(params, _deployed(model, params))
    return move


def moved_by(model: Tree, move: Tree) -> Tree:
    """The deployed model's parameters, moved: the inverse of `moved`."""
    params: Tree = tree.add(_deployed(model, move), move)
    return params


def _deployed(model: Tree, names: Tree) -> Tree:
    return {name: value for kind in model["vars"].values() for name, value in tree.pick(kind, names).items()}


def rows(stacked: Tree) -> Tensor:
    """A tree that is stacked over clients as one row of numbers for each, [clients, numbers]."""
    return torch.cat([x.flatten(1) for x in tree.leaves(stacked)], 1)


def cosines(each: Tensor) -> Tensor:
    """Cosines between all rows, [clients, clients]; 0 for rows of zeros."""
    unit = F.normalize(each, dim=-1, eps=TINY)
    return unit @ unit.mT


def as_near_as_others(alike: Tensor) -> Tensor:
    """Similarities [clients, clients] in which every client is as near to itself as its nearest neighbour is."""
    own = torch.eye(len(alike), dtype=torch.bool, device=alike.device)
    return torch.where(own, alike.masked_fill(own, -torch.inf).amax(-1, keepdim=True), alike)


def near_by(alike: Tensor, temperature: float) -> Tensor:
    """Weights [clients, clients] by these cosines: everyone takes from others, and from itself as near as its nearest
    neighbour is, by a softmax, to that part to which this neighbour is near; the rest is its own."""
    own = torch.eye(len(alike), dtype=alike.dtype, device=alike.device)
    alike = as_near_as_others(alike)
    part = alike.diagonal().clamp(0.0, 1.0)[:, None]
    return part * (alike / temperature).softmax(-1) + (1.0 - part) * own


def mixed(weights: Tensor, stacked: Tree) -> Tree:
    """Every client's own mean [clients, ...]: `weights[i, j]` is what client i takes of client j."""
    own: Tree = tree.map(lambda x: (weights @ x.flatten(1)).reshape(x.shape), stacked)
    return own
