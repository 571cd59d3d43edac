"""Optimisers and learning-rate schedules as records: hyper-parameters in fields, state in a tree you can see.

`update` is a pure function of (gradients, state, parameters), so it can be vmapped over clients, captured in a GPU
graph, and differentiated through. The numbers equal those of `torch.optim` (tested).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from . import check, tree
from .nn import many
from .tree import Scalar, Tree


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes: a factor as a function of the round, or of the local step."""

    per: Literal["round", "step"] = "round"

    def __post_init__(self) -> None:
        check.choices(self)

    def factor(self, time: Tensor) -> Scalar:
        """What the learning rate is multiplied with at this time (0, 1, 2, ...)."""
        raise TypeError(f"{type(self).__name__} must say its factor")


@dataclass(frozen=True)
class Constant(Schedule):
    """The learning rate stays as it is."""

    def factor(self, time: Tensor) -> Scalar:
        return 1.0


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiply by `gamma` every `every` rounds (or steps)."""

    every: int = 10
    gamma: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(self, "every", 1)
        check.within(self, "gamma", 0.0, 1.0)

    def factor(self, time: Tensor) -> Scalar:
        return torch.pow(self.gamma, torch.div(time, self.every, rounding_mode="floor").to(torch.float32))


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from 1 down to `floor` over `total` rounds (or steps), then constant."""

    total: int = 100
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(self, "total", 1)
        check.within(self, "floor", 0.0, 1.0)

    def factor(self, time: Tensor) -> Scalar:
        done = (time.to(torch.float32) / self.total).clamp(0.0, 1.0)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + torch.cos(torch.pi * done))


