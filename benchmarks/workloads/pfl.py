"""pfl-research's benchmark CIFAR-10 IID: 1,000 users with 50 images each, cohorts of 50, one epoch in batches of 10.

Client SGD with rate 0.1, server rate 1, accuracy on the 10,000 test images every 10 rounds, 1,500 rounds, no
augmentation. Images are synthetic ones of CIFAR-10's shape, or CIFAR-10 where ACCLIMATE_DATA names its folder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from federated import Round, central_accuracy, images, measure, task_of, train, with_rates
from harness import Context, Record
from torch import Tensor, nn

from acclimate.core import SGD, Shards, Work, fit
from acclimate.methods import FedAvg
from acclimate.ops.places import data_root

PEER = 0.58
"""Seconds per round that pfl-research itself took on one H200 with this work, evaluation included."""


@dataclass(frozen=True)
class TwoConv:
    """conv3x3(32) - ReLU - conv3x3(64) - ReLU - max-pool - dropout 0.25 - 128 - ReLU - dropout 0.5, Xavier start."""

    widths: tuple[int, int] = (32, 64)
    hidden: int = 128

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        return _Net(self, shape, num_classes)


class _Net(nn.Module):
    def __init__(self, spec: TwoConv, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        first, second = spec.widths
        flat = second * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2)
        self.body = nn.Sequential(
            *(nn.Conv2d(shape[0], first, 3), nn.ReLU(), nn.Conv2d(first, second, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(flat, spec.hidden), nn.ReLU(), nn.Dropout(0.5)),
        )
        self.head = nn.Linear(spec.hidden, num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


def cifar10(context: Context, ceilings: Record) -> Record:
    """One round the plain way and ours, then the whole training with its evaluations."""
    size = context.sized(
        full={"users": 1000, "cohort": 50, "test": 10_000, "rounds": 1500, "model": TwoConv(), "looped": 50},
        quick={"users": 20, "cohort": 2, "test": 100, "rounds": 2, "model": TwoConv(), "looped": 2},
        smoke={"users": 6, "cohort": 3, "test": 20, "rounds": 2, "model": TwoConv((2, 3), 8), "looped": 2},
    )
    (x, y), test = _examples(size["users"] * 50, size["test"])
    users = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).split(50)
    data = Shards.of(x, y, users).to(context.device)
    task = task_of(size["model"])
    method = FedAvg(opt=SGD(lr=0.1), work=Work(epochs=1, batch=10))
    schedule = fit.RoundPlan(context.rounds or size["rounds"], size["users"], size["cohort"], eval_every=10)
    whole = Round.of(task, method, data)
    one = Round(whole.worker, data, fit.sample(whole.worker, schedule, 0))
    record = with_rates(measure(one, context, size["looped"]), ceilings)
    run = train(whole, context, schedule, central_accuracy(task, test, context.device))
    settings = {"users": size["users"], "cohort": size["cohort"], "examples": 50, "batch": 10, "epochs": 1}
    peer = {"seconds_per_round": PEER, "times_faster": PEER / run["seconds_per_round"]["mean"]}
    found = {"settings": {**settings, "data": "CIFAR-10" if data_root() else "synthetic"}, **record, "run": run}
    return found | ({"pfl_research": peer} if context.scale == "full" else {})


def _examples(train: int, test: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images with labels."""
    if data_root() is None:
        return images(train, (3, 32, 32), 10, 0), images(test, (3, 32, 32), 10, 1)
    from acclimate.data import CIFAR10

    parts = [CIFAR10(part=part).load() for part in ("train", "test")]
    return (parts[0].x[:train], parts[0].y[:train]), (parts[1].x[:test], parts[1].y[:test])
