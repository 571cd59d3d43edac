"""Clients answer with batch-norm statistics of each other's batches, where these are alike. Our own.

`BNStats` needs a large batch. Here a batch arrives at every client, each sends the statistics that its batch-norm
layers have on it, and answers with a mean of all clients' statistics: as if its batch held the samples of clients that
meet the same shift, which stay where they are. No gradient step, and nothing is carried over but how the stream looks.

`weights` says whose statistics count how much. "similarity": a client takes from others by softmax(cosine /
temperature) over the cosines between clients' signatures, less the mean of all, to that part to which its nearest
neighbour is near (its cosine, at least 0); the rest is its own, so that who is like nobody stays with its own. In the
softmax it is as near to itself as that neighbour is. A signature is the mean over the stream so far of what statistics
differ by from training's: (mean - training's mean) / training's deviation, and the logarithm of the ratio of
deviations. "uniform": all count alike, and the server needs the mean alone. "own": nothing is sent, and it is
`BNStats`. The first batch of a stream is answered with its own statistics; so is every batch of a client that is alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core import Exchanging, Gather, Mean, Predict, Rules, Task, Tree, check, rng, tree
from ..ops import requirements
from ..ops.mixing import cosines, mixed, near_by, rows
from ..ops.statistics import Noted, apart, running_of, with_buffers


@dataclass(frozen=True)
class OnArrival(Exchanging):
    """The base of adapters whose clients exchange the batch-norm statistics of a batch that is not answered yet."""

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.batch_statistics(task, type(self).__name__) or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        none = tree.zeros(running_of(task, model["vars"]["buffers"]))
        return {"statistics": none, "noted": none}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict(with_buffers(model, state["statistics"]), x, Noted(given=True)).logits, state

    def look_ahead(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> Tree:
        return {**state, "noted": tree.pick(predict(model, x, Noted()).buffers, state["noted"])}

    def receive(self, task: Task, model: Tree, state: Tree, down: Tree) -> Tree:
        mix = down["statistics"]
        return {**state, "statistics": {n: v.clamp_min(0.0) if n.endswith("_var") else v for n, v in mix.items()}}


@dataclass(frozen=True)
class BNTogether(OnArrival):
    """Answers with a mean of the statistics that alike clients have on the batches that have just arrived."""

    weights: Literal["similarity", "uniform", "own"] = "similarity"
    temperature: float = 0.1
    """For weights="similarity": how sharply alike clients are preferred."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(self, "temperature")

    @property
    def uplink(self) -> Rules:
        rules: dict[str, Rules] = {
            "similarity": {"statistics": Gather(), "signature": Gather()},
            "uniform": {"statistics": Mean()},
            "own": {},
        }
        return rules[self.weights]

    def init(self, task: Task, model: Tree) -> Tree:
        state = super().init(task, model)
        seen = model["vars"]["params"][task.head_weight].new_zeros(())
        return {**state, "signature": state["noted"], "seen": seen}

    def look_ahead(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> Tree:
        state = super().look_ahead(task, predict, model, state, x, key)
        seen, now = state["seen"] + 1, apart(task, state["noted"], model["vars"]["buffers"])
        return {**state, "signature": tree.map(lambda a, b: a + (b - a) / seen, state["signature"], now), "seen": seen}

    def send(self, task: Task, predict: Predict, model: Tree, state: Tree, key: rng.Key) -> Tree:
        sent = {"statistics": state["noted"]}
        return {**sent, "signature": state["signature"]} if self.weights == "similarity" else sent

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        if self.weights == "uniform":
            return {"all": {"statistics": total["statistics"]}}
        each = rows(total["signature"])
        weights = near_by(cosines(each - each.mean(0)), self.temperature)
        return {"own": {"statistics": mixed(weights, total["statistics"])}}
