"""FedNova. Wang et al., NeurIPS 2020, Eq. 4-6 and Algorithm 1: every client's way is divided by how long it walked.

- A client's difference is -lr sum_s a_s g_s over its gradients; a depends on its optimiser alone. It sends the
  difference divided by |a|_1, its mean step, and |a|_1 itself.
- x <- x + tau_eff * mean_k (difference_k / |a_k|_1), with tau_eff = mean_k |a_k|_1, both means by examples.

For plain SGD |a|_1 is the number of steps. With momentum, step t adds 1 + m + ... + m^t; a schedule scales each step.
Clients that walk equally long are averaged as by FedAvg, whatever tau_eff. The released code takes the plain number of
steps for tau_eff where it has a proximal term, which is not built here. Batch statistics are averaged plainly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Mean, Method, Rules, Sum, Task, Tree, Work, check, difference, rng, tree
from ..core.limits import COMMON, Limits, UpTo


@dataclass(frozen=True)
class FedNova(Method):
    """FedAvg whose clients count by their mean step, not by the way they walked (Wang et al., NeurIPS 2020)."""

    opt: SGD = SGD(lr=0.05)
    work: Work = Work()

    uplink: ClassVar[Rules] = {"delta": Mean("n"), "steps": Mean("n"), "n": Sum()}

    def __post_init__(self) -> None:
        if not isinstance(self.opt, SGD):
            raise check.FieldError(
                f"FedNova: opt={self.opt} must be SGD: the normaliser is the sum of its steps' weights", "opt"
            )

    @property
    def limits(self) -> Limits:
        return {**COMMON, "steps": UpTo(lambda claim: walked(self.opt, self.work, claim.data))}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        delta = difference(task.loss, down["vars"], data, self.opt, self.work, key)
        steps = walked(self.opt, self.work, data)
        delta = {**delta, "params": tree.scale(delta["params"], 1.0 / steps.clamp_min(1e-12))}
        return {"delta": delta, "steps": steps, "n": data["n"]}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        delta = {**total["delta"], "params": tree.scale(total["delta"]["params"], total["steps"])}
        return super().server(task, server, {"delta": delta}, key)


def walked(opt: SGD, work: Work, data: Tree) -> Tensor:
    """|a|_1: how many times its learning rate a client walks along a gradient that never changes."""
    t, _, active = work.timeline(data)
    pull = torch.ones_like(t, dtype=torch.float32)
    if opt.momentum:
        before = opt.momentum ** (t.to(torch.float32) + 1)
        pull = (1 - before) / (1 - opt.momentum) if opt.momentum < 1 else t + 1.0
        pull = 1 + opt.momentum * pull if opt.nesterov else pull
    return (pull * opt.scale(data["round"], t) * active).sum()
