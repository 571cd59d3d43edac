"""Layers that can be vmapped, differentiated twice and captured.

torch's own batch norm writes its statistics in place and its dropout draws from a global generator; both are refused
under `vmap`. `purify` swaps them for these, in a model of any shape: statistics are assigned (so `functional_call`
hands them back), and masks are drawn from a key that `Task.apply` supplies. Convolutions, maximum pooling and norms
become those of `core.conv`, `core.depthwise`, `core.pool` and `core.norms`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from .. import rng
from . import conv, depthwise, dropout, linear, norms, pool, pooled

NORM_LAYERS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
"""Layers whose affine parameters are the `norm` role of a task."""


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer normalises: torch's own, and those of other libraries that are called so (LlamaRMSNorm)."""
    return isinstance(layer, NORM_LAYERS) or type(layer).__name__.endswith(("LayerNorm", "RMSNorm"))


class TooFewValues(ValueError):
    """A batch from which batch norm cannot take statistics, because it has one value per channel."""


class Normaliser:
    """The mode `adapt`, with batch norm as `normalise` has it: the base of frozen records that take its place.

    What a record keeps from batch to batch lies in a layer's running statistics, in shapes of its own choice: who
    calls the model puts them there, and finds the new ones in `Out.buffers`.
    """

    def normalise(self, layer: PureBatchNorm, input: Tensor) -> Tensor:
        """The layer's output; may assign new running statistics to it."""
        raise NotImplementedError


def _askable(input: Tensor, weight: Tensor | None) -> AbstractContextManager[None]:
    """cuDNN asks how an input lies in memory, which many inputs of one layer (views of one sample) cannot say."""
    asked = input.is_cuda and weight is not None and conv.is_batched(input) and not conv.is_batched(weight)
    return torch.backends.cudnn.flags(enabled=False) if asked else nullcontext()


