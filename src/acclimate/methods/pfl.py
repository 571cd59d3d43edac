"""PFL-Sampled and PFL-Ensemble, FedTTA's personal baselines: FedPer (Arivazhagan et al., 2019) that shares its heads.

Training is FedPer's: the body is averaged, the head stays with the client. The server keeps a copy of every head, and
a client that joins after training is answered with

- `joins="sampled"`: one client's head, drawn for every newcomer among those who have trained;
- `joins="ensemble"`: the mean of all clients' logits. Heads are linear and share one body, so this is exactly the model
  with the mean head; sending that costs one head instead of all.

A baseline only: it hands clients' personal heads to strangers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import SGD, Gather, Optimizer, Rules, Task, Tree, Weighted, Work, rng, train, tree
from ..ops.params import merge, private, shared


@dataclass(frozen=True)
class PFL(Weighted):
    """FedPer whose newcomers get one trained client's head, or the mean of all (baselines of Ye et al., 2023)."""

    joins: Literal["sampled", "ensemble"] = "ensemble"
    """What a newcomer is answered with."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, **self.counts, "head": Gather(), "id": Gather()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        vars = task.init(key)
        head = private(vars, task.head)["params"]
        heads = tree.map(lambda h: h.expand(clients, *h.shape).clone(), head)
        return {"vars": shared(vars, task.head), "heads": heads, "seen": torch.zeros(clients, device=key.device)}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        draw = rng.bits(rng.fold(key, "sampled", client))
        return {"head": private(task.init(key), task.head)["params"], "draw": draw}

    def download(self, task: Task, server: Tree) -> Tree:
        if self.joins == "sampled":
            return server
        seen = server["seen"] / server["seen"].sum().clamp_min(1.0)
        return {
            "vars": server["vars"],
            "mean": tree.map(lambda h: torch.einsum("c,c...->...", seen, h), server["heads"]),
        }

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        w = train(task.loss, _whole(down["vars"], mine["head"]), data, self.opt, self.work, key)
        head = private(w, task.head)["params"]
        up = {"delta": tree.sub(shared(w, task.head), down["vars"]), "head": head, "id": data["id"], "n": data["n"]}
        return tree.pick(up, self.uplink), {**mine, "head": head}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        heads = tree.put(server["heads"], total["id"], total["head"])
        seen = server["seen"].index_fill(0, total["id"], 1.0)
        return {"vars": tree.add(server["vars"], total["delta"]), "heads": heads, "seen": seen}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return {**mine, "own": torch.ones_like(data["n"])}  # who comes here took part in training

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        if "own" in mine:
            return {"vars": _whole(down["vars"], mine["head"])}
        head = (
            down["mean"] if self.joins == "ensemble" else tree.take(down["heads"], _drawn(mine["draw"], down["seen"]))
        )
        return {"vars": _whole(down["vars"], head)}


def _whole(body: Tree, head: Tree) -> Tree:
    return merge(body, {"params": head, "buffers": {}})


def _drawn(draw: Tensor, seen: Tensor) -> Tensor:
    """One of the clients that took part, from random bits."""
    place = draw.remainder(seen.sum().clamp_min(1.0).to(torch.int64))
    return (seen.cumsum(0) > place).to(torch.int64).argmax()
