"""A method that fails for one client; in a module of its own, because nodes find it by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acclimate.methods import FedAvg


@dataclass(frozen=True)
class Stumbling(FedAvg):
    """FedAvg that client 3 cannot run on its data."""

    def client(self, task: Any, down: Any, mine: Any, data: Any, key: Any) -> Any:
        if int(data["id"]) == 3:
            raise RuntimeError("client 3 cannot train")
        return super().client(task, down, mine, data, key)
