"""HeteroFedTTA. Ye et al., 'UPFL', 2023, Sec. 3.4, Eq. 14 and Algorithm 2, on FedMD (Li & Wang, 2019).

Clients have models and adaptation nets of their own architecture and send no weights. They exchange logits on a public
unlabelled set: those of their base model and those of the model that their net adapts to the set. A round:

- digest: both nets are distilled from the ensemble's logits, KL(adapted, F_per) + lam KL(base, F_base), the adapted
  model being one inner step away on the same batch (Eq. 14). Nothing is known in the first round, so it has no digest.
- revisit: FedTTA's meta-training on the client's own labels (`methods.fedtta`, mu = 0).
- communicate: the two logits; the server takes their means, every client counting as one.

A newcomer starts from a fresh model of any architecture, digests for `join_epochs`, and adapts (`adapters.fedtta`).

`lam=0` distils end to end; the base logits then weigh nothing and are not sent. `inner_lr=0` has no adaptation net at
all: with `lam=0` that is plain FedMD, which with Tent is the paper's heterogeneous TENT. The paper leaves open: on what
a model is adapted whose logits are sent (here and in the released code, one step on the whole public set), how long to
digest (one epoch), and the size of its batches (100, as released). Every inner step takes the norm that a batch of
`work.batch` samples would have, as at test time. KL weighs the log-ratio by the teacher's probabilities, as FedMD and
the released code do; `kl="student"` takes the order in which Eq. 14 prints its arguments for that of the divergence.
Gradients of each net are clipped at 10 as released: without, the paper's rates diverge within a round on MNIST. Further
differences from the released code are those of FedTTA (`methods.fedtta`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from ..core import SGD, Loss, Mean, Method, Optimizer, Out, Rules, Task, Tree, Work, check, rng, train, tree
from ..ops import nets
from ..ops.joint import joined, model_of
from ..ops.learned import learned_loss
from ..ops.public import answers, divergence, lesson, whole_step
from ..ops.rates import PerGroup


@dataclass(frozen=True)
class HeteroFedTTA(Method):
    """FedTTA for clients of different architectures, who exchange logits on a public set (Ye et al., 2023)."""

    several_models: ClassVar[bool] = True

    lam: float = 0.8
    """Weight of the base model's own distillation: the paper's lambda."""
    inner_lr: float = 0.5
    """The rate of the inner step, in training and by default at test time; 0: no adaptation net (FedMD)."""
    opt: Optimizer = SGD(lr=0.1)
    """Of the model's outer step."""
    net_opt: Optimizer = SGD(lr=0.005)
    """Of the adaptation net."""
    order: Literal["first", "second"] = "second"
    """Whether the inner gradient's own dependence on the model counts."""
    widths: tuple[int, ...] = (32, 64, 128)
    """The width of the adaptation net's hidden layers, for the first, second, ... architecture, and again in turn."""
    depth: int = 2
    """How many hidden layers it has."""
    work: Work = Work(iterations=20, batch=64, clip=10.0)
    digest_epochs: int = 1
    """Passes over the public set per round."""
    digest_batch: int = 100
    join_epochs: int = 2
    """Passes of a newcomer."""
    kl: Literal["student", "teacher"] = "teacher"
    """Whose probabilities weigh the log-ratio."""

    def __post_init__(self) -> None:
        for name in ("lam", "inner_lr", "digest_epochs", "join_epochs"):
            check.at_least(self, name, 0)
        check.at_least(self, "depth", 1)
        check.at_least(self, "digest_batch", 1)
        check.choices(self)
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
        own = rng.fold(key, "own model", client)
        if not self.inner_lr:
            return {"vars": task.init(own)}
        hidden = (self.widths[0],) * self.depth
        net = nets.init(rng.fold(own, "adaptation net"), (task.num_classes, *hidden, 1))
        return {"vars": task.init(own), "net": net}

    def download(self, task: Task, server: Tree) -> Tree:
        return server

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        digested = self.digest(task, down, _joint(mine), data["round"], self.digest_epochs, rng.fold(key, "digest"))
        work = replace(self.work, clip=None)
        new = train(self.meta_loss(task), digested, data, self._optimizer(), work, rng.fold(key, "revisit"))
        return self.communicate(task, new), _apart(new)

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {"logits": dict(total), "known": torch.ones_like(server["known"])}

    def welcome(self, task: Task, down: Tree, mine: Tree, key: rng.Key) -> Tree:
        now = torch.zeros_like(key)
        return _apart(self.digest(task, down, _joint(mine), now, self.join_epochs, rng.fold(key, "digest")))

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        if not self.inner_lr:
            return mine
        zero = torch.zeros_like(down["known"])
        return {**mine, "inner": {"lr": zero + self.inner_lr, "batch": zero + self.work.batch}}

    def _optimizer(self) -> Optimizer:
        groups = (("base", self.opt), ("net", self.net_opt)) if self.inner_lr else (("base", self.opt),)
        return PerGroup(groups=groups, clip=self.work.clip)

    def adapted(self, task: Task, both: Tree, x: Tensor, key: rng.Key) -> tuple[Tensor, Out]:
        """The base model's logits on a batch, and the outputs of the model that an inner step on it leads to."""
        base, buffers = both["params"]["base"], both["buffers"]

        def forward(params: Tree) -> Out:
            return task.apply({"params": params, "buffers": buffers}, x, "train", key)

        if not self.inner_lr:
            out = forward(base)
            return out.logits, out

        def inner(params: Tree) -> tuple[Tensor, Tensor]:
            logits = forward(params).logits
            length = torch.full_like(logits[0, 0], self.work.batch)
            return learned_loss(both["params"]["net"], logits, batch=length), logits

        at = base if self.order == "second" else tree.map(lambda p: p.detach(), base)
        gradient, logits = grad(inner, has_aux=True)(at)
        if self.order == "first" and self.lam:  # the base model's own loss must see it
            logits = forward(base).logits
        return logits, forward(tree.add(base, gradient, -self.inner_lr))

    def meta_loss(self, task: Task) -> Loss:
        """FedTTA's outer loss: the adapted model's cross-entropy on a labelled batch."""

        def loss(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            _, out = self.adapted(task, both, batch["x"], key)
            return F.cross_entropy(out.logits, batch["y"]), out.buffers

        return loss

    def distillation(self, task: Task) -> Loss:
        """Eq. 14 on a public batch whose `y` holds the ensemble's logits: personalised, and where they count base."""

        def loss(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            base, out = self.adapted(task, both, batch["x"], key)
            total = divergence(out.logits, batch["y"][:, 0], self.kl)
            if self.lam:
                total = total + self.lam * divergence(base, batch["y"][:, 1], self.kl)
            return total, out.buffers

        return loss

    def digest(self, task: Task, down: Tree, both: Tree, round: Tensor, epochs: int, key: rng.Key) -> Tree:
        """Both nets, distilled from the ensemble; unchanged where it knows nothing yet."""
        x = task.public_on(round.device)
        if not len(x) or not epochs:
            return both
        teacher = torch.stack([down["logits"][name] for name in self.uplink], 1)
        work = Work(epochs=epochs, batch=min(self.digest_batch, len(x)))
        new = train(self.distillation(task), both, lesson(x, teacher, round), self._optimizer(), work, key)
        digested: Tree = tree.where(down["known"] > 0, new, both)
        return digested

    def communicate(self, task: Task, both: Tree) -> Tree:
        """The message: logits on the public set, of the adapted model and where they count of the base model."""
        base, net = both["params"]["base"], both["params"].get("net")
        x = task.public_on(tree.leaves(base)[0].device)
        if not len(x):
            none = torch.zeros(0, task.num_classes, device=x.device)
            return dict.fromkeys(self.uplink, none)
        batch = min(self.digest_batch, len(x))

        def logits(params: Tree, some: Tensor) -> Tensor:
            return task.apply({"params": params, "buffers": both["buffers"]}, some, "adapt").logits

        up = {"base": answers(logits, base, x, batch)} if self.lam else {}
        if net is not None:
            base = whole_step(logits, net, base, x, batch, self.inner_lr, self.work.batch, self.work.clip)
        return {"personalised": answers(logits, base, x, batch), **up}


def _joint(mine: Tree) -> Tree:
    """A client's nets as one tree of variables to train."""
    return joined(mine["vars"], {name: mine[name] for name in ("net",) if name in mine}, "base")


def _apart(both: Tree) -> Tree:
    """The inverse of `_joint`."""
    return {"vars": model_of(both, "base"), **tree.drop(both["params"], ("base",))}
