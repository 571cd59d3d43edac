"""FedDPA with FedTHE's descriptors (Jiang & Lin, ICLR 2023, Sec. 4.2), for the adapter THELoRA.

A client also sends the mean feature of its training data under the shared LoRA; the server sends back their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import Mean, Rules, Task, Tree, rng
from ..ops import pairs
from ..ops.nets import features_of, mean_feature
from .feddpa import FedDPA


@dataclass(frozen=True)
class FedDPATHE(FedDPA):
    """FedDPA that also exchanges feature descriptors, for THE over the two LoRAs."""

    downlink = ("vars", "descriptor")
    trains_for = ("the-lora",)

    @property
    def uplink(self) -> Rules:
        return {**super().uplink, "descriptor": Mean()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {**super().init_server(task, clients, key), "descriptor": torch.zeros(task.dim, device=key.device)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {**super().init_mine(task, key), "descriptor": torch.zeros(task.dim, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        up, mine = super().client(task, down, mine, data, key)
        mine = self._described(task, down, mine, data)
        return {**up, "descriptor": mine["descriptor"]}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {**super().server(task, server, total, key), "descriptor": total["descriptor"]}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return self._described(task, down, super().finish_personal(task, down, mine, data, key), data)

    def _described(self, task: Task, down: Tree, mine: Tree, data: Tree) -> Tree:
        vars = pairs.mixed(pairs.whole(down["vars"], mine), 0.0)
        return {**mine, "descriptor": mean_feature(features_of(task, vars, data), data["n"])}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        descriptors = {"global": down["descriptor"], "local": mine["descriptor"]}
        return {**super().deploy(task, down, mine), "descriptors": descriptors}
