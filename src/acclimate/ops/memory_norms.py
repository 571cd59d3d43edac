"""Batch norm over some samples alone: those that a memory holds (RoTTA, NOTE), or those of a batch that count."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Normaliser, PureBatchNorm
from ..core.nn.iabn import InstanceAwareBatchNorm


def moments(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance of every channel, [C], where samples count by weight [B]; and how many values do."""
    weight = weight.reshape(-1, *[1] * (x.dim() - 1))
    axes = [d for d in range(x.dim()) if d != 1]
    count = (weight.sum() * (x[0, 0].numel())).clamp_min(1.0)
    mean = (x * weight).sum(axes) / count
    away = x - mean.reshape(1, -1, *[1] * (x.dim() - 2))
    return mean, (away.square() * weight).sum(axes) / count, count


def _normalised(layer: PureBatchNorm, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """With these statistics [C], corrected for every sample where the layer does so."""
    if isinstance(layer, InstanceAwareBatchNorm):
        return layer.corrected(x, mean, var)
    return layer.normalised(x, mean, var)


@dataclass(frozen=True, eq=False)
class RobustNorm(Normaliser):
    """RoTTA's: the running statistics go to the memory's by `rate`, and then normalise (Yuan et al., CVPR 2023)."""

    rate: float
    weight: Tensor

    def normalise(self, layer: PureBatchNorm, input: Tensor) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None
        mean, var, _ = moments(input, self.weight)
        mean = (1.0 - self.rate) * layer.running_mean + self.rate * mean
        var = (1.0 - self.rate) * layer.running_var + self.rate * var
        layer.running_mean, layer.running_var = mean.detach(), var.detach()
        return _normalised(layer, input, mean, var)


@dataclass(frozen=True, eq=False)
class MemoryNorm(Normaliser):
    """NOTE's: the memory's own statistics normalise, and the running ones follow by `rate` (Gong et al., 2022)."""

    rate: float
    weight: Tensor

    def normalise(self, layer: PureBatchNorm, input: Tensor) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None
        mean, var, count = moments(input, self.weight)
        var = var * (count / (count - 1.0).clamp_min(1.0))
        layer.running_mean = (1.0 - self.rate) * layer.running_mean + self.rate * mean.detach()
        layer.running_var = (1.0 - self.rate) * layer.running_var + self.rate * var.detach()
        return _normalised(layer, input, mean, var)


@dataclass(frozen=True, eq=False)
class CountedNorm(Normaliser):
    """The statistics of a batch's samples of weight one, as if the others were not there; running ones stay. Others
    have a weight of zero."""

    weight: Tensor

    def normalise(self, layer: PureBatchNorm, input: Tensor) -> Tensor:
        if (out := layer.counted(input, self.weight)) is not None:
            return out
        mean, var, count = moments(input, self.weight)
        if isinstance(layer, InstanceAwareBatchNorm):  # which takes the unbiased variance of a batch
            var = var * (count / (count - 1.0).clamp_min(1.0))
        return _normalised(layer, input, mean, var)
