"""Instance-aware batch norm. Gong et al., NeurIPS 2022 (NOTE).

A layer's statistics (of the batch in training, the running ones else) are corrected for a sample whose own, taken over
its feature map of L values, differ by more than `k` standard errors: the difference is shrunk by so many and added. A
sample of training data is then normalised as by batch norm, one from elsewhere rather by itself. Maps of one value have
no spread of their own and are normalised as by batch norm.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .layers import PureBatchNorm


class InstanceAwareBatchNorm(PureBatchNorm):
    """Batch norm whose statistics follow a sample where it is unlike them (Gong et al., NeurIPS 2022)."""

    k: float = 4.0
    """Standard errors by which a sample's statistics may differ before they count (the paper's alpha)."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if self.normaliser is not None and self.running_mean is not None:
            return self.normaliser.normalise(self, input)
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return self.corrected(input, self.running_mean, self.running_var)
        axes = [d for d in range(input.dim()) if d != 1]
        var, mean = torch.var_mean(input, axes, correction=0)
        count = input.numel() // input.shape[1]
        mixed_mean, mixed_var = self._blend(mean, var, input.shape[0])
        self._remember(mean.detach(), var.detach(), count)
        if mixed_mean is None or mixed_var is None:
            return self.corrected(input, mean, var * (count / max(count - 1, 1)))
        return self.corrected(input, mixed_mean, mixed_var)

    def corrected(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """x normalised with these statistics [C], corrected for every sample."""
        size = math.prod(x.shape[2:])
        if size > 1:
            own_var, own_mean = torch.var_mean(x, list(range(2, x.dim())), correction=1)
            spread = var + self.eps
            mean = mean + shrunk(own_mean - mean, self.k * (spread / size).sqrt())
            var = F.relu(var + shrunk(own_var - var, self.k * spread * math.sqrt(2.0 / (size - 1))))
        return self.normalised(x, mean, var)


def shrunk(x: Tensor, by: Tensor) -> Tensor:
    """x moved towards zero by so much; zero where it is nearer."""
    return x.sign() * F.relu(x.abs() - by)
