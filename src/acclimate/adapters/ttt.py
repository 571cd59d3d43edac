"""TTT. Sun et al., ICML 2020, Sec. 2 and its online version: before a sample is answered, the feature extractor takes a
step on the auxiliary task, which is to predict by how many quarter turns the sample was rotated.

Online, the tuned extractor meets the next sample of the stream; otherwise it is reset after each. The head and the
rotation head stay as they are (the released code also moves the latter; Sun et al. report no difference). Each of the
four turns counts once; `views=32` draws that many random turns instead, as FedTHE's released code does. That code also
runs the model in train mode; here batch norm keeps its running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Adapter, Optimizer, Predict, Task, Tree, check, rng
from ..core.gradient import gradient
from ..core.loops import Time, at, repeat
from ..core.tree import pick
from ..ops import requirements
from ..ops.augment import turned
from ..ops.nets import linear
from ..ops.params import with_params
from ..ops.unlabelled import map_samples


@dataclass(frozen=True)
class TTT(Adapter):
    """Tunes the body on predicting the sample's rotation, then answers it (Sun et al., ICML 2020)."""

    requires: ClassVar[tuple[str, ...]] = ("rotation",)
    made_by: ClassVar[str] = "method=fedttt"

    online: bool = True
    steps: int = 1
    opt: Optimizer = SGD(lr=1e-3)
    views: int | None = None
    """Randomly turned copies per step; None takes each of the four turns once."""
    chunk: int = 8
    """How many samples of a client are tuned at once where it is not online; it bounds memory."""

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.at_least(self, "steps", 0)
        check.at_least(self, "chunk", 1)
        if self.views is not None:
            check.at_least(self, "views", 1)

    @property
    def batch_free(self) -> bool:
        return not self.online

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.square_images(task, "TTT") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return self._fresh(task, model) if self.online else {}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        keys = rng.rows(key, x.shape[0])
        if not self.online:
            fresh = self._fresh(task, model)

            def one(sample: Tree, key: rng.Key) -> Tensor:
                return self._one(predict, model, fresh, sample["x"], key)[0]

            return map_samples(one, {"x": x}, keys, self.chunk), state

        def sample(t: Time, state: Tree) -> tuple[Tree, Tree]:
            logits, state = self._one(predict, model, state, at(x, t), at(keys, t))
            return state, {"logits": logits}

        state, out = repeat(sample, state, x.shape[0], x)
        return out["logits"], state

    def _fresh(self, task: Task, model: Tree) -> Tree:
        body = pick(model["vars"]["params"], task.body)
        return {"params": body, "opt": self.opt.init(body)}

    def _one(self, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> tuple[Tensor, Tree]:
        """Logits of one sample after its own steps, and the state that these left."""

        def loss(x: Tensor, quarters: Tensor, body: Tree) -> tuple[Tensor, Tree]:
            features = predict(with_params(model, body), x).features
            return F.cross_entropy(linear(model["rotation"], features), quarters), {}

        body, opt = state["params"], state["opt"]
        for t in range(self.steps):
            quarters = self._quarters(key, t, x.device)
            copies = turned(x.expand(quarters.shape[0], *x.shape), quarters)
            grads, _ = gradient(partial(loss, copies, quarters), body)
            body, opt = self.opt.update(grads, opt, body)
        return predict(with_params(model, body), x[None]).logits[0], {"params": body, "opt": opt}

    def _quarters(self, key: rng.Key, t: int, device: torch.device) -> Tensor:
        """By how many quarter turns each copy of a sample is turned in step t."""
        if self.views is None:
            return torch.arange(4, device=device)
        return rng.randint(rng.fold(key, t), 0, 4, self.views)
