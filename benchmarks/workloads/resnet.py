"""Residual networks on small images, 20 clients, one epoch, batch 32: FedTHE's second model ResNet20, and ResNet-18."""

from __future__ import annotations

from dataclasses import dataclass

from federated import Round, dealt, measure, task_of, with_rates
from harness import Context, Record
from torch import Tensor, nn

from acclimate.core import SGD, Work
from acclimate.core.nn.layers import any_order, norm_relu
from acclimate.methods import FedAvg
from acclimate.models import ResNet20
from acclimate.models.resnets import BasicBlock


@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 as it is used on small images: a first layer of 3 x 3 without stride, no pooling before the blocks."""

    width: int = 64

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        return _ResNet18(self.width, shape[0], num_classes)


class _ResNet18(nn.Module):
    head_name = "fc"

    def __init__(self, width: int, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        pairs = enumerate(zip(widths, widths[1:], strict=False))
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(BasicBlock(inputs, out, 2 if i else 1), BasicBlock(out, out, 1))
                for i, (inputs, out) in pairs
            )
        )
        self.fc = nn.Linear(widths[-1], num_classes)
        any_order(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.blocks(norm_relu(self.bn1, self.conv1(x))).mean((2, 3))
        return features, self.fc(features)


def _round_of(
    model: ResNet20 | ResNet18, small: ResNet20 | ResNet18, examples: int, agreed: ResNet18 | None = None
) -> Record:
    """What one client has at every scale. Where `agreed` is given, ways are shown to agree on that network."""
    whole = {"model": model, "agreed": agreed}
    return {
        "full": {"clients": 20, "examples": examples, "batch": 32, **whole},
        "quick": {"clients": 2, "examples": 32, "batch": 16, **whole},
        "smoke": {"clients": 2, "examples": 8, "batch": 4, "model": small, "agreed": None},
    }


def _measured(context: Context, ceilings: Record, sizes: Record, accurate: bool = True) -> Record:
    size = context.sized(**sizes)
    model, agreed = size.pop("model"), size.pop("agreed")
    data = dealt([size["examples"]] * size["clients"]).to(context.device)
    method = FedAvg(opt=SGD(lr=0.01), work=Work(epochs=1, batch=size["batch"]))
    round = Round.of(task_of(model), method, data)
    small = None if agreed is None else Round.of(task_of(agreed), method, data)
    record = measure(round, context, looped=2, fast=True, accurate=accurate, agreed=small)
    settings = size | {"epochs": 1} | ({} if agreed is None else {"width_that_agreed": agreed.width})
    return {"settings": settings, **with_rates(record, ceilings)}


def group_norm(context: Context, ceilings: Record) -> Record:
    """FedAvg's round with ResNet20 and group norm."""
    return _measured(context, ceilings, _round_of(ResNet20(), ResNet20(width=0.125), 1500))


def batch_norm(context: Context, ceilings: Record) -> Record:
    """FedAvg's round with ResNet20 and batch norm."""
    small = ResNet20(norm="batch", width=0.125)
    return _measured(context, ceilings, _round_of(ResNet20(norm="batch"), small, 1500))


def resnet18(context: Context, ceilings: Record) -> Record:
    """FedAvg's round with ResNet-18, whose steps are forty times as much work: a third of the examples, TF32 alone,
    since every precision compiles kernels of its own for every layer, and agreement on a network with an eighth of the
    channels."""
    sizes = _round_of(ResNet18(), ResNet18(width=4), 512, agreed=ResNet18(width=8))
    return _measured(context, ceilings, sizes, accurate=False)
