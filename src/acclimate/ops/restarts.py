"""When published rules start an adapter afresh: see adapters/guarded.py for what each of them is."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..core import Task, Tree
from .estimates import entropy

Rule = Literal["none", "sar", "asr", "aetta"]
SAR_SHARE, SAR_KEEP = 0.029, 0.9
"""SAR's bound of 0.2 nats is for 1,000 classes: as a share of ln C."""
ASR_RATE = 0.15
WINDOW = 5


def started(task: Task, zero: Tensor) -> Tree:
    """What the rules remember at the start of a stream."""
    classes = task.num_classes
    return {
        "batches": zero,
        "loss": zero + math.log(classes),
        "spread": zero + math.log(max(0.5 * classes, 1.0)),
        "last": torch.full((2 * WINDOW,), torch.nan, dtype=zero.dtype, device=zero.device),
    }


def restart(
    rule: Rule, every: int | None, state: Tree, plain: Tensor, adapted: Tensor, estimate: Tensor
) -> tuple[Tensor, Tree]:
    """Whether to start afresh after a batch, and what is remembered then.

    `plain` and `adapted` are both models' probabilities [B, C], `estimate` the accuracy that the adapted answers are
    estimated to have.
    """
    classes = plain.shape[-1]
    batches = state["batches"] + 1
    loss = SAR_KEEP * state["loss"] + (1 - SAR_KEEP) * entropy(adapted).mean()
    flips = (plain.argmax(-1) != adapted.argmax(-1)).to(plain.dtype).mean()
    now, slow = entropy(adapted.mean(0)), 1.0 - ASR_RATE * (1.0 - flips)
    last = torch.cat((state["last"][1:], estimate[None].to(state["last"].dtype)))
    fallen = last[WINDOW:].mean() < last[:WINDOW].mean() - 0.02  # false while the window fills: NaN
    met = {
        "none": torch.zeros_like(flips, dtype=torch.bool),
        "sar": loss < SAR_SHARE * math.log(classes),
        "asr": now < state["spread"],
        "aetta": (estimate < 0.2) | fallen,
    }[rule]
    again = met | (batches >= every) if every is not None else met
    fresh = started_like(state, classes)
    kept = {"batches": batches, "loss": loss, "spread": slow * state["spread"] + (1 - slow) * now, "last": last}
    return again, {name: torch.where(again, fresh[name], kept[name]) for name in kept}


def started_like(state: Tree, classes: int) -> Tree:
    """What the rules remember after a restart; ASR's running value goes on."""
    return {
        "batches": torch.zeros_like(state["batches"]),
        "loss": torch.full_like(state["loss"], math.log(classes)),
        "spread": state["spread"],
        "last": torch.full_like(state["last"], torch.nan),
    }