class PureBatchNorm(_BatchNorm):
    """Batch norm over all axes but the second; assigns new running statistics instead of writing into the old."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch norm needs [batch, channel, ...], got shape {tuple(input.shape)}")

    prior: float = 0.0
    """Samples that the running statistics count for beside a batch's own (see `task.Blend`)."""
    normaliser: Normaliser | None = None
    """What takes the place of this layer's own way, where there are running statistics."""
    follows: bool = True
    """Whether running statistics follow a batch's own; finding these takes longer than normalising with them."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if self.normaliser is not None and self.running_mean is not None:
            return self.normaliser.normalise(self, input)
        if (out := self.at_once(input)) is not None:
            return out
        if not self.training and self.running_mean is not None:
            return self._normalise(input, self.running_mean, self.running_var)
        if not self.follows and not self.prior:
            return self._normalise(input, None, None)
        axes = [d for d in range(input.dim()) if d != 1]
        var, mean = torch.var_mean(input.detach(), axes, correction=0)
        used = self._blend(mean, var, input.shape[0])
        self._remember(mean, var, input.numel() // input.shape[1])
        return self._normalise(input, *used)

    def counted(self, input: Tensor, counts: Tensor) -> Tensor | None:
        """The output with statistics of the samples whose `counts` are not zero, by the kernels of `norms`; None where
        those do not serve. Running statistics stay."""
        if type(self) not in (PureBatchNorm, ActiveBatchNorm) or not norms.serves(input, self.weight, self.bias):
            return None
        return norms.batch(input, self.weight, self.bias, self.eps, counts=counts)[0]

    def at_once(self, input: Tensor, add: Tensor | None = None, relu: int = 0) -> Tensor | None:
        """The output, a sum and ReLU after it included, by the kernels of `norms`; None where those do not serve. With
        relu=6, ReLU6."""
        if self.prior or not norms.serves(input, self.weight, self.bias):
            return None
        given = not self.training and self.running_mean is not None and self.running_var is not None
        if not given:
            self.check_count(input)
        stats = (self.running_mean, self.running_var) if given else None
        out, mean, var = norms.batch(input, self.weight, self.bias, self.eps, stats, add, relu)  # type: ignore[arg-type]
        if not given:
            self._remember(mean, var, input.numel() // input.shape[1])
        return out

    def check_count(self, input: Tensor) -> None:
        """Raise where a channel has a single value, of which there are no statistics."""
        if input.numel() == input.shape[1]:
            raise TooFewValues(
                "batch norm needs two values per channel for the statistics of a batch, and an input of shape "
                f"{tuple(input.shape)} has one: give it batches of at least 2 samples"
            )

    def _normalise(self, input: Tensor, mean: Tensor | None, var: Tensor | None) -> Tensor:
        """With the statistics given, or with the batch's own where there are none (torch's fused kernel)."""
        own = mean is None or var is None
        if own:
            self.check_count(input)
        if mean is not None and var is not None and norms.serves(input, self.weight, self.bias):
            return norms.batch(input, self.weight, self.bias, self.eps, (mean, var))[0]
        if input.is_cuda and conv.is_batched(input):  # a convolution may have left channels side by side
            input = input.contiguous()
        if not (own and input.dim() > 2 and input.stride(0) == 1):
            if conv.is_batched(input):
                input = input.contiguous()  # torch asks, and an input that `vmap` maps over says only this order
            with _askable(input, self.weight):
                return F.batch_norm(input, mean, var, self.weight, self.bias, training=own, momentum=0.0, eps=self.eps)
        rows = input.movedim(0, -1)  # as `PureConv2d.turned` left it: torch would copy it
        flat = rows.flatten(1).unsqueeze(0)
        out = F.batch_norm(flat, None, None, self.weight, self.bias, training=True, momentum=0.0, eps=self.eps)
        return out.squeeze(0).unflatten(1, rows.shape[1:]).movedim(-1, 0)

    def normalised(self, input: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """With statistics of every channel [C], or of every sample and channel [B, C]; gradients go through them."""
        shape = (*(mean.shape if mean.dim() == 2 else (1, -1)), *[1] * (input.dim() - 2))
        out = (input - mean.reshape(shape)) * (var + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            out = out * self.weight.reshape(1, -1, *[1] * (input.dim() - 2))
            out = out + self.bias.reshape(1, -1, *[1] * (input.dim() - 2))
        return out.to(input.dtype)

    def _blend(self, mean: Tensor, var: Tensor, samples: int) -> tuple[Tensor | None, Tensor | None]:
        """The statistics to use: None for the batch's own."""
        if not self.prior or self.running_mean is None or self.running_var is None:
            return None, None
        share = samples / (self.prior + samples)
        return share * mean + (1 - share) * self.running_mean, share * var + (1 - share) * self.running_var

    def _remember(self, mean: Tensor, var: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None or not self.follows:
            return
        rate = self.momentum or 0.0
        unbiased = var * (count / max(count - 1, 1))
        self.running_mean = (1 - rate) * self.running_mean + rate * mean
        self.running_var = (1 - rate) * self.running_var + rate * unbiased


class PureGroupNorm(nn.GroupNorm):
    """Group norm that stays fast under `vmap` with scales and shifts per client."""

    def forward(self, input: Tensor) -> Tensor:
        out = self.at_once(input)
        # torch asks how its input lies in memory, which one that `vmap` maps over says only of the plain order
        return super().forward(input.contiguous()) if out is None else out

    def at_once(self, input: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor | None:
        """As `PureBatchNorm.at_once`."""
        if not norms.serves(input, self.weight, self.bias):
            return None
        return norms.group(input, self.weight, self.bias, self.num_groups, self.eps, add, relu)


class PureLayerNorm(nn.LayerNorm):
    """Layer norm over the last axis that stays fast under `vmap` with scales and shifts per client."""

    def forward(self, input: Tensor) -> Tensor:
        if len(self.normalized_shape) > 1 or not norms.serves(input, self.weight, self.bias):
            return super().forward(input)
        return norms.layer(input, self.weight, self.bias, self.eps)


def norm_relu(norm: nn.Module, x: Tensor, add: Tensor | None = None) -> Tensor:
    """ReLU of a norm layer's output, and of its sum with another tensor; in one pass where kernels serve."""
    alone = not norm._forward_hooks and getattr(norm, "normaliser", None) is None
    if alone and isinstance(norm, PureBatchNorm | PureGroupNorm) and type(norm) in (PureBatchNorm, PureGroupNorm):
        done = norm.at_once(x, add, relu=True)
        if done is not None:
            return done
    out: Tensor = norm(x)
    return F.relu(out if add is None else out + add)


class ActiveBatchNorm(PureBatchNorm):
    """Batch norm with dropout and activation in the same layer, as timm has it; ReLU and ReLU6 are in one pass with it
    where kernels serve."""

    act: nn.Module
    drop: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        relu = {nn.ReLU: 1, nn.ReLU6: 6}.get(type(self.act), 0) if type(self.drop) is nn.Identity else 0
        if relu and self.normaliser is None and not self.act._forward_hooks:
            self._check_input_dim(input)
            if (done := self.at_once(input, relu=relu)) is not None:
                return done
        out: Tensor = self.act(self.drop(super().forward(input)))
        return out


class KeyedDropout(_DropoutNd):
    """Dropout whose mask is drawn from its `key` buffer; `channels` drops whole feature maps (Dropout1d/2d/3d)."""

    key: Tensor
    channels: bool

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        if not self.channels and dropout.serves(input, self.p):
            return dropout.dropped(input, self.key, self.p)
        shape = input.shape[:2] + (1,) * (input.dim() - 2) if self.channels else input.shape
        keep = rng.uniform(self.key, *shape) >= self.p
        return input * keep / (1 - self.p) if self.p < 1 else torch.zeros_like(input)


def purify(module: nn.Module) -> tuple[str, ...]:
    """Swap layers for pure ones, in place; returns the names of the dropout keys the model now wants."""
    keys = []
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            if layer.momentum is None and layer.track_running_stats:
                raise ValueError(f"layer '{name}': batch norm with momentum=None is not supported; give a number")
            if not isinstance(layer, PureBatchNorm):
                active = hasattr(layer, "act") and hasattr(layer, "drop")
                layer.__class__ = ActiveBatchNorm if active else PureBatchNorm
            if layer.num_batches_tracked is not None:
                del layer.num_batches_tracked
                layer.register_buffer("num_batches_tracked", None)
        elif type(layer) is nn.GroupNorm:
            layer.__class__ = PureGroupNorm
        elif type(layer) is nn.LayerNorm:
            layer.__class__ = PureLayerNorm
        elif type(layer) is nn.Linear:
            layer.__class__ = linear.PureLinear
        elif conv.fits(layer):
            layer.__class__ = conv.PureConv2d
        elif depthwise.fits(layer):
            layer.__class__ = depthwise.PureDepthwise2d
        elif pool.fits(layer):
            layer.__class__ = pool.PureMaxPool2d
        elif isinstance(layer, _DropoutNd):
            if not isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                raise ValueError(f"layer '{name}' is a {type(layer).__name__}; use nn.Dropout or nn.Dropout1d/2d/3d")
            layer.channels = not isinstance(layer, nn.Dropout)  # type: ignore[assignment]
            layer.__class__ = KeyedDropout  # type: ignore[assignment]
            layer.register_buffer("key", torch.zeros((), dtype=torch.int64, device="meta"), persistent=False)
            keys.append(f"{name}.key" if name else "key")
    for part in module.modules():
        if isinstance(part, nn.Sequential):
            _loosen(list(part))
        if type(part) is nn.Sequential:
            part.__class__ = pooled.PureSequential
    return tuple(keys)


def _loosen(chain: list[nn.Module]) -> None:
    """Spare a copy between layers that are known not to mind the order in memory."""
    for i, layer in enumerate(chain):
        if isinstance(layer, depthwise.PureDepthwise2d):
            after = next((n for n in chain[i + 1 :] if not isinstance(n, nn.ReLU | nn.ReLU6)), None)
            layer.loose_by_kernel |= isinstance(after, nn.Conv2d | PureBatchNorm | PureGroupNorm)
        if isinstance(layer, conv.PureConv2d | pool.PureMaxPool2d):
            rest = (n for n in chain[i + 1 :] if not isinstance(n, nn.ReLU | pool.PureMaxPool2d))
            after = next(rest, None)
            layer.loose = isinstance(after, conv.PureConv2d | nn.Flatten)
            if isinstance(layer, pool.PureMaxPool2d):
                layer.planar = type(next((n for n in chain[i + 1 :] if type(n) is not nn.ReLU), None)) is nn.Flatten
            if isinstance(layer, conv.PureConv2d):
                layer.turned = layer.loose or isinstance(after, PureBatchNorm)
                layer.loose = layer.turned or isinstance(after, PureGroupNorm)


def any_order(module: nn.Module, by_kernel: bool = False) -> None:
    """Spare those copies after every convolution, or after those that kernels compute: for models of which nothing
    minds the order in memory."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            setattr(layer, "loose_by_kernel" if by_kernel else "loose", True)
