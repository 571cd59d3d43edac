"""FedTSA. Zhang et al., KDD 2024: clients share batch-norm statistics, with weights learned over time and clients.

A batch arrives. Every client sends the statistics that its batch-norm layers have on it, and the mean feature that the
un-adapted model gives it. The server trains an attention over the last `window` mean features of every client (over
time), and then over clients, from the identity, for `steps` steps: attended features shall be near the features, and
near those where the attention is thinned at random. Each client answers its batch with the mean of all statistics under
its row of the attention over clients at the newest time. Nothing is tuned at a client.

Written from facts of the released code; the paper was not at hand. Its order (temporal, then spatial attention) is that
of the code where its config names none. There the server keeps the past features; here clients do, and send the window,
so that who leaves does not disturb the rest. The first batch is answered with its own statistics, as there where
nothing has come from the server; so is every batch of a client that is alone, which makes it `bn`. With `every` above 1
a mix holds for so many batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Adam, Gather, Optimizer, Predict, Rules, Task, Tree, check, rng
from ..ops import attending
from ..ops.mixing import mixed
from .bn_together import OnArrival


@dataclass(frozen=True)
class FedTSA(OnArrival):
    """Answers with a mix of all clients' batch statistics, by attention over time and clients (Zhang et al., 2024)."""

    window: int = 5
    """Batches whose mean features the attention over time sees."""
    opt: Optimizer = Adam(lr=1e-4)
    """Trains the attention, anew at every exchange."""
    steps: int = 100
    robust: float = 0.1
    """Weight of the distance between attended features and those under a thinned attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "window", 1)
        check.whole(self, "steps", 1)
        check.at_least(self, "robust", 0.0)

    @property
    def uplink(self) -> Rules:
        return {"statistics": Gather(), "features": Gather(), "seen": Gather()}

    def init(self, task: Task, model: Tree) -> Tree:
        features = model["vars"]["params"][task.head_weight].new_zeros(self.window, task.dim)
        return {**super().init(task, model), "features": features, "seen": features.new_zeros(())}

    def look_ahead(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> Tree:
        newest = predict(model, x).features.mean(0)[None].to(state["features"].dtype)
        features = torch.cat((state["features"][1:], newest))
        state = super().look_ahead(task, predict, model, state, x, key)
        return {**state, "features": features, "seen": (state["seen"] + 1).clamp_max(self.window)}

    def send(self, task: Task, predict: Predict, model: Tree, state: Tree, key: rng.Key) -> Tree:
        return {"statistics": state["noted"], "features": state["features"], "seen": state["seen"]}

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        seen = total["seen"].round().clamp(1, self.window)
        weights = attending.weights(total["features"], seen, self.opt, self.steps, self.robust, key)
        return {"own": {"statistics": mixed(weights, total["statistics"])}}
