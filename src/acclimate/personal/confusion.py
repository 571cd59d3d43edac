"""How the deployed model errs on its client's labelled data: what the adapters EM and BBSE estimate label shift with.

BBSE asks for data that the model was not trained on; a client that keeps none has its training data, on which a model
that remembers them errs too little. `smooth` counts of every class, all answered right, stand for classes that the
client does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..core import Personalizer, Predict, Task, Tree, check, rng


@dataclass(frozen=True)
class Confusion(Personalizer):
    """Adds `confusion` to the model: `joint` [said, class], the share of examples of a class that got an answer."""

    smooth: float = 0.1

    def __post_init__(self) -> None:
        check.positive(self, "smooth")

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        parts = data["rows"].split(256, dim=-1)
        said = torch.cat([predict(model, data["x"][rows]).logits.argmax(-1) for rows in parts])
        real = torch.arange(said.shape[0], device=said.device) < data["n"]
        said, held = (F.one_hot(t, task.num_classes).to(torch.float32) for t in (said, data["y"][data["rows"]]))
        joint = (said * real[:, None]).mT @ held
        joint = joint + self.smooth * torch.eye(task.num_classes, device=joint.device)
        return {**model, "confusion": {"joint": joint / joint.sum()}}
