"""Attention over the batches that clients have met, then over clients: who counts how much for whom (FedTSA).

Features are [clients, times, D], the newest time last. `seen` [clients] says how many of the last times a client has;
what comes before is not counted. Values are the features themselves; queries and keys are learned from the identity.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Optimizer, Tree, rng
from ..core.gradient import gradient
from .mixing import cosines

TINY = 1e-12
"""The least probability with which an entry is drawn, before others that cannot be."""
ROUNDING = 1e-4
"""What a product with a share may lack of a whole number."""


def start(dim: int, like: Tensor) -> Tree:
    """Queries and keys of both attentions, before anything is learned."""

    def linear() -> Tree:
        return {"weight": torch.eye(dim, dtype=like.dtype, device=like.device), "bias": like.new_zeros(dim)}

    return {over: {part: linear() for part in ("query", "key")} for over in ("time", "space")}


def _scores(nets: Tree, x: Tensor) -> Tensor:
    """How much rows [..., n, D] ask for each other, [..., n, n]."""
    query, key = (F.linear(x, nets[part]["weight"], nets[part]["bias"]) for part in ("query", "key"))
    return query @ key.mT / math.sqrt(x.shape[-1])


def _softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Attention over what is allowed, and over oneself in any case."""
    own = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    return scores.masked_fill(~(allowed | own), -torch.inf).softmax(-1)


def drawn(chances: Tensor, among: Tensor, share: float, key: rng.Key) -> Tensor:
    """A share (rounded down) of the entries `among` [..., n, n], without repeating, in proportion to their chances."""
    noise = -(-rng.uniform(key, *chances.shape).clamp(TINY, 1.0 - 1e-7).log()).log()
    weights = torch.where(among, chances.clamp_min(TINY).log() + noise, -torch.inf).flatten(-2)
    rank = weights.argsort(-1, descending=True).argsort(-1)
    count = (among.flatten(-2).sum(-1, keepdim=True) * share + ROUNDING).floor()
    return ((rank < count) & among.flatten(-2)).view_as(among)


def graph(newest: Tensor) -> Tensor:
    """Whether clients [clients, D] are more alike than clients are on average."""
    alike = cosines(newest)
    return alike > alike.mean()


def _seen(x: Tensor, seen: Tensor) -> Tensor:
    """Whether a client has a time, [clients, times]."""
    return torch.arange(x.shape[1], device=x.device) >= x.shape[1] - seen[:, None]


def thinned(space: Tensor, near: Tensor, keep: float, key: rng.Key) -> Tensor:
    """The graph `near` without most of its edges, and with a few that it does not have: those with attention
    [clients, clients] are kept, and added, more often."""
    own = torch.eye(len(near), dtype=torch.bool, device=near.device)
    edges, others = near & ~own, ~near & ~own
    dropped = drawn(1.0 - space, edges, 1.0 - keep, rng.fold(key, "drop"))
    return (edges & ~dropped) | drawn(space, others, keep, rng.fold(key, "add"))


def attended(nets: Tree, x: Tensor, time: Tensor, has: Tensor, near: Tensor | bool) -> tuple[Tensor, Tensor, Tensor]:
    """Features after this attention over time, and then over clients that are `near` [clients, clients] (True: over
    all): these, the attention over clients at every time, and the features before it, [times, clients, D]."""
    after = (time @ x).transpose(0, 1)
    space = _softmax(_scores(nets["space"], after), has.T[:, None, :] & near)
    return (space @ after).transpose(0, 1), space, after


def weights(
    x: Tensor,
    seen: Tensor,
    opt: Optimizer,
    steps: int,
    robust: float,
    key: rng.Key,
    keep_times: float = 0.25,
    keep_edges: float = 0.2,
) -> Tensor:
    """What every client counts for every other at the newest time, [clients, clients], of the step with least loss.

    The loss: attended features are near the features, and near those where attention is thinned at random.
    """
    has, dim = _seen(x, seen), x.shape[-1]
    all_times = has[:, :, None] & has[:, None, :]
    counted = has[..., None] / (has.sum() * dim)

    def loss(k: rng.Key, nets: Tree) -> tuple[Tensor, Tree]:
        asked = _scores(nets["time"], x)
        time = _softmax(asked, all_times)
        plain, space, after = attended(nets, x, time, has, True)
        newest = space[-1].detach()
        fewer = all_times & ~drawn(1.0 - time.detach(), all_times, 1.0 - keep_times, rng.fold(k, "times"))
        near = thinned(newest, graph(after[-1].detach()), keep_edges, rng.fold(k, "clients"))
        thin, *_ = attended(nets, x, _softmax(asked, fewer), has, near)
        total = ((plain - x).square() * counted).sum() + robust * ((plain - thin).square() * counted).sum()
        return total, {"loss": total, "space": newest}

    nets = start(dim, x)
    state, least, best = opt.init(nets), x.new_full((), torch.inf), torch.eye(len(x), dtype=x.dtype, device=x.device)
    for step in range(steps):
        grads, found = gradient(partial(loss, rng.fold(key, step)), nets)
        best = torch.where(found["loss"] < least, found["space"], best)
        least = torch.minimum(least, found["loss"])
        nets, state = opt.update(grads, state, nets)
    return best
