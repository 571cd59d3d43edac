"""Normalisation layers by name."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn

from ..core.nn.iabn import InstanceAwareBatchNorm

NormKind: TypeAlias = Literal["none", "batch", "group", "iabn"]
"""Which normalisation a model uses; `iabn` is the instance-aware batch norm of the adapter NOTE."""


def norm_layer(kind: NormKind, width: int, groups: int, flat: bool = False) -> list[nn.Module]:
    """No layer, or one, to splice into a sequence; `flat` for [batch, width] inputs."""
    if kind == "batch":
        return [nn.BatchNorm1d(width) if flat else nn.BatchNorm2d(width)]
    if kind == "iabn":
        if flat:
            raise ValueError("norm='iabn' corrects feature maps, and this model has none; use norm='batch'")
        return [InstanceAwareBatchNorm(width)]
    if kind == "group":
        if width % groups:
            raise ValueError(f"groups={groups} must divide the layer width {width}")
        return [nn.GroupNorm(groups, width)]
    return []
