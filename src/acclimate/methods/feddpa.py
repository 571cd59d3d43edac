"""FedDPA. Yang et al., NeurIPS 2024: a shared and a local LoRA on a frozen model, mixed by a weight at test time.

The model has two pairs per layer, `models.LoRA(private=RANK)`:

- The shared pairs and the head are trained alone (share of the local ones: 0) and averaged, as in FedAvg.
- The local pairs are trained beside the received shared ones, which stand still, both counting one half; they stay.
  With `when="rounds"` that is in every round, before the shared ones are trained (the paper's FedDPA-T), with
  `when="end"` once, when the last model has arrived (FedDPA-F). When it has arrived both train them once more.
- The features of `anchors` training examples, under the local pairs alone, are kept for the adapter DPA, which weighs
  the two pairs for every test sample. Without it both count one half.

A client that never trained answers with the shared pairs. Where a model has no local pairs this is FedAvg.

Differs: the paper's models write text and have no head of their own for a client; here the head is shared. The
released code leaves the local pairs out in the first round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import SGD, Mode, Optimizer, Out, Task, Tree, Weighted, Work, check, difference, rng, train, tree
from ..ops import pairs
from ..ops.nets import features_of
from ..ops.params import private, shared


@dataclass(frozen=True)
class FedDPA(Weighted):
    """A shared and a local LoRA, for an adapter that weighs them per sample (Yang et al., NeurIPS 2024)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    local_opt: Optimizer = SGD(lr=0.05)
    local_work: Work = Work()
    """How much the local pairs are trained."""
    share: float = 0.5
    """How much the local pairs count while they are trained, and where no adapter weighs them."""
    when: Literal["rounds", "end"] = "rounds"
    anchors: int = 5
    """Training examples to which a test sample is compared."""
    trains_for = ("dpa",)

    def __post_init__(self) -> None:
        check.within(self, "share", 0.0, 1.0)
        check.whole(self, "anchors", 1)
        check.choices(self)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": shared(task.init(key), pairs.local_names(task))}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        if not (names := pairs.local_names(task)):
            return {}
        anchors = torch.zeros(self.anchors, task.dim, device=key.device)
        return {"local": private(task.init(key), names)["params"], "anchors": anchors, "seen": anchors.sum()}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        if self.when == "rounds":
            mine = self.finish_personal(task, down, mine, data, rng.fold(key, "local"))

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            return task.loss(pairs.mixed(pairs.whole(vars, mine), 0.0), batch, key)

        return {"delta": difference(loss, down["vars"], data, self.opt, self.work, key), "n": data["n"]}, mine

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        if "local" not in mine:
            return mine

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            around = {**down["vars"], "buffers": vars["buffers"]}
            return task.loss(pairs.mixed(pairs.whole(around, {"local": vars["params"]}), self.share), batch, key)

        start = {"params": mine["local"], "buffers": down["vars"]["buffers"]}
        local = train(loss, start, data, self.local_opt, self.local_work, key)["params"]
        mine = {**mine, "local": local, "seen": torch.ones_like(mine["seen"])}
        order = rng.order(rng.fold(key, "anchors"), data["rows"].shape[-1], data["n"])
        rows = data["rows"][order[torch.arange(self.anchors, device=order.device) % data["n"]]]
        alone = pairs.mixed(pairs.whole(down["vars"], mine), 1.0)
        return {**mine, "anchors": features_of(task, alone, {**data, "rows": rows})}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        share = {"share": self.share * mine["seen"]} if "local" in mine else {}
        return {"vars": pairs.whole(down["vars"], mine), **share, **tree.pick(mine, ("seen", "anchors"))}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        if "share" not in model:
            return task.apply(model["vars"], x, mode, key)
        return pairs.apply(task, model["vars"], model["share"], x, mode, key)
