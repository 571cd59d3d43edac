"""FedSR. Nguyen, Torr & Lim, NeurIPS 2022: a simple representation that carries no more than the label needs.

- The representation is random: z = mu(x) + sigma(x) eps. Here mu is what enters the model's head, and sigma a linear
  layer on it through a softplus. The head answers z in training and mu when deployed.
- Loss: cross-entropy + l2 E||z||^2 (marginal alignment, L2R) + cmi E KL(p(z|x) || r(z|y)) (conditional alignment, CMI),
  with a learned Gaussian r(z|y) per class. Model, sigma's layer and the Gaussians are averaged as in FedAvg.

The defaults of l2 and cmi are those that FedTTA's comparison names. The released code penalises the norm of z and not
its square, and has a layer of its own for mu.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Loss, Optimizer, Rules, Sum, Task, Tree, Weighted, Work, check, rng, tree
from ..ops import nets
from ..ops.nets import head_of, linear
from ..ops.params import model_of, train_jointly


@dataclass(frozen=True)
class FedSR(Weighted):
    """FedAvg with two penalties on a random representation (Nguyen et al., NeurIPS 2022)."""

    l2: float = 0.01
    """Weight of the representation's squared norm: alpha_L2R."""
    cmi: float = 0.0005
    """Weight of its divergence from the class's Gaussian: alpha_CMI."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("vars", "extra")

    def __post_init__(self) -> None:
        check.at_least(self, "l2", 0.0)
        check.at_least(self, "cmi", 0.0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "extra": self.mean, "n": Sum()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        shape = (task.num_classes, task.dim)
        classes = {"mean": torch.zeros(shape, device=key.device), "spread": torch.ones(shape, device=key.device)}
        sigma = nets.layer(rng.fold(key, "sigma"), task.dim, task.dim)
        return {"vars": task.init(key), "extra": {"sigma": sigma, "classes": classes}}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        step = tree.sub(train_jointly(self.objective(task), down, data, self.opt, self.work, key), down)
        return {"delta": step["vars"], "extra": step["extra"], "n": data["n"]}, mine

    def objective(self, task: Task) -> Loss:
        """Cross-entropy of a drawn representation, and the two penalties."""

        def loss(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            vars = model_of(both)
            out = task.apply(vars, batch["x"], "train", key)
            sigma = F.softplus(linear(both["params"]["extra"]["sigma"], out.features)) + 1e-6
            noise = rng.normal(rng.fold(key, "representation"), *out.features.shape).to(sigma.dtype)
            z = out.features + sigma * noise
            ce = F.cross_entropy(linear(head_of(task, vars), z), batch["y"])
            classes = both["params"]["extra"]["classes"]
            apart = divergence(out.features, sigma, classes["mean"][batch["y"]], classes["spread"][batch["y"]])
            return ce + self.l2 * (z**2).sum(-1).mean() + self.cmi * apart.mean(), out.buffers

        return loss

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return tree.add(server, {"vars": total["delta"], "extra": total["extra"]})


def divergence(mean: Tensor, sigma: Tensor, other_mean: Tensor, other_spread: Tensor) -> Tensor:
    """KL(N(mean, sigma^2) || N(other_mean, softplus(other_spread)^2)) of diagonal Gaussians, per row."""
    other = F.softplus(other_spread) + 1e-6
    each = (other / sigma).log() + (sigma**2 + (mean - other_mean) ** 2) / (2 * other**2) - 0.5
    return each.sum(-1)
