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

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Loss, Optimizer, Rules, Sum, Task, Tree, Weighted, Work, check, rng, tree
from ..ops import nets
from ..ops.params import model_of, train_jointly


@dataclass(frozen=True)
class FedADG(Weighted):
    """FedAvg whose features match a reference distribution that is learned along (Zhang et al., 2021)."""

    weight: float = 0.1
    """The weight of the features' adversarial loss against cross-entropy."""
    noise: int = 10
    hidden: int = 128
    """Hidden units of generator and discriminator."""
    opt: Optimizer = SGD(lr=0.05)
    adversary_opt: Optimizer = SGD(lr=0.01)
    """The optimiser of generator and discriminator."""
    work: Work = Work()

    downlink = ("vars", "adversary")

    def __post_init__(self) -> None:
        check.within(self, "weight", 0.0, 1.0)
        check.at_least(self, "noise", 1)
        check.at_least(self, "hidden", 1)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "adversary": self.mean, "n": Sum()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        inputs = {"generator": self.noise, "discriminator": task.dim}
        outputs = {"generator": task.dim, "discriminator": 1}
        adversary = {
            name: nets.init(rng.fold(key, name), (inputs[name] + task.num_classes, self.hidden, outputs[name]))
            for name in inputs
        }
        return {"vars": task.init(key), "adversary": adversary}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        opts = {"model": self.opt, "adversary": self.adversary_opt}
        step = tree.sub(train_jointly(self.objective(task), down, data, opts, self.work, key), down)
        return {"delta": step["vars"], "adversary": step["adversary"], "n": data["n"]}, mine

    def objective(self, task: Task) -> Loss:
        """The sum of the three losses, each of which moves its own net alone."""

        def loss(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            adversary = both["params"]["adversary"]
            out = task.apply(model_of(both), batch["x"], "train", key)
            classes = torch.arange(task.num_classes, device=batch["y"].device)
            label = (batch["y"][:, None] == classes).to(out.features.dtype)
            noise = rng.uniform(rng.fold(key, "noise"), label.shape[0], self.noise).to(label.dtype)
            drawn = nets.apply(adversary["generator"], torch.cat([noise, label], -1))
            judge = adversary["discriminator"]
            fixed = tree.map(lambda p: p.detach(), judge)
            ce = F.cross_entropy(out.logits, batch["y"])
            model = (1 - self.weight) * ce + self.weight * ((1 - _judged(fixed, out.features, label)) ** 2).mean()
            generator = ((1 - _judged(fixed, drawn, label)) ** 2).mean()
            apart = _judged(judge, drawn.detach(), label) ** 2 + (1 - _judged(judge, out.features.detach(), label)) ** 2
            return model + generator - apart.mean(), out.buffers

        return loss

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return tree.add(server, {"vars": total["delta"], "adversary": total["adversary"]})


def _judged(discriminator: Tree, features: Tensor, label: Tensor) -> Tensor:
    """How much these features look like the reference's: 0 to 1, per row."""
    return nets.apply(discriminator, torch.cat([features, label], -1))[:, 0].sigmoid()
