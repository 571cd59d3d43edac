"""FedTTA, training half. Ye et al., 'UPFL', 2023, Eq. 1-9, 13 and Algorithm 1 (the test half is adapters/fedtta.py).

- A model and an adaptation net are meta-trained together. The net maps a sample's logits to one number; the norm of
  these over the batch is a loss without labels (Eq. 2-4).
- Inner step: psi~ = psi - inner_lr grad_psi ||g(f(x; psi); phi)|| (Eq. 5). Outer step: both nets walk down the
  cross-entropy of psi~ on the same batch, each with a rate of its own (Eq. 6-9).
- `mu` > 0 is FedTTA-Prox: mu KL(base logits || logits of the received model) holds the base model back (Eq. 13).
  `variant="released"` turns the divergence around, KL(received || base), as the authors' code does.
- The server averages both nets, every client counting as one (Algorithm 1).

`order="first"` takes the inner gradient as if it did not depend on psi; the adaptation net still learns through it,
because that is the only way it acts. `work.clip` bounds the outer gradient of each net on its own, by 10 as released:
the paper has none, and on CIFAR-10 its rates are then not finite after a round. Differs from the released code: clients
count as one (there by examples: `weights="samples"`); no momentum for the adaptation net and no weight decay, which are
settings of `opt` and `net_opt` (there 0.9 and 1e-4, also in the inner step); constant rates (there all three fall by 1%
every ten rounds: `schedule` of `opt` and `net_opt`, and `inner_schedule`, whose last rate newcomers take too).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Constant, Loss, Optimizer, Rules, Schedule, Task, Tree, Weighted, Work, check, rng, tree
from ..ops import nets
from ..ops.learned import adapted, by_rounds, inner_rate, inner_settings
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
    work: Work = Work(iterations=20, batch=64, clip=10.0)
    weights: Literal["samples", "uniform"] = field(default="uniform", kw_only=True)
    """Whether a client counts by its number of examples or as one."""
    inner_schedule: Schedule = check.later(Constant())
    """How the inner rate changes from round to round; at test time it is that of the last round."""
    variant: Literal["paper", "released"] = check.later("paper")
    """Which way round the divergence of FedTTA-Prox is."""

    downlink = ("vars", "net", "rounds")
    trains_for = ("fedtta",)

    def __post_init__(self) -> None:
        check.at_least(self, "inner_lr", 0.0)
        check.at_least(self, "mu", 0.0)
        check.choices(self)
        by_rounds(self)
        if any(width < 1 for width in self.hidden):
            raise check.FieldError(f"FedTTA: hidden={self.hidden!r} must be widths of at least 1", "hidden")

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "net": self.mean, **self.counts}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        net = nets.init(rng.fold(key, "adaptation net"), (task.num_classes, *self.hidden, 1))
        rounds = {} if isinstance(self.inner_schedule, Constant) else {"rounds": torch.zeros((), device=key.device)}
        return {"vars": task.init(key), "net": net, **rounds}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        opts = {"base": self.opt, "net": self.net_opt}
        loss, both = self.objective(task, down["vars"], data["round"]), tree.pick(down, ("vars", "net"))
        step = tree.sub(train_jointly(loss, both, data, opts, self.work, key, "base"), both)
        return tree.pick({"delta": step["vars"], "net": step["net"], "n": data["n"]}, self.uplink), mine

    def objective(self, task: Task, received: Tree, round: Tensor) -> Loss:
        """The outer loss of both nets, `{"base": psi, "net": phi}`: Eq. 7, or with `mu` Eq. 13."""
        rate = inner_rate(self, round)

        def outer(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            base, out = adapted(task, both, batch["x"], key, rate, self.order, base_counts=self.mu > 0)
            loss = F.cross_entropy(out.logits, batch["y"])
            if self.mu:
                frozen = task.apply(received, batch["x"], "train", key).logits.detach()
                pair = (base, frozen) if self.variant == "paper" else (frozen, base)
                loss = loss + self.mu * _divergence(*pair)
            return loss, out.buffers

        return outer

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        one = {name: torch.ones_like(count) for name, count in server.items() if name == "rounds"}
        return tree.add(server, {"vars": total["delta"], "net": total["net"], **one})

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        rounds = down.get("rounds", torch.zeros_like(next(iter(down["net"].values()))["bias"][0]))
        return {**tree.drop(down, ("rounds",)), "inner": inner_settings(self, rounds)}


def _divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(softmax(first) || softmax(second)), mean over the batch."""
    return F.kl_div(second.log_softmax(-1), first.log_softmax(-1), log_target=True, reduction="batchmean")
