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
released code leaves the local pairs out in the first round. `descriptors=True` adds FedTHE's descriptors for the
adapter THELoRA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import (
    SGD,
    Mean,
    Mode,
    Optimizer,
    Out,
    Rules,
    Sum,
    Task,
    Tree,
    Weighted,
    Work,
    check,
    difference,
    rng,
    train,
)
from ..ops import pairs
from ..ops.nets import features_of, mean_feature
from ..ops.params import merge, private, shared


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
    descriptors: bool = False
    """Whether clients also send the mean feature of their data, as in FedTHE."""

    downlink = ("vars", "descriptor")

    def __post_init__(self) -> None:
        check.within(self, "share", 0.0, 1.0)
        check.whole(self, "anchors", 1)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "n": Sum(), **({"descriptor": Mean()} if self.descriptors else {})}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": shared(task.init(key), pairs.local_names(task)), **self._descriptor(task, key)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        if not (names := pairs.local_names(task)):
            return self._descriptor(task, key)
        anchors, seen = torch.zeros(self.anchors, task.dim, device=key.device), torch.zeros((), device=key.device)
        own = private(task.init(key), names)["params"]
        return {"local": own, "anchors": anchors, "seen": seen, **self._descriptor(task, key)}

    def _descriptor(self, task: Task, key: rng.Key) -> Tree:
        return {"descriptor": torch.zeros(task.dim, device=key.device)} if self.descriptors else {}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        if self.when == "rounds":
            mine = self.finish_personal(task, down, mine, data, rng.fold(key, "local"))
        elif self.descriptors:
            mine = {**mine, "descriptor": self._mean_feature(task, down, mine, data)}

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            return task.loss(pairs.mixed(_whole(vars, mine), 0.0), batch, key)

        up = {"delta": difference(loss, down["vars"], data, self.opt, self.work, key), "n": data["n"]}
        return up | ({"descriptor": mine["descriptor"]} if self.descriptors else {}), mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        new = super().server(task, server, total, key)
        return {**new, "descriptor": total["descriptor"]} if self.descriptors else new

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        if self.descriptors:
            mine = {**mine, "descriptor": self._mean_feature(task, down, mine, data)}
        if "local" not in mine:
            return mine

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            both = {"params": {**down["vars"]["params"], **vars["params"]}, "buffers": vars["buffers"]}
            return task.loss(pairs.mixed(both, self.share), batch, key)

        start = {"params": mine["local"], "buffers": down["vars"]["buffers"]}
        local = train(loss, start, data, self.local_opt, self.local_work, key)["params"]
        mine = {**mine, "local": local, "seen": torch.ones_like(mine["seen"])}
        order = rng.order(rng.fold(key, "anchors"), data["rows"].shape[-1], data["n"])
        chosen = order[torch.arange(self.anchors, device=order.device) % data["n"]]
        alone = pairs.mixed(_whole(down["vars"], mine), 1.0)
        return {**mine, "anchors": features_of(task, alone, {**data, "rows": data["rows"][chosen]})}

    def _mean_feature(self, task: Task, down: Tree, mine: Tree, data: Tree) -> Tensor:
        """The mean feature of the client's data under the shared pairs."""
        return mean_feature(features_of(task, pairs.mixed(_whole(down["vars"], mine), 0.0), data), data["n"])

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        model: Tree = {"vars": _whole(down["vars"], mine)}
        if "local" in mine:
            model |= {"share": self.share * mine["seen"], "seen": mine["seen"], "anchors": mine["anchors"]}
        if self.descriptors:
            model["descriptors"] = {"global": down["descriptor"], "local": mine["descriptor"]}
        return model

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        if "share" not in model:
            return task.apply(model["vars"], x, mode, key)
        return pairs.apply(task, model["vars"], model["share"], x, mode, key)


def _whole(vars: Tree, mine: Tree) -> Tree:
    """Shared and local parameters as one set of variables."""
    return merge(vars, {"params": mine["local"], "buffers": {}}) if "local" in mine else vars
