"""FedCSA. Ma et al., 'Fast-convergent federated learning with class-weighted aggregation', J. Syst. Archit. 2021.

Only the abstract was at hand: local models are weighted by their contributions to each class, which matters where
clients hold different classes. There are two strategies, FedCSA being one. Their formulas were not to be found, nor
code. This is how we read it:

- Client k's contribution to class c is its share of that class's examples, n_kc / N_c.
- Its weight is the sum of its contributions, so that every class counts as one, however rare; weights of a round's
  clients are normalised. Where all clients have the same mix of classes this is FedAvg.

A client sends its class counts as a sum, so the server learns the totals N_c and no client's own, and hands them out
with the next model. In the first round nobody knows them, and clients count by examples. Totals add up over rounds, so
that rare participants are in them too; a class that nobody has shown counts as an average one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Mean, Method, Optimizer, Rules, Sum, Task, Tree, Work, difference, rng, tree
from ..core.limits import ExampleCount, Limits, UpTo
from ..ops.losses import class_counts


@dataclass(frozen=True)
class FedCSA(Method):
    """FedAvg whose clients count by their shares of every class (Ma et al., 2021, as we read it)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("vars", "counts")
    uplink: ClassVar[Rules] = {"delta": Mean("share"), "share": Sum(), "counts": Sum()}

    @property
    def limits(self) -> Limits:
        share = UpTo(lambda claim: contribution(claim.up["counts"], claim.down["counts"]))
        return {"counts": ExampleCount(weighs=False), "share": share}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "counts": torch.zeros(task.num_classes, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        counts = class_counts(data, task.num_classes)
        return {
            "delta": difference(task.loss, down["vars"], data, self.opt, self.work, key),
            "share": contribution(counts, down["counts"]),
            "counts": counts.to(torch.int64),  # whole numbers are book-keeping, floating-point ones parameters
        }, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        counts = server["counts"] + total["counts"].to(server["counts"].dtype)
        return {"vars": tree.add(server["vars"], total["delta"]), "counts": counts}


def contribution(counts: Tensor, totals: Tensor) -> Tensor:
    """A client's shares of all classes, summed; by its examples where no totals are known."""
    shown = totals > 0
    average = totals.sum() / shown.sum().clamp_min(1)
    usual = torch.where(average > 0, average, torch.ones_like(average))
    return (counts / torch.where(shown, totals, usual)).sum()
