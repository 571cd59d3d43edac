"""Ways to normalise in the place of batch norm: what adapters keep of the stream lies in the running statistics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Normaliser, PureBatchNorm, Task, Tree, rng, tree


def running_of(task: Task, buffers: Tree) -> Tree:
    """The running statistics of the batch norm layers among a model's buffers."""
    names = {
        f"{layer}.{kind}" if layer else kind for layer in task.norm_eps for kind in ("running_mean", "running_var")
    }
    return tree.pick(buffers, names)


def apart(task: Task, statistics: Tree, buffers: Tree) -> Tree:
    """What statistics differ by from a model's running ones: means in its deviations, and the logarithm of the ratio of
    deviations."""
    out = {}
    for layer, eps in task.norm_eps.items():
        mean, var = (f"{layer}.{kind}" if layer else kind for kind in ("running_mean", "running_var"))
        if var in statistics:
            wide = buffers[var] + eps
            out[mean] = (statistics[mean] - buffers[mean]) / wide.sqrt()
            out[var] = 0.5 * ((statistics[var] + eps) / wide).log()
    return out


def with_buffers(model: Tree, buffers: Tree) -> Tree:
    """The deployed model with these buffers; those that are not named stay as they are."""
    vars = model["vars"]
    return {**model, "vars": {**vars, "buffers": {**vars["buffers"], **buffers}}}


def _over_channels(values: Tensor, input: Tensor) -> Tensor:
    """Values [C] or [B, C] with axes of length one, so that they meet an input [B, C, ...]."""
    lead = values if values.dim() == 2 else values[None]
    return lead.reshape(*lead.shape, *[1] * (input.dim() - 2))


def _affine(layer: PureBatchNorm, unit: Tensor, like: Tensor) -> Tensor:
    if layer.affine:
        unit = unit * _over_channels(layer.weight, unit) + _over_channels(layer.bias, unit)
    return unit.to(like.dtype)


@dataclass(frozen=True)
class Renorm(Normaliser):
    """Test-time batch renormalisation (DELTA; Zhao et al., ICLR 2023): moving statistics, with the batch's gradient.

    The running mean and, in the place of the running variance, the running standard deviation, eps within. Zeros stand
    for none: the first batch's own are then taken. They are used as the batches before left them.
    """

    keep: float = 0.95
    """Weight of the past in the moving statistics."""

    def normalise(self, layer: PureBatchNorm, input: Tensor) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None
        var, mean = torch.var_mean(input, [d for d in range(input.dim()) if d != 1], correction=0)
        spread = (var + layer.eps).sqrt()
        now, wide = mean.detach(), spread.detach()
        first = layer.running_var == 0
        centre, scale = torch.where(first, now, layer.running_mean), torch.where(first, wide, layer.running_var)
        layer.running_mean = self.keep * centre + (1 - self.keep) * now
        layer.running_var = self.keep * scale + (1 - self.keep) * wide
        own = (input - _over_channels(mean, input)) / _over_channels(spread, input)
        moved = own * _over_channels(wide / scale, input) + _over_channels((now - centre) / scale, input)
        return _affine(layer, moved, input)


def moving(task: Task, buffers: Tree, first: bool) -> Tree:
    """Where Renorm starts: at the first batch's statistics, or at the model's running ones."""
    running = running_of(task, buffers)
    if first:
        return tree.zeros(running)
    spread = {n: v for n, v in running.items() if n.endswith("running_var")}
    eps = {n: task.norm_eps[n.removesuffix("running_var").removesuffix(".")] for n in spread}
    return {**running, **{n: (v + eps[n]).sqrt() for n, v in spread.items()}}


@dataclass(frozen=True)
class Noted(Normaliser):
    """Statistics of the batch, biased as they are used, noted in the place of the running ones.

    With `given` the batch is normalised with the running statistics instead, and nothing is noted. Variances of a layer
    that are all zero stand for none: the batch's own are then taken.
    """

    given: bool = False

    def normalise(self, layer: PureBatchNorm, input: Tensor) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None
        layer.check_count(input)
        var, mean = torch.var_mean(input, [d for d in range(input.dim()) if d != 1], correction=0)
        if not self.given:
            layer.running_mean, layer.running_var = mean, var
            return layer.normalised(input, mean, var)
        none = (layer.running_var == 0).all()
        used = torch.where(none, mean, layer.running_mean), torch.where(none, var, layer.running_var)
        return layer.normalised(input, *used)


@dataclass(frozen=True)
class Unmix(Normaliser):
    """UnMix-TNS (Tomar et al., ICLR 2024): every instance meets a mixture of its own statistics and K components.

    Row 0 of the running statistics is the layer's own, which inputs without places [B, C] are normalised with; rows 1
    to K are the components.
    """

    temperature: float = 0.07
    full: int | None = 64
    """The batch size with which components move by the layer's momentum; None: with any."""

    def normalise(self, layer: PureBatchNorm, input: Tensor) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None
        means, variances = layer.running_mean, layer.running_var
        if input.dim() == 2:
            return F.batch_norm(
                input, means[0].to(input.dtype), variances[0].to(input.dtype), layer.weight, layer.bias, eps=layer.eps
            )
        var, mean = torch.var_mean(input.flatten(2), 2, correction=0)
        alike = F.normalize(mean.detach(), dim=-1) @ F.normalize(means[1:], dim=-1).to(mean.dtype).mT
        share = (alike / self.temperature).softmax(-1)[..., None]
        apart = mean[:, None] - means[1:], var[:, None] - variances[1:]
        centres, spreads = means[1:] + share * apart[0], variances[1:] + share * apart[1]
        centre = centres.mean(1)
        spread = spreads.mean(1) + centres.square().mean(1) - centre.square()
        rate = layer.momentum or 0.0
        rate = rate if self.full is None else 1.0 - (1.0 - rate) ** (input.shape[0] / self.full)
        steps = [rate * (share * way.detach()).mean(0) for way in apart]
        layer.running_mean = torch.cat((means[:1], means[1:] + steps[0]))
        layer.running_var = torch.cat((variances[:1], variances[1:] + steps[1]))
        unit = (input - _over_channels(centre, input)) * _over_channels((spread + layer.eps).rsqrt(), input)
        return _affine(layer, unit, input)


def components(running: Tree, count: int, key: rng.Key, alpha: float = 0.5) -> Tree:
    """UnMix-TNS's start: below every layer's own statistics `count` components, whose mixture has the same ones.

    Their means are drawn around the layer's; a share `alpha` of its variance is that of the means, the rest is theirs.
    A single component is the layer's own.
    """
    alpha, out = (alpha if count > 1 else 0.0), {}
    reach = (alpha * count / max(count - 1, 1)) ** 0.5
    for name in (n for n in running if n.endswith("running_mean")):
        wide = f"{name.removesuffix('mean')}var"
        draws = rng.normal(rng.fold(key, name), count, running[name].shape[-1])
        mean, var = running[name][None], running[wide][None]
        out[name] = torch.cat((mean, mean + reach * var.sqrt() * draws))
        out[wide] = torch.cat((var, (1.0 - alpha) * var.expand(count, -1)))
    return out
