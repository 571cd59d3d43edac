"""BlazeFL's published work (arXiv 2604.03606): 100 clients with 500 images of CIFAR-10's shape, all in every round.

Five rounds of five epochs in batches of 50, SGD with rate 0.1, with the CNN of PyTorch's tutorial (62,006 parameters)
or torchvision's ResNet-18. Its data loaders and its evaluation on 10,000 test images are left out of the ratio to the
plain loop; the whole training with an evaluation after every round is timed besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from federated import Round, central_accuracy, dealt, images, measure, task_of, train, with_rates
from harness import Context, Record
from torch import Tensor, nn

from acclimate.core import SGD, Work, fit
from acclimate.core.nn.layers import any_order
from acclimate.methods import FedAvg
from acclimate.models import ResNet

from .resnet import ResNet18

ROUNDS = 5


@dataclass(frozen=True)
class Tutorial:
    """conv5x5(6) - ReLU - pool - conv5x5(16) - ReLU - pool - 120 - ReLU - 84 - ReLU."""

    widths: tuple[int, int, int, int] = (6, 16, 120, 84)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        return _Net(self, shape, num_classes)


class _Net(nn.Module):
    def __init__(self, spec: Tutorial, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        first, second, hidden, last = spec.widths
        flat = second * (((shape[1] - 4) // 2 - 4) // 2) * (((shape[2] - 4) // 2 - 4) // 2)
        self.body = nn.Sequential(
            *(nn.Conv2d(shape[0], first, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, last), nn.ReLU()),
        )
        self.head = nn.Linear(last, num_classes)
        any_order(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


def _measured(context: Context, ceilings: Record, model: Any, small: Any, agreed: Any = None) -> Record:
    """One round the plain way and ours, then the whole training with its evaluations."""
    size = context.sized(
        full={"clients": 100, "examples": 500, "batch": 50, "epochs": 5, "test": 10_000, "model": model},
        quick={"clients": 4, "examples": 100, "batch": 50, "epochs": 1, "test": 100, "model": model},
        smoke={"clients": 2, "examples": 8, "batch": 4, "epochs": 1, "test": 20, "model": small},
    )
    model, test = size.pop("model"), images(size.pop("test"), (3, 32, 32), 10, 1)
    data = dealt([size["examples"]] * size["clients"]).to(context.device)
    task, method = task_of(model), FedAvg(opt=SGD(lr=0.1), work=Work(epochs=size["epochs"], batch=size["batch"]))
    whole = Round.of(task, method, data)
    like = None if agreed is None or model is small else Round.of(task_of(agreed), method, data)
    record = measure(whole, context, looped=2, fast=True, accurate=agreed is None, agreed=like)
    schedule = fit.RoundPlan(context.rounds or ROUNDS, size["clients"], size["clients"], eval_every=1)
    run = train(whole, context, schedule, central_accuracy(task, test, context.device, batch=1000))
    return {"settings": size, **with_rates(record, ceilings), "run": run}


def cnn(context: Context, ceilings: Record) -> Record:
    """The CNN, which has so little to do in a step that a loop is bound by launches."""
    return _measured(context, ceilings, Tutorial(), Tutorial((2, 3, 8, 6)))


def resnet18(context: Context, ceilings: Record) -> Record:
    """ResNet-18 with its first layer for large images, so that 32 pixels are 8 before the first block.

    In float32 every layer would compile kernels of another precision, so a GPU measures TF32 alone; ways agree on a
    network with an eighth of the channels.
    """
    return _measured(context, ceilings, ResNet(18), ResNet18(width=2), agreed=ResNet18(width=8))
