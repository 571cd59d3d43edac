"""FedEM. Marfoq et al., 'Federated Multi-Task Learning under a Mixture of Distributions', NeurIPS 2021, Algorithm 1.

Every client's data is a mixture, with weights pi of its own, of `learners` distributions that all clients share:

- E-step, on the received models: q_m(i) ~ pi_m exp(-loss_m(x_i, y_i)), then pi_m = mean over i of q_m(i). pi stays.
- M-step: every model is trained with its q_m(i) as the examples' weights, and averaged as in FedAvg.
- The client answers with sum_m pi_m softmax(z_m). When the last models have arrived, the E-step runs once more.

All models see the same batches. They start from different draws, the first from the one that FedAvg has. A deployed
model's `vars` are those of the model with the largest weight: features are its own, and adapters change it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Loss, Mode, Normaliser, Optimizer, Out, Task, Tree, Weighted, Work, check, difference, rng, tree
from ..ops.losses import sample_losses
from ..ops.masks import mean_of, real_rows
from ..ops.nets import drawn_apart, on_features


@dataclass(frozen=True)
class FedEM(Weighted):
    """A mixture of shared models with weights per client, by expectation-maximisation (Marfoq et al., 2021)."""

    learners: int = 3
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("models",)

    def __post_init__(self) -> None:
        check.whole(self, "learners", 1)
        check.choices(self)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"models": {str(m): vars for m, vars in enumerate(drawn_apart(task, key, self.learners))}}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"pi": torch.full((self.learners,), 1.0 / self.learners, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        q, pi = self.expected(task, down, mine, data)
        own = on_features(data, data["x"][data["rows"]])
        places = {**own, "y": own["rows"]}  # so that a batch says which examples it has: their weights are looked up
        delta = {
            m: difference(weighted(task, own["y"], q[int(m)]), vars, places, self.opt, self.work, key)
            for m, vars in down["models"].items()
        }
        return {"delta": delta, "n": data["n"]}, {"pi": pi}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {"models": tree.add(server["models"], total["delta"])}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return {"pi": self.expected(task, down, mine, data)[1]}

    def expected(self, task: Task, down: Tree, mine: Tree, data: Tree) -> tuple[Tensor, Tensor]:
        """The E-step: every example's weights [learners, size], and the client's."""
        losses = torch.stack([sample_losses(task, vars, data) for vars in down["models"].values()])
        q = (mine["pi"].clamp_min(1e-12).log()[:, None] - losses).softmax(0)
        return q, mean_of(q.mT, real_rows(q.shape[-1], data["n"]))

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        order = mine["pi"].argsort(descending=True, stable=True)
        models = tree.map(lambda m: m.index_select(0, order), tree.stack(list(down["models"].values())))
        others = {str(m): tree.take(models, m) for m in range(1, self.learners)}
        return {"vars": tree.take(models, 0), "others": others, "pi": mine["pi"].index_select(0, order)}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        out = task.apply(model["vars"], x, mode, key)
        fixed: Mode = "eval" if isinstance(mode, Normaliser) else mode  # whose statistics lie in `vars` alone
        answers = [out.logits, *(task.apply(vars, x, fixed, key).logits for vars in model["others"].values())]
        shares = torch.stack(answers).log_softmax(-1) + model["pi"].clamp_min(1e-12).log()[:, None, None]
        return out._replace(logits=shares.logsumexp(0))


def weighted(task: Task, y: Tensor, weights: Tensor) -> Loss:
    """Cross-entropy of examples that count by their weights; a batch's `y` says which examples it has."""

    def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        out, places = task.apply(vars, batch["x"], "train", key), batch["y"]
        each = F.cross_entropy(out.logits, y[places], reduction="none")
        return (each * weights[places]).mean(), out.buffers

    return loss
