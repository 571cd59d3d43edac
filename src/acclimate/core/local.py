"""Local training: what almost every method does on a client.

Client data is a tree: `x`, `y` (a whole data set, shared by all clients), `rows` (which of its rows are this client's,
padded to the bucket's length), `n` (how many are real), `id`, `round`, and `ragged` where padded. The plan of batches
is drawn from the key, on the device. Batches are always full (an epoch's last one wraps around), so batch norm never
sees padding; steps beyond a client's own number compute, and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from . import check, rng, tree
from .agenda import Agenda, arranged, lower, plain, scaled
from .gradient import gradient
from .loops import Needed, Time, owned, repeat
from .nn import many
from .optim import Optimizer
from .tree import Scalar, Tree

Loss: TypeAlias = Callable[[Tree, Tree, rng.Key], tuple[Tensor, Tree]]
"""`loss(vars, batch, key) -> (scalar, new buffers)`."""


@dataclass(frozen=True)
class Work:
    """How much a client trains per round: `epochs` over its data, or a number of `iterations` where given."""

    epochs: int = 5
    iterations: int | None = None
    batch: int = 32
    drop_last: bool = False
    clip: float | None = None
    """Gradients are scaled down to at most this global norm."""

    def __post_init__(self) -> None:
        check.within(self, "epochs", 0, 100_000)
        check.within(self, "batch", 1, 10_000_000)
        if self.iterations is not None:
            check.within(self, "iterations", 0, 1_000_000)
        if self.clip is not None:
            check.positive(self, "clip")

    def steps(self, n: int) -> int:
        """Local steps of a client with n examples."""
        return self.epochs * self._per_epoch(n) if self.iterations is None else self.iterations

    def _per_epoch(self, n: int) -> int:
        return max(n // self.batch if self.drop_last else -(-n // self.batch), 1)

    def timeline(self, data: Tree) -> tuple[Tensor, Tensor, Tensor]:
        """The clock [steps], the client's own steps per epoch, and which steps are real (bool [steps])."""
        n, t = data["n"], torch.arange(self.steps(data["rows"].shape[-1]), device=data["n"].device)
        per_epoch = torch.div(n if self.drop_last else n + self.batch - 1, self.batch, rounding_mode="floor").clamp_min(
            1
        )
        active = t < self.epochs * per_epoch if self.iterations is None else torch.ones_like(t, dtype=torch.bool)
        return t, per_epoch, active

    def plan(self, data: Tree, key: rng.Key) -> tuple[Tensor, Tensor]:
        """Positions [steps, batch] among the client's own rows, and which steps are real (bool [steps])."""
        size, n = data["rows"].shape[-1], data["n"]
        t, per_epoch, active = self.timeline(data)
        passes = max(self.epochs if self.iterations is None else self.iterations, 1)
        orders = torch.stack([rng.order(rng.fold(key, "epoch", e), size, n) for e in range(passes)])
        slot = ((t % per_epoch) * self.batch)[:, None] + torch.arange(self.batch, device=n.device)
        epoch = torch.div(t, per_epoch, rounding_mode="floor").clamp_max(passes - 1)
        return orders[epoch[:, None], slot % n], active

    def travelled(self, opt: Optimizer, data: Tree) -> Tensor:
        """The sum of the learning rates of all real steps: the factor between summed gradients and the way walked."""
        t, _, active = self.timeline(data)
        return (opt.lr * opt.scale(data["round"], t) * active).sum()


def batch_of(data: Tree, positions: Tensor) -> Tree:
    """The labelled examples at these positions among the client's own rows."""
    rows = data["rows"][positions]
    return {"x": data["x"][rows], "y": data["y"][rows]}


def train(
    loss: Loss, vars: Tree, data: Tree, opt: Optimizer, work: Work, key: rng.Key, only: frozenset[str] | None = None
) -> Tree:
    """Minimise `loss` over the client's own data; `only` names the parameters to train (default: all).

    Returns the new variables. The optimiser starts afresh.
    """
    positions, active = work.plan(data, rng.fold(key, "plan"))
    params, frozen = vars["params"], {}
    if only is not None:
        params, frozen = tree.pick(params, only), tree.drop(params, only)
    params, (loss, data) = arranged(params), scaled(loss, data, positions)
    clock = torch.arange(positions.shape[0], device=active.device)
    uneven = "ragged" in data and work.iterations is None  # a number of iterations is the same for all
    agenda = Agenda.of(data, positions, rng.fold(key, "step", clock), active if uneven else None)
    low = lower(loss, params)

    def step(t: Time, now: Tree) -> tuple[Tree, Tree]:
        rows, labels, k, real = agenda.at(t)
        batch = {"x": data["x"][rows], "y": labels}

        def objective(p: Tree) -> tuple[Tensor, Tree]:
            return loss({"params": {**frozen, **p}, "buffers": now["b"]}, batch, k)

        grads, buffers = gradient(objective, now["p"] if low is None else now["low"])
        time = clock[t] if isinstance(t, int) else t
        with many.over(owned()):
            new = _updated(opt, work, grads, now, opt.scale(data["round"], time), real)
            new["b"] = buffers if real is None else many.where(real, buffers, now["b"])
        return new, {}

    start = {"p": params, "s": opt.init(params), "b": vars["buffers"], **({} if low is None else {"low": low})}
    # what is undone need not be done
    needed = Needed(data["rows"].shape[-1], work.steps) if uneven else None
    end, _ = repeat(step, start, positions.shape[0], active, needed)
    merged = {**frozen, **plain(end["p"])}
    return {"params": {name: merged[name] for name in vars["params"]}, "buffers": end["b"]}


def _updated(opt: Optimizer, work: Work, grads: Tree, now: Tree, scale: Scalar, real: Tensor | None) -> Tree:
    """Parameters and the optimiser's state after a step; where gradients are those of parameters in the precision of
    the passes, these, too. A step that is not `real` (zero) leaves them as they are."""
    low = now.get("low")
    if work.clip is not None:
        grads = clip(grads if low is None else many.cast(grads, torch.float32), work.clip)
    if real is not None:
        params, state, low = opt.update_some(real, grads, now["s"], now["p"], low, scale)
    elif low is None:
        params, state = opt.update(grads, now["s"], now["p"], scale)
    else:
        params, state, low = opt.update_both(grads, now["s"], now["p"], low, scale)
    return {"p": params, "s": state, **({} if low is None else {"low": low})}


def difference(loss: Loss, vars: Tree, data: Tree, opt: Optimizer, work: Work, key: rng.Key) -> Tree:
    """What local training adds to the variables: the message of a method that averages model differences."""
    return many.sub(train(loss, vars, data, opt, work, key), vars)


def clip(grads: Tree, limit: float) -> Tree:
    """Scale a gradient down to at most this global norm."""
    return tree.scale(grads, (limit / (tree.norm(grads) + 1e-6)).clamp_max(1.0))
