"""FedADG. Zhang et al., 'Federated Learning with Domain Generalization', 2021: features match a learned reference.

- A generator G turns noise and a label into features: the reference distribution, common to all clients. A
  discriminator D, given the label, tells reference features (1) from real ones (0).
- Model: (1 - weight) cross-entropy + weight E(1 - D(F(x), y))^2. Generator: E(1 - D(G(e, y), y))^2.
  Discriminator: -E[D(G(e, y), y)^2 + (1 - D(F(x), y))^2].
- All three nets are averaged by examples.

The three losses are taken on the same batch and their steps at the same time; the paper alternates them, after some
epochs of cross-entropy alone. Noise has 10 numbers, as in FedTTA's comparison; widths, `weight` and the rates of G and
D are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Loss, Method, Optimizer, Rules, Sum, Task, Tree, Work, check, rng, train, tree
from ..ops import nets
from ..ops.counting import mean_by
from ..ops.joint import joined, model_of
from ..ops.rates import PerGroup


@dataclass(frozen=True)
class FedADG(Method):
    """FedAvg whose features match a reference distribution that is learned along (Zhang et al., 2021)."""

    weight: float = 0.1
    """Of the features' adversarial loss against cross-entropy."""
    noise: int = 10
    hidden: int = 128
    """Hidden units of generator and discriminator."""
    opt: Optimizer = SGD(lr=0.05)
    adversary_opt: Optimizer = SGD(lr=0.01)
    """Of generator and discriminator."""
    work: Work = Work()
    weights: Literal["samples", "uniform"] = "samples"
    """Whether a client counts by its number of examples or as one."""

    def __post_init__(self) -> None:
        check.within(self, "weight", 0.0, 1.0)
        check.at_least(self, "noise", 1)
        check.at_least(self, "hidden", 1)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        by = mean_by(self.weights)
        return {"delta": by, "adversary": by, "n": Sum()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        inputs = {"generator": self.noise, "discriminator": task.dim}
        outputs = {"generator": task.dim, "discriminator": 1}
        adversary = {
            name: nets.init(rng.fold(key, name), (inputs[name] + task.num_classes, self.hidden, outputs[name]))
            for name in inputs
        }
        return {"vars": task.init(key), "adversary": adversary}

    def download(self, task: Task, server: Tree) -> Tree:
        return server

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        vars, adversary = down["vars"], down["adversary"]
        start = joined(vars, {"adversary": adversary})
        opt = PerGroup(groups=(("model", self.opt), ("adversary", self.adversary_opt)), clip=self.work.clip)
        new = train(self.objective(task), start, data, opt, replace(self.work, clip=None), key)
        up = {"delta": tree.sub(model_of(new), vars), "adversary": tree.sub(new["params"]["adversary"], adversary)}
        return {**up, "n": data["n"]}, mine

    def objective(self, task: Task) -> Loss:
        """The sum of the three losses, each of which moves its own net alone."""

        def loss(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            adversary = both["params"]["adversary"]
            out = task.apply(model_of(both), batch["x"], "train", key)
            classes = torch.arange(task.num_classes, device=batch["y"].device)
            label = (batch["y"][:, None] == classes).to(out.features.dtype)
            noise = rng.uniform(rng.fold(key, "noise"), label.shape[0], self.noise).to(label.dtype)
            made = nets.apply(adversary["generator"], torch.cat([noise, label], -1))
            judge = adversary["discriminator"]
            fixed = tree.map(lambda p: p.detach(), judge)
            ce = F.cross_entropy(out.logits, batch["y"])
            model = (1 - self.weight) * ce + self.weight * ((1 - _judged(fixed, out.features, label)) ** 2).mean()
            generator = ((1 - _judged(fixed, made, label)) ** 2).mean()
            apart = _judged(judge, made.detach(), label) ** 2 + (1 - _judged(judge, out.features.detach(), label)) ** 2
            return model + generator - apart.mean(), out.buffers

        return loss

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        vars = tree.add(server["vars"], total["delta"])
        return {"vars": vars, "adversary": tree.add(server["adversary"], total["adversary"])}


def _judged(discriminator: Tree, features: Tensor, label: Tensor) -> Tensor:
    """How much these features look like the reference's: 0 to 1, per row."""
    return nets.apply(discriminator, torch.cat([features, label], -1))[:, 0].sigmoid()
