"""HeteroFedTTA. Ye et al., 'UPFL', 2023, Sec. 3.4, Eq. 14 and Algorithm 2, on FedMD (Li & Wang, 2019).

Clients have models and adaptation nets of their own architecture and send no weights. They exchange logits on a public
unlabelled set: those of their base model and those of the model that their net adapts to the set. A round:
- digest (but in the first): KL(adapted, F_per) + lam KL(base, F_base), one inner step apart on the same batch (Eq. 14).
- revisit: FedTTA's meta-training on the client's own labels (`methods.fedtta` with mu = 0, and what differs there).
- communicate: the two logits; the server takes their means, all clients alike, and counts rounds in `known`.
- A newcomer digests with a fresh model of any architecture for `join_epochs`, and adapts (`adapters.fedtta`).

`lam=0` distils end to end; the base logits then weigh nothing and are not sent. `inner_lr=0` has no adaptation net at
all: with `lam=0` that is FedMD, which with Tent is the paper's heterogeneous TENT. Epochs and batches are as released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Constant, Mean, Method, Optimizer, Rules, Scalar, Schedule, Task, Tree, Work, check, rng
from ..ops import nets
from ..ops.learned import adapted, by_rounds, inner_rate, inner_settings, last_of
from ..ops.params import train_jointly
from .public import distilled, divergence, public_logits


@dataclass(frozen=True)
class HeteroFedTTA(Method):
    """FedTTA for clients of different architectures, who exchange logits on a public set (Ye et al., 2023)."""

    several_models: ClassVar[bool] = True
    lam: float = 0.8
    """Weight of the base model's own distillation: the paper's lambda."""
    inner_lr: float = 0.5
    """The rate of the inner step, in training and by default at test time; 0: no adaptation net (FedMD)."""
    opt: Optimizer = SGD(lr=0.1)
    """The optimiser of the model's outer step."""
    net_opt: Optimizer = SGD(lr=0.005)
    """The optimiser of the adaptation net."""
    order: Literal["first", "second"] = "second"
    """Whether the inner gradient's own dependence on the model counts."""
    widths: tuple[int, ...] = (32, 64, 128)
    """The width of the adaptation net's hidden layers, for the first, second, ... architecture, and again in turn."""
    depth: int = 2
    """How many hidden layers it has."""
    work: Work = Work(iterations=20, batch=64, clip=10.0)
    digest_epochs: int = 1
    """How many passes over the public set a client makes per round."""
    digest_batch: int = 100
    join_epochs: int = 2
    """How many passes over the public set a newcomer makes."""
    kl: Literal["student", "teacher"] = "teacher"
    """Whose probabilities weigh the log-ratio."""
    inner_schedule: Schedule = check.later(Constant())
    """How the inner rate changes from round to round; newcomers take every rate of the last round."""

    downlink = ("logits", "known")
    trains_for = property(lambda self: ("fedtta",) if self.inner_lr else ())

    def __post_init__(self) -> None:
        for name in ("lam", "inner_lr", "digest_epochs", "join_epochs", "depth", "digest_batch"):
            check.at_least(self, name, 1 if name in ("depth", "digest_batch") else 0)
        check.choices(self)
        by_rounds(self)
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"HeteroFedTTA: widths={self.widths!r} must name at least one width of at least 1")

    def for_model(self, number: int) -> HeteroFedTTA:
        return replace(self, widths=(self.widths[number % len(self.widths)],))

    @property
    def uplink(self) -> Rules:
        return {"personalised": Mean()} | ({"base": Mean()} if self.lam else {})

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        nothing = torch.zeros(len(task.public_on(key.device)), task.num_classes, device=key.device)
        return {"logits": dict.fromkeys(self.uplink, nothing), "known": torch.zeros((), device=key.device)}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        own, hidden = rng.fold(key, "own model", client), (self.widths[0],) * self.depth
        net = nets.init(rng.fold(own, "adaptation net"), (task.num_classes, *hidden, 1))
        return {"vars": task.init(own), **({"net": net} if self.inner_lr else {})}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        mine = self.digest(task, down, mine, data["round"], self.digest_epochs, rng.fold(key, "digest"))
        rate, opts = inner_rate(self, data["round"]), {"base": self.opt, "net": self.net_opt}
        loss, key = partial(self.revisit, task, rate), rng.fold(key, "revisit")
        mine = train_jointly(loss, mine, data, opts, self.work, key, "base")
        return public_logits(task, mine, self.digest_batch, self.lam > 0, rate, self.work), mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {"logits": dict(total), "known": server["known"] + 1}

    def welcome(self, task: Task, down: Tree, mine: Tree, key: rng.Key) -> Tree:
        return self.digest(task, down, mine, last_of(down["known"]), self.join_epochs, rng.fold(key, "digest"))

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {**mine, "inner": inner_settings(self, down["known"])} if self.inner_lr else mine

    def digest(self, task: Task, down: Tree, mine: Tree, round: Tensor, epochs: int, key: rng.Key) -> Tree:
        """Both nets, distilled from the ensemble; unchanged where it knows nothing yet."""
        x, opts = task.public_on(round.device), {"base": self.opt, "net": self.net_opt}
        work = Work(epochs=epochs, batch=self.digest_batch, clip=self.work.clip)
        loss = partial(self.distillation, task, inner_rate(self, round))
        return distilled(loss, mine, x, down, self.uplink, round, opts, work, key)

    def distillation(self, task: Task, lr: Scalar, both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        """Eq. 14 on a public batch whose `y` holds the ensemble's logits: personalised, and where they count base."""
        base, out = adapted(task, both, batch["x"], key, lr, self.order, self.work.batch, self.lam > 0)
        own = self.lam * divergence(base, batch["y"][:, 1], self.kl) if self.lam else 0.0
        return divergence(out.logits, batch["y"][:, 0], self.kl) + own, out.buffers

    def revisit(self, task: Task, lr: Scalar, both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        """FedTTA's outer loss: the adapted model's cross-entropy on a labelled batch."""
        _, out = adapted(task, both, batch["x"], key, lr, self.order, self.work.batch)
        return F.cross_entropy(out.logits, batch["y"]), out.buffers
