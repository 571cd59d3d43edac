"""How evenly a federation serves its clients, and what it costs them: fairness, parameters sent, trained and fixed.

The measures of FedPCL (Tan et al., NeurIPS 2022): Tables 12 and 13 (fairness), Table 2 (parameters sent per round),
Table 14 (parameters trained and fixed) and Figure 3 (how much each backbone contributes to the fused prototypes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, TypedDict

import torch.nn.functional as F
from torch import Tensor

from ..core import Task, rng, tree


class Fairness(TypedDict):
    """Accuracies over clients, sorted: the mean, the means of the worst and best shares, and the spread."""

    mean: float
    worst10: float
    worst20: float
    worst40: float
    best10: float
    std: float
    """The standard deviation over clients: what the paper's tables call variance, given its size."""
    variance: float


def fairness(per_client: Sequence[float]) -> Fairness:
    """The fairness of one accuracy per client. A share always holds at least one client."""
    if not per_client:
        raise ValueError("fairness: per_client=() must hold at least one accuracy")
    ranked = sorted(per_client)

    def worst(percent: int) -> float:
        return fmean(ranked[: _share(len(ranked), percent)])

    return {
        "mean": fmean(ranked),
        "worst10": worst(10),
        "worst20": worst(20),
        "worst40": worst(40),
        "best10": fmean(ranked[-_share(len(ranked), 10) :]),
        "std": pstdev(ranked),
        "variance": pstdev(ranked) ** 2,
    }


def _share(clients: int, percent: int) -> int:
    return max((clients * percent + 50) // 100, 1)


def parameters_sent(message: Sequence[Mapping[str, Any]]) -> int:
    """Parameters in one client's message, as `core.message.describe` (and a run's `cost["message"]`) lists it.

    Floating-point numbers are parameters; whole numbers are book-keeping: example counts, class counts, who it is.
    """
    total = 0
    for part in message:
        if part["dtype"].startswith(("float", "bfloat")):
            numel = 1
            for side in part["shape"]:
                numel *= side
            total += numel
    return total


def parameters_trained(task: Task) -> int:
    """Parameters that a client trains, its head included."""
    return tree.numel(task.init(rng.key(0))["params"])


def prototype_similarity(single: Sequence[Tensor], fused: Sequence[Tensor], counts: Sequence[Tensor]) -> list[float]:
    """How near the prototypes of one backbone [C, d] are to those of all backbones together, for every client.

    The mean cosine over the classes that the client holds: one row of Figure 3's heat map.
    """
    out = []
    for one, all_, n in zip(single, fused, counts, strict=True):
        near = F.cosine_similarity(one, all_, dim=-1)
        out.append(float((near * (n > 0)).sum() / (n > 0).sum().clamp_min(1)))
    return out
