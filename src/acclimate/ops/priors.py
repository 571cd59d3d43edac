"""Where an adapter's class prior starts: at equal frequencies, or at those of the client's training data."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..core import Task, Tree

PriorKind: TypeAlias = Literal["uniform", "client"]
"""Equal frequencies, or `prior` of the deployed model, which the personaliser ClassPrior notes."""


def class_prior(task: Task, model: Tree, kind: PriorKind) -> Tensor:
    """The share of every class that an adapter starts from: float [classes], sums to 1."""
    if kind == "client":
        noted: Tensor = model["prior"]
        return noted
    like = model["vars"]["params"][task.head_weight]
    return torch.full_like(like[:, 0], 1.0 / task.num_classes)


def prior_refusal(task: Task, model: Tree, kind: PriorKind, who: str) -> str | None:
    """Why an adapter cannot start there, in one sentence, or None where it can."""
    if kind != "client":
        return None
    if "prior" not in model:
        return (
            f"{who} with prior='client' needs prior in the deployed model: personalise with ClassPrior (personal=prior)"
        )
    if (have := model["prior"].shape[-1]) != task.num_classes:
        return f"{who} with prior='client' has the shares of {have} classes, and this model has {task.num_classes}"
    return None
