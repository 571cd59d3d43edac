"""FedProto. Tan et al., AAAI 2022, Algorithm 1: private models that are pulled towards common class prototypes.

- Local loss: cross-entropy plus `weight` times the distance to the global prototype of the sample's class; the mean
  squared difference per sample, as in the published code (the text compares the client's own prototype with it).
- A client sends its prototypes, mean features per class, and its class counts; the server averages, weighted by the
  counts (as printed, also divided by the number of owners). A class that nobody in the cohort holds keeps its last one.
- Inference: the class of the nearest global prototype, classes without one excepted; or the private model's own head.

With `weight=0` and `inference="head"` it is local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import SGD, Mean, Method, Mode, Optimizer, Out, Rules, Sum, Task, Tree, Work, check, rng, train
from ..ops.prototypes import nearest, own_prototypes, pulled


@dataclass(frozen=True)
class FedProto(Method):
    """Private models, common prototypes (Tan et al., AAAI 2022)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    weight: float = 1.0
    """The weight of the distance to the global prototypes: the paper's lambda."""
    inference: Literal["prototypes", "head"] = "prototypes"
    """Whether the nearest global prototype or the private head answers."""

    downlink = ("prototypes", "known")
    uplink: ClassVar[Rules] = {"prototypes": Mean("counts"), "counts": Sum()}

    def __post_init__(self) -> None:
        check.at_least(self, "weight", 0.0)
        check.choices(self)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        prototypes = torch.zeros(task.num_classes, task.dim, device=key.device)
        return {"prototypes": prototypes, "known": torch.zeros(task.num_classes, device=key.device)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"vars": task.init(key)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(vars, batch["x"], "train", key)
            return pulled(out, out.features, batch["y"], down["prototypes"], down["known"], self.weight), out.buffers

        vars = train(loss, mine["vars"], data, self.opt, self.work, key)
        own, counts = own_prototypes(task, vars, data)
        return {"prototypes": own, "counts": counts.to(torch.int64)}, {"vars": vars}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        met = total["counts"] > 0
        prototypes = torch.where(met[:, None], total["prototypes"], server["prototypes"])
        return {"prototypes": prototypes, "known": torch.maximum(server["known"], met.to(server["known"].dtype))}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mine["vars"], **(down if self.inference == "prototypes" else {})}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        out = task.apply(model["vars"], x, mode, key)
        if self.inference == "head":
            return out
        return out._replace(logits=nearest(out.features, model["prototypes"], model["known"]))