@dataclass(frozen=True)
class Optimizer:
    """Base of all optimisers. `scale` is the schedule's factor at this time; `rate` computes it."""

    lr: float = 0.05
    weight_decay: float = 0.0
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        check.positive(self, "lr")
        check.at_least(self, "weight_decay", 0.0)

    def scale(self, round: Tensor, step: Tensor) -> Scalar:
        """The schedule's factor, given both clocks."""
        return self.schedule.factor(round if self.schedule.per == "round" else step)

    def init(self, params: Tree) -> Tree:
        """The state before the first step."""
        return {}

    def update(self, grads: Tree, state: Tree, params: Tree, scale: Scalar = 1.0) -> tuple[Tree, Tree]:
        """One step: the new parameters and the new state."""
        raise TypeError(f"{type(self).__name__} must say how it updates")

    def update_both(
        self, grads: Tree, state: Tree, params: Tree, low: Tree, scale: Scalar = 1.0
    ) -> tuple[Tree, Tree, Tree]:
        """`update` of parameters that are kept in a lower precision as well, in which gradients come: new parameters,
        the new state, and the new parameters in that precision."""
        fine, coarse = (tree.leaves(t)[0].dtype for t in (params, low))
        params, state = self.update(many.cast(grads, fine), state, params, scale)
        return params, state, many.cast(params, coarse)

    def update_some(
        self, active: Tensor, grads: Tree, state: Tree, params: Tree, low: Tree | None, scale: Scalar = 1.0
    ) -> tuple[Tree, Tree, Tree | None]:
        """`update`, or `update_both` where there is a lower precision, of clients whose scalar `active` is not zero;
        the others keep what they have, to the bit."""
        with many.over(False):
            if low is None:
                new = dict(zip("ps", self.update(grads, state, params, scale), strict=True))
            else:
                new = dict(zip("psl", self.update_both(grads, state, params, low, scale), strict=True))
        kept = many.where(active, new, {"p": params, "s": state, "l": low})
        return kept["p"], kept["s"], kept.get("l")


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum (heavy ball or Nesterov) and L2 weight decay."""

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.within(self, "momentum", 0.0, 1.0)
        if self.nesterov and not self.momentum:
            raise ValueError("SGD: nesterov=True needs momentum > 0, got momentum=0.0")

    def init(self, params: Tree) -> Tree:
        return {"velocity": tree.zeros(params)} if _takes_part(self.momentum) else {}

    def update(self, grads: Tree, state: Tree, params: Tree, scale: Scalar = 1.0) -> tuple[Tree, Tree]:
        step, state = self._step(grads, state, params)
        return many.add(params, step, -self.lr * scale), state

    def _step(self, grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        """What parameters move against, and the new state."""
        with many.over(False):  # what is added to is read again, or belongs to others
            if _takes_part(self.weight_decay):
                grads = many.add(grads, params, self.weight_decay)
            if not _takes_part(self.momentum):
                return grads, state
            velocity = many.add(grads, state["velocity"], self.momentum)
            return many.add(grads, velocity, self.momentum) if self.nesterov else velocity, {"velocity": velocity}

    def update_both(
        self, grads: Tree, state: Tree, params: Tree, low: Tree, scale: Scalar = 1.0
    ) -> tuple[Tree, Tree, Tree]:
        if not self._plain:
            return super().update_both(grads, state, params, low, scale)
        params, low = many.add_both(params, low, grads, -self.lr * scale)
        return params, state, low

    def update_some(
        self, active: Tensor, grads: Tree, state: Tree, params: Tree, low: Tree | None, scale: Scalar = 1.0
    ) -> tuple[Tree, Tree, Tree | None]:
        rate = -self.lr * scale
        if self._plain and low is not None:
            params, low = many.add_both(params, low, grads, rate, active)
            return params, state, low
        if low is not None or type(self).update is not SGD.update:
            return super().update_some(active, grads, state, params, low, scale)
        step, new = self._step(grads, state, params)
        return many.add(params, step, rate, active), many.where(active, new, state), None

    @property
    def _plain(self) -> bool:
        """Whether a step is the gradient times the rate, and nothing else."""
        known = type(self).update is SGD.update
        return known and not (_takes_part(self.weight_decay) or _takes_part(self.momentum))


def _takes_part(number: Scalar) -> bool:
    """Whether a number is not zero; one on the device, which is another for each client, never is."""
    return isinstance(number, Tensor) or bool(number)


def _log(b: float) -> float:
    return math.log(b) if b > 0 else -math.inf


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba, ICLR 2015); weight decay is added to the gradient."""

    lr: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("b1", "b2"):
            check.within(self, name, 0.0, 1.0)
            if getattr(self, name) == 1:  # a mean that nothing enters: its correction divides by zero
                raise check.FieldError(f"{type(self).__name__}: {name}=1.0 must be below 1", name)
        check.positive(self, "eps")

    def init(self, params: Tree) -> Tree:
        device = next(iter(tree.leaves(params)), torch.zeros(())).device
        return {"m": tree.zeros(params), "v": tree.zeros(params), "t": torch.zeros((), device=device)}

    def update(self, grads: Tree, state: Tree, params: Tree, scale: Scalar = 1.0) -> tuple[Tree, Tree]:
        if _takes_part(self.weight_decay):
            grads = tree.add(grads, params, self.weight_decay)
        return self._step(grads, state, params, scale)

    def _step(self, grads: Tree, state: Tree, params: Tree, scale: Scalar) -> tuple[Tree, Tree]:
        t = state["t"] + 1
        c1, c2 = (-torch.expm1(t * _log(b)) for b in (self.b1, self.b2))  # 1 - b^t, exact in float32
        root = c2.sqrt()
        rate, eps = -self.lr * scale * root / c1, self.eps * root  # both corrections in scalars: half as many kernels
        m = tree.map(lambda m, g: torch.lerp(m, g, 1 - self.b1), state["m"], grads)
        v = tree.map(lambda v, g: torch.addcmul(self.b2 * v, g, g, value=1 - self.b2), state["v"], grads)
        moved = tree.map(lambda p, m, v: torch.addcdiv(p, m * rate, v.sqrt() + eps), params, m, v)
        return moved, {"m": m, "v": v, "t": t}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, ICLR 2019)."""

    weight_decay: float = 1e-2

    def update(self, grads: Tree, state: Tree, params: Tree, scale: Scalar = 1.0) -> tuple[Tree, Tree]:
        shrunk: Any = (
            tree.scale(params, 1.0 - self.lr * self.weight_decay * scale) if _takes_part(self.weight_decay) else params
        )
        return self._step(grads, state, shrunk, scale)
