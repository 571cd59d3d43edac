"""A method that gathers every reply. By itself, without the fakes: real nodes and servers import this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acclimate.core import Gather, Rules, tree
from acclimate.methods import FedAvg


@dataclass(frozen=True)
class Gathering(FedAvg):
    """FedAvg whose server sees every client's own message."""

    @property
    def uplink(self) -> Rules:
        return {"delta": Gather(), "n": Gather()}

    def server(self, task: Any, server: tree.Tree, total: tree.Tree, key: Any) -> tree.Tree:
        share = total["n"] / total["n"].sum()
        mean = tree.map(lambda x: (x * share.reshape(-1, *[1] * (x.dim() - 1))).sum(0), total["delta"])
        return super().server(task, server, {"delta": mean}, key)
