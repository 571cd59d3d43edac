"""Variables in parts: a model with other parameters, shared and private ones, a model and other nets as one.

Nets that are trained in the same steps as a model are groups beside its own: `{"params": {"model": ..., "net": ...}}`.
Buffers are the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Key, Loss, Optimizer, Scalar, Tree, Work, train, tree
from ..core.local import clip


def with_params(model: Tree, params: Tree) -> Tree:
    """The deployed model with these parameters; those that are not named stay as they are."""
    vars = model["vars"]
    return {**model, "vars": {**vars, "params": {**vars["params"], **params}}}


def with_vars(model: Tree, params: Tree, buffers: Tree) -> Tree:
    """The deployed model with these parameters and buffers; those that are not named stay as they are."""
    new = with_params(model, params)
    return {**new, "vars": {**new["vars"], "buffers": {**new["vars"]["buffers"], **buffers}}}


def with_tuned(model: Tree, tuned: Tree) -> Tree:
    """The deployed model with these parameters and buffers, each in its place."""
    kinds = model["vars"]
    return {**model, "vars": {kind: {**kinds[kind], **tree.pick(tuned, kinds[kind])} for kind in kinds}}


def shared(vars: Tree, names: frozenset[str]) -> Tree:
    """The variables without the named ones: what is sent."""
    return {kind: tree.drop(vars[kind], names) for kind in ("params", "buffers")}


def private(vars: Tree, names: frozenset[str]) -> Tree:
    """The named variables: what stays."""
    return {kind: tree.pick(vars[kind], names) for kind in ("params", "buffers")}


def merge(a: Tree, b: Tree) -> Tree:
    """Both parts as one set of variables."""
    return {kind: {**a[kind], **b[kind]} for kind in ("params", "buffers")}


def joined(vars: Tree, others: Tree, name: str = "model") -> Tree:
    """The model's variables, with the parameters of the other nets beside its own."""
    return {"params": {name: vars["params"], **others}, "buffers": vars["buffers"]}


def model_of(both: Tree, name: str = "model") -> Tree:
    """The variables of the model alone."""
    return {"params": both["params"][name], "buffers": both["buffers"]}


@dataclass(frozen=True)
class PerGroup(Optimizer):
    """Updates `params[name]` with the optimiser of that name; each group is clipped on its own."""

    groups: tuple[tuple[str, Optimizer], ...] = ()
    clip: float | None = None
    """Every group's gradient is scaled down to at most this norm."""

    def scale(self, round: Tensor, step: Tensor) -> Tensor:
        one = torch.ones_like(step, dtype=torch.float32)
        return torch.stack([one * opt.scale(round, step) for _, opt in self.groups])

    def init(self, params: Tree) -> Tree:
        return {name: opt.init(params[name]) for name, opt in self.groups}

    def update(self, grads: Tree, state: Tree, params: Tree, scale: Scalar = 1.0) -> tuple[Tree, Tree]:
        new_params, new_state = {}, {}
        for i, (name, opt) in enumerate(self.groups):
            own = grads[name] if self.clip is None else clip(grads[name], self.clip)
            factor = scale[i] if isinstance(scale, Tensor) else scale
            new_params[name], new_state[name] = opt.update(own, state[name], params[name], factor)
        return new_params, new_state


def train_jointly(
    loss: Loss,
    nets: Tree,
    data: Tree,
    opt: Optimizer | Mapping[str, Optimizer],
    work: Work,
    key: Key,
    name: str = "model",
) -> Tree:
    """`nets`, which are the variables `vars` of a model and the parameters of other nets, after training in one.

    With one optimiser per group, by name, the gradient of each group is clipped on its own.
    """
    start = joined(nets["vars"], tree.drop(nets, ("vars",)), name)
    if not isinstance(opt, Optimizer):
        groups = tuple((group, opt[group]) for group in start["params"])
        opt, work = PerGroup(groups=groups, clip=work.clip), replace(work, clip=None)
    new = train(loss, start, data, opt, work, key)
    return {"vars": model_of(new, name), **tree.drop(new["params"], (name,))}
