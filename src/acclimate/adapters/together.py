"""Clients average what they tune: the plain baseline of test-time exchange. Our own.

After every `every` batches a client sends how far the adapter inside has moved its parameters from the deployed ones
(`state["params"]`, the normalisation layers' for Tent), and goes on from a mean of the moves of all clients. The
optimiser's state, features and samples stay where they are. Where clients share one deployed model this is the average
of adapted parameters; where models are personal, what is personal about them stays.

`weights` says whose moves count how much. "uniform": all alike, so the server needs the mean alone. "similarity": each
client gets its own mix, with weights softmax(cosine / temperature) over the cosines between its move and those of all,
its own among them; the server sees every client's move. Its own cosine is 1, which leaves a client most of the weight
where moves are noisy; with `itself="nearest"` it is that of the nearest other client. The mean move is taken off before
(`centred`): all clients move alike to a large part, whatever they meet, and what they share does not tell who is near
to whom. (Two clients are then each other's opposite, and each keeps its own.) "own": nothing is sent, and the adapter
inside runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core import Adapter, Exchanging, Gather, Mean, Predict, Rules, Task, Tree, Wrapping, check, rng
from ..ops.mixing import as_near_as_others, cosines, mixed, moved, moved_by, rows
from .tent import Tent


@dataclass(frozen=True)
class Around(Wrapping, Exchanging):
    """The base of exchanges around another adapter, which does all adapting."""

    adapter: Adapter = Tent()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.adapter, Exchanging) or self.adapter.calibrates:
            name, inner = type(self).__name__, type(self.adapter).__name__
            says = f"{name}: adapter={inner} exchanges or has a guard of its own; name an adapter that has neither"
            raise check.FieldError(says, "adapter")

    def refusal(self, task: Task, model: Tree) -> str | None:
        if reason := super().refusal(task, model):
            return reason
        if not self.uplink:
            return None
        tuned, name, inner = (
            self.adapter.init(task, model).get("params"),
            type(self).__name__,
            type(self.adapter).__name__,
        )
        if not tuned:
            return f"{name} mixes the parameters that an adapter tunes, and {inner} tunes none"
        if others := sorted(tuned.keys() - {n for kind in model["vars"].values() for n in kind}):
            return f"{name} mixes parameters of the model, and {inner} tunes {', '.join(others)} besides"
        return None

    def receive(self, task: Task, model: Tree, state: Tree, down: Tree) -> Tree:
        return {**state, "params": moved_by(model, down["move"])}


@dataclass(frozen=True)
class Together(Around):
    """Runs an adapter on every client, and averages what the clients have tuned."""

    weights: Literal["uniform", "similarity", "own"] = "similarity"
    temperature: float = 0.1
    """For weights="similarity": how sharply alike clients are preferred; at 0.1 a cosine of 0 counts e^-10 of one."""
    centred: bool = True
    """For weights="similarity": whether moves are compared without the mean of all."""
    itself: Literal["one", "nearest"] = "one"
    """For weights="similarity": whether a client's cosine with itself is 1, or that of its nearest neighbour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(self, "temperature")

    @property
    def uplink(self) -> Rules:
        rules: dict[str, Rules] = {"uniform": {"move": Mean()}, "similarity": {"move": Gather()}, "own": {}}
        return rules[self.weights]

    def send(self, task: Task, predict: Predict, model: Tree, state: Tree, key: rng.Key) -> Tree:
        return {"move": moved(model, state["params"])}

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        if self.weights == "uniform":
            return {"all": {"move": total["move"]}}
        each = rows(total["move"])
        alike = cosines(each - each.mean(0) if self.centred else each)
        alike = as_near_as_others(alike) if self.itself == "nearest" else alike
        return {"own": {"move": mixed((alike / self.temperature).softmax(-1), total["move"])}}
