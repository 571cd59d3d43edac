"""FedCTTA. Hasan et al., IJCNN 2025: clients whose models answer noise alike adapt together.

Every client adapts by entropy minimisation. Then it answers a set of random noise images that all clients share, and
sends these answers beside its parameters. The server weighs client j for client i by a softmax over the similarities of
their answers, and client i goes on from the mean of all parameters under its own weights. No feature of a sample leaves
a client, the server trains nothing, and it keeps nothing.

Where paper and published code differ, or leave something open: `similarity` is the cosine of the mean answers (logits)
divided by `temperature`; the published code takes exp of the cosine before the softmax (`released=True`), which hardly
sharpens it. Its config has the cosine; the negative Euclidean distance and KL are its other choices. There each client
draws noise of its own; here the noise is the same for all, as in the text. Parameters are sent as moves from the
deployed model, as in `Together`: the same mean, where clients share one model. The paper tunes all parameters; its step
size belongs to its networks, so the adapter inside and what it tunes are settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core import Gather, Predict, Rules, Task, Tree, check, rng
from ..ops import requirements
from ..ops.mixing import cosines, mixed, moved
from ..ops.params import with_tuned
from .together import Around


@dataclass(frozen=True)
class FedCTTA(Around):
    """Mixes what clients have tuned by the similarity of their answers to shared noise (Hasan et al., IJCNN 2025)."""

    noise: int = 64
    """Noise images that every client answers: uniform pixels, the same for all clients."""
    metric: Literal["cosine", "euclid", "kl"] = "cosine"
    temperature: float = 1.0
    """What similarities are divided by before the softmax."""
    released: bool = False
    """Whether the cosine, or minus the divergence, passes an exp before the softmax, as in the published code."""
    seed: int = 0
    """Of the noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "noise", 1)
        check.positive(self, "temperature")

    @property
    def uplink(self) -> Rules:
        return {"move": Gather(), "answer": Gather()}

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.numbers(task, "FedCTTA", "answer noise") or super().refusal(task, model)

    def images(self, task: Task, like: Tensor) -> Tensor:
        """The noise, [noise, ...]: pixels between 0 and 1."""
        return rng.uniform(rng.key(self.seed, like.device), self.noise, *task.shape)

    def send(self, task: Task, predict: Predict, model: Tree, state: Tree, key: rng.Key) -> Tree:
        params = state["params"]
        images = self.images(task, model["vars"]["params"][task.head_weight])
        answer = predict(with_tuned(model, params), images).logits.mean(0)
        return {"move": moved(model, params), "answer": answer}

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        alike = self.similarity(total["answer"])
        alike = alike.exp() if self.released and self.metric != "euclid" else alike
        return {"own": {"move": mixed((alike / self.temperature).softmax(-1), total["move"])}}

    def similarity(self, answers: Tensor) -> Tensor:
        """How alike the clients' mean answers [clients, classes] are, [clients, clients]."""
        if self.metric == "cosine":
            return cosines(answers)
        if self.metric == "euclid":
            return -(answers[:, None] - answers[None]).norm(dim=-1)
        logs = answers.log_softmax(-1)
        return -(logs.exp()[:, None] * (logs[:, None] - logs[None])).sum(-1)
