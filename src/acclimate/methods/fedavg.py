"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1 - and what is FedAvg but for a setting.

- `private="head"` keeps the last layer at the client: FedPer (Arivazhagan et al., 2019).
- `private="norm"` keeps the normalisation layers there, statistics included: FedBN (Li et al., ICLR 2021).
- `private="body"` keeps all but the last layer there: LG-FedAvg (Liang et al., 2020; newcomers take the initial body).
- `private="head", frozen="head"` trains the body under the initial head, which all clients have in common and nobody
  sends: FedBABU (Oh, Kim & Yun, ICLR 2022). The paper fine-tunes the model at the client at last (`+finetune`).
- `balanced=True` trains with balanced softmax (Ren et al., NeurIPS 2020) under the client's own class counts.
- `server_opt=SGD(momentum=...)` is FedAvgM (Hsu et al., 2019), `server_opt=Adam(...)` is FedAdam (Reddi et al., ICLR
  2021, Algorithm 2): the averaged difference is the server's negative gradient. Batch statistics are averaged plainly.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core import SGD, Optimizer, Rules, Task, Tree, Weighted, Work, check, rng, train, tree
from ..core.nn import many
from ..ops.losses import local_loss
from ..ops.params import merge, private, shared


@dataclass(frozen=True)
class FedAvg(Weighted):
    """Average of locally trained models (McMahan et al., AISTATS 2017)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    private: tuple[str, ...] = ()
    """Roles (`head`, `norm`) or name patterns of the variables that stay with the client."""
    server_opt: Optimizer = SGD(lr=1.0)
    balanced: bool = False
    """Whether the local loss is balanced softmax instead of cross-entropy."""
    frozen: tuple[str, ...] = check.later(())
    """Roles or name patterns of the parameters that keep their initial values; batch statistics are none."""

    def __post_init__(self) -> None:
        check.choices(self)
        check.steady(self, "server_opt")

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, **self.counts}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        vars = shared(task.init(key), task.select(self.private))
        return {"vars": vars, "opt": self.server_opt.init(vars["params"])}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        names = task.select(self.private)
        return {"vars": private(task.init(key), names)} if names else {}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        names = task.select(self.private)
        only = frozenset(task.params) - task.select(self.frozen) if self.frozen else None
        loss = local_loss(task, data, self.balanced)
        w = train(loss, self._whole(down, mine), data, self.opt, self.work, key, only)
        up = {"delta": many.sub(shared(w, names), down["vars"]), "n": data["n"]}
        return tree.pick(up, self.uplink), {"vars": private(w, names)} if names else {}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        old, delta = server["vars"], total["delta"]
        params, opt = self.server_opt.update(tree.scale(delta["params"], -1.0), server["opt"], old["params"])
        return {"vars": {"params": params, "buffers": tree.add(old["buffers"], delta["buffers"])}, "opt": opt}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": self._whole(down, mine)}

    def _whole(self, down: Tree, mine: Tree) -> Tree:
        return merge(down["vars"], mine["vars"]) if mine else down["vars"]
