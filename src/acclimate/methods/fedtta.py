"""FedTTA, training half. Ye et al., 'UPFL', 2023, Eq. 1-9, 13 and Algorithm 1 (the test half is adapters/fedtta.py).

- A model and an adaptation net are meta-trained together. The net maps a sample's logits to one number; the norm of
  these over the batch is a loss without labels (Eq. 2-4).
- Inner step: psi~ = psi - inner_lr grad_psi ||g(f(x; psi); phi)|| (Eq. 5). Outer step: both nets walk down the
  cross-entropy of psi~ on the same batch, each with a rate of its own (Eq. 6-9).
- `mu` > 0 is FedTTA-Prox: mu KL(base logits || logits of the received model) holds the base model back (Eq. 13).
- The server averages both nets, every client counting as one (Algorithm 1).

`order="first"` takes the inner gradient as if it did not depend on psi; the adaptation net still learns through it,
because that is the only way it acts. `work.clip` bounds the gradient of each net on its own. Differs from the released
code: clients count as one (there by examples: `weights="samples"`); no momentum for the adaptation net and no weight
decay, which are settings of `opt` and `net_opt` (there 0.9 and 1e-4, also in the inner step); no clipping (there 10).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Loss, Optimizer, Rules, Task, Tree, Weighted, Work, check, rng, tree
from ..ops import nets
from ..ops.learned import adapted, inner_settings
from ..ops.params import train_jointly


@dataclass(frozen=True)
class FedTTA(Weighted):
    """A model, and a loss for unlabelled data that was learned to adapt it (Ye et al., 2023)."""

    inner_lr: float = 0.5
    """The rate of the inner step, in training and by default at test time: the paper's eta_inner."""
    opt: Optimizer = SGD(lr=0.05)
    """The optimiser of the model's outer step: eta_outer."""
    net_opt: Optimizer = SGD(lr=0.005)
    """The optimiser of the adaptation net: eta_adapt."""
    mu: float = 0.0
    """Weight of the divergence from the received model: FedTTA-Prox."""
    order: Literal["first", "second"] = "second"
    """Whether the inner gradient's own dependence on the model counts."""
    hidden: tuple[int, ...] = (32, 32, 32)
    """Hidden layers of the adaptation net."""
    work: Work = Work(iterations=20, batch=64)
    weights: Literal["samples", "uniform"] = field(default="uniform", kw_only=True)
    """Whether a client counts by its number of examples or as one."""

    downlink = ("vars", "net")

    def __post_init__(self) -> None:
        check.at_least(self, "inner_lr", 0.0)
        check.at_least(self, "mu", 0.0)
        check.choices(self)
        if any(width < 1 for width in self.hidden):
            raise check.FieldError(f"FedTTA: hidden={self.hidden!r} must be widths of at least 1", "hidden")

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "net": self.mean, **self.counts}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        net = nets.init(rng.fold(key, "adaptation net"), (task.num_classes, *self.hidden, 1))
        return {"vars": task.init(key), "net": net}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        opts = {"base": self.opt, "net": self.net_opt}
        new = train_jointly(self.objective(task, down["vars"]), down, data, opts, self.work, key, "base")
        step = tree.sub(new, down)
        return tree.pick({"delta": step["vars"], "net": step["net"], "n": data["n"]}, self.uplink), mine

    def objective(self, task: Task, received: Tree) -> Loss:
        """The outer loss of both nets, `{"base": psi, "net": phi}`: Eq. 7, or with `mu` Eq. 13."""

        def outer(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            base, out = adapted(task, both, batch["x"], key, self.inner_lr, self.order, base_counts=self.mu > 0)
            loss = F.cross_entropy(out.logits, batch["y"])
            if self.mu:
                frozen = task.apply(received, batch["x"], "train", key).logits.detach()
                loss = loss + self.mu * _divergence(base, frozen)
            return loss, out.buffers

        return outer

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return tree.add(server, {"vars": total["delta"], "net": total["net"]})

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        number = next(iter(down["net"].values()))["bias"][0]
        return {**down, "inner": inner_settings(number, self.inner_lr, self.work.batch)}


def _divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(softmax(logits) || softmax(reference)), mean over the batch."""
    return F.kl_div(reference.log_softmax(-1), logits.log_softmax(-1), log_target=True, reduction="batchmean")
