"""Steps with a rate per tensor, on parameters and batch-norm statistics alike: what ATP learns and what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from ..core import Predict, Tree, tree
from ..core.gradient import grad
from .losses import entropy
from .params import with_params


def directions(predict: Predict, model: Tree, x: Tensor, momentum: Mapping[str, float]) -> Tree:
    """Where an unlabelled batch pulls every variable, downhill being minus this.

    Parameters: the gradient of the mean entropy under running statistics. Statistics: running less batch; in one pass
    they go a part of that way, which `momentum` says for each layer (`Task.norm_momentum`).
    """
    vars = model["vars"]

    def uncertain(params: Tree) -> Tensor:
        return entropy(predict(with_params(model, params), x).logits).mean()

    met = predict(model, x, "adapt").buffers if vars["buffers"] else {}
    share = {name: momentum.get(name.rpartition(".running_")[0], 1.0) for name in vars["buffers"]}
    return {
        "params": grad(uncertain)(vars["params"]),
        "buffers": {n: (old - met[n].detach()) / share[n] for n, old in vars["buffers"].items()},
    }


def slopes(loss: Callable[[Tree], Tensor], vars: Tree, eps: Mapping[str, float]) -> Tree:
    """The gradient of `loss(vars)` by parameters and by batch-norm statistics, under running statistics.

    torch does not differentiate by statistics. Batch norm is w (x - m) / s + b with s = sqrt(v + eps), where `eps` is
    each layer's own (`Task.norm_eps`). So the derivative by m is -w / s times that by b, and the one by v is
    -w / (2 s^2) times that by w. Statistics of layers that have no w and b get zero, and so keep a rate of zero.
    """
    params, buffers = vars["params"], vars["buffers"]
    by = grad(lambda p: loss({"params": p, "buffers": buffers}))(params)
    out = tree.zeros(buffers)
    for name in buffers:
        layer, _, kind = name.rpartition("running_")
        w, b, v = f"{layer}weight", f"{layer}bias", f"{layer}running_var"
        if kind in ("mean", "var") and w in params and b in params:
            spread = buffers[v] + eps[layer.removesuffix(".")]
            mean, var = -params[w] / spread.sqrt() * by[b], -0.5 * params[w] / spread * by[w]
            out[name] = mean if kind == "mean" else var
    return {"params": by, "buffers": out}


def moved(vars: Tree, rates: Tree, way: Tree) -> Tree:
    """The variables after a step of each tensor's own rate; variances stay above zero."""
    new: Tree = tree.map(lambda v, r, d: v - r * d, vars, rates, way)
    variances = {k: b.clamp_min(0.0) for k, b in new["buffers"].items() if k.endswith("running_var")}
    return {"params": new["params"], "buffers": {**new["buffers"], **variances}}
