"""How the deployed model errs on its client's labelled data: what the adapters EM and BBSE estimate label shift with.

BBSE asks for data that the model was not trained on; a client that keeps none has its training data, on which a model
that remembers them errs too little. `smooth` stands for classes that the client does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..core import Personalizer, Predict, Task, Tree, check, rng
from ..ops.masks import real_rows


@dataclass(frozen=True)
class Confusion(Personalizer):
    """Adds `confusion` to the model: `joint` [answer, class], the share of examples of a class that got an answer."""

    smooth: float = 0.1
    """Examples of every class that count as answered right, whether the client has any or not."""

    def __post_init__(self) -> None:
        check.positive(self, "smooth")

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        parts = data["rows"].split(256, dim=-1)
        answers = torch.cat([predict(model, data["x"][rows]).logits.argmax(-1) for rows in parts])
        real = real_rows(answers.shape[0], data["n"])
        given, held = (F.one_hot(t, task.num_classes).to(torch.float32) for t in (answers, data["y"][data["rows"]]))
        joint = (given * real[:, None]).mT @ held
        joint = joint + self.smooth * torch.eye(task.num_classes, device=joint.device)
        return {**model, "confusion": {"joint": joint / joint.sum()}}
