"""Norm layers for clients with scales and shifts of their own: under `vmap`, differentiable to any order.

`batch`, `group` and `layer` normalise [batch, ...] as torch's functions do; a sum with another tensor and ReLU may
follow in the same pass. The client axis is an axis of the operation, and what `vmap` maps over joins it. On a GPU
values and gradients are Triton kernels; the gradient of a gradient is plain tensor code (`norm_plain`), and so is
everything where a kernel does not work. Of every shape a kernel is tried once, against plain code; one that does not
compile or does not agree is left out, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import kernels, norm_kernels, norm_plain, rehearsal, sample_kernels, switches
from .mapping import is_batched
from .norm_plain import Norm
from .streams import unrecorded

log = logging.getLogger("acclimate")

WIDEST = 8192
"""Numbers of a tile's row, up to which statistics of samples are computed by a kernel."""
APART = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far results may be from those of plain code, relative to their norm; else something is wrong."""


def serves(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernels are for this input of a norm layer, clients mapped over."""
    if weight is None or bias is None or not (is_batched(x) or is_batched(weight)) or not x.numel():
        return False
    return (kernels.usable(x) or (kernels.INTERPRETED and x.dtype == torch.float32)) and switches.on("norms")


Stats = tuple[Tensor, Tensor] | None


def batch(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, stats: Stats = None, add: Tensor | None = None,
    relu: int = 0, counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Batch norm of [B, C, ...] with its own mean and variance, or with those given; and the two that were used. Its
    own are those of the samples whose `counts` [B] are not zero. `relu` is as in `Norm`."""
    mean, var = (s.unsqueeze(0) for s in stats) if stats is not None else (None, None)
    norm = Norm("batch", eps, own=stats is None, relu=relu, counted=counts is not None)
    some = None if counts is None else counts.unsqueeze(0)
    y, mean, var = _Norm.apply(_flat(x), weight.unsqueeze(0), bias.unsqueeze(0), _flat(add), mean, var, some, norm)
    return y.squeeze(0).reshape(x.shape), mean.squeeze(0), var.squeeze(0)


def group(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, add: Tensor | None = None, relu: bool = False
) -> Tensor:
    """Group norm of [B, C, ...]."""
    norm = Norm("group", eps, groups, relu=relu)
    y = _Norm.apply(_flat(x), weight.unsqueeze(0), bias.unsqueeze(0), _flat(add), None, None, None, norm)[0]
    return y.squeeze(0).reshape(x.shape)


def layer(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm of [..., C] over the last axis."""
    rows = x.reshape(1, -1, x.shape[-1])
    y = _Norm.apply(rows, weight.unsqueeze(0), bias.unsqueeze(0), None, None, None, None, Norm("layer", eps))[0]
    return y.squeeze(0).reshape(x.shape)


def _flat(x: Any) -> Any:
    """[B, C, ...] as [1, B, C, P]; a view, whichever of channels and places lie side by side."""
    if x is None:
        return None
    return (x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)).unsqueeze(0)


class _Norm(torch.autograd.Function):
    """y, mean and variance of x, weight and bias [G, C], and where given, a tensor to add, mean, variance, counts."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, mean: Tensor | None, var: Tensor | None,
        counts: Tensor | None, norm: Norm,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        y, m, v = _forward(x, weight, bias, add, mean, var, counts, norm)
        return (y, m, v) if norm.own else (y, m.view_as(m), v.view_as(v))  # an argument may not be a result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _, add, _, _, counts, ctx.norm = inputs
        y, mean, var = output
        ctx.added = add is not None
        ctx.mark_non_differentiable(mean, var)
        ctx.save_for_backward(x, weight, mean, var, y if ctx.norm.relu else None, counts)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, var, y, counts = ctx.saved_tensors
        if ctx.added and y is not None:  # what was added needs this, too
            dy, y = norm_plain.passed(dy, y, ctx.norm), None
        dx, dweight, dbias = _Back.apply(dy, x, weight, y, mean, var, counts, ctx.norm)
        return dx, dweight, dbias, dy if ctx.added else None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _mapped(_Norm.apply, info.batch_size, in_dims, args)


class _Back(torch.autograd.Function):
    """dx, dweight and dbias of dy, x, weight [G, C], y (where ReLU followed, else None), mean, variance and counts."""

    @staticmethod
    def forward(
        dy: Tensor, x: Tensor, weight: Tensor, y: Tensor | None, mean: Tensor, var: Tensor, counts: Tensor | None,
        norm: Norm,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        return _backward(dy, x, weight, y, mean, var, counts, norm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.norm = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *ways: Tensor) -> tuple[Tensor | None, ...]:
        dy, x, weight, y, mean, var, counts = ctx.saved_tensors
        to = norm_plain.back_again(ways, dy, x, weight, y, (mean, var), counts, ctx.norm)
        return *to, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _mapped(_Back.apply, info.batch_size, in_dims, args)


def _mapped(
    f: Callable[..., tuple[Tensor, ...]], size: int, dims: tuple[int | None, ...], args: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Run f with the mapped axis folded into that of clients, as its slower part; what has none is repeated."""
    *tensors, norm = args
    lead = [
        None if t is None else (t.expand(size, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1)
        for t, d in zip(tensors, dims, strict=False)
    ]
    return tuple(t.unflatten(0, (size, -1)) for t in f(*lead, norm)), (0, 0, 0)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, mean: Tensor | None, var: Tensor | None,
    counts: Tensor | None, norm: Norm,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x = _dense(x)
    if not _works(x, norm):
        return norm_plain.forward(x, weight, bias, add, mean, var, counts, norm)
    weight, bias, other = weight.contiguous(), bias.contiguous(), _placed(add, x)
    if norm.kind == "layer":
        return sample_kernels.layer_scale(x, weight, bias, norm.eps)
    if norm.kind == "group":
        return sample_kernels.group_scale(x, weight, bias, other, norm.groups, norm.eps, bool(norm.relu))
    if mean is None or var is None:
        mean, var = norm_kernels.batch_moments(x, counts)
    mean, var = mean.contiguous(), var.contiguous()
    return norm_kernels.batch_scale(x, (weight, bias, mean, var), other, norm.eps, norm.relu), mean, var


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, y: Tensor | None, mean: Tensor, var: Tensor, counts: Tensor | None,
    norm: Norm,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    x = _dense(x)
    if not _works(x, norm):
        return norm_plain.back(dy, x, weight, y, mean, var, counts, norm)
    dy, y = _placed(dy, x), _placed(y, x)
    args = weight.contiguous(), mean.contiguous(), var.contiguous()
    if norm.kind == "layer":
        found = sample_kernels.layer_back(dy, x, args, norm.eps)
    elif norm.kind == "group":
        found = sample_kernels.group_back(dy, x, y, args, norm.groups, norm.eps)
    else:
        found = norm_kernels.batch_back(dy, x, y, args, norm.eps, norm.own, norm.relu, counts)
    return found[0], found[1].to(weight.dtype), found[2].to(weight.dtype)


def _dense(x: Tensor) -> Tensor:
    """x with channels or places side by side, and nothing between."""
    return x if x.is_contiguous() or (x.transpose(-1, -2).is_contiguous() and x.dim() == 4) else x.contiguous()


def _placed(t: Any, like: Tensor) -> Any:
    """A tensor in the order of another."""
    if t is None or t.stride() == like.stride():
        return t
    return t.contiguous() if like.is_contiguous() else t.transpose(-1, -2).contiguous().transpose(-1, -2)


_tried: dict[Any, bool] = {}


def _works(x: Tensor, norm: Norm) -> bool:
    """Whether the kernels take this input, and agree with plain code; tried once for every shape."""
    if not (kernels.usable(x) or (kernels.INTERPRETED and x.dtype == torch.float32)) or x[0].numel() >= 2**31:
        return False
    width = x.shape[2] if norm.kind == "layer" else 2 * x.shape[2]
    if norm.kind != "batch" and width > WIDEST:
        return False
    key = (norm.kind, norm.groups, norm.own, norm.relu, norm.counted, x.shape[2:], x.stride()[1:], x.dtype, x.device)
    if rehearsal.running() and key not in _tried:
        return _rehearsed(key, x, norm)
    if key not in _tried and not x.is_cuda:
        _tried[key] = True
    elif key not in _tried:
        _tried[key] = True  # the trial comes here, too
        try:
            reason = _trial(x, norm)
        except rehearsal.Untried:
            del _tried[key]
            raise
        _tried[key] = reason is None
        if reason is not None:
            log.warning("a kernel for %s norm is left out: %s", norm.kind, reason)
    return _tried[key]


def _rehearsed(key: Any, x: Tensor, norm: Norm) -> bool:
    """Launch what a trial launches, once, and remember no result: there are no numbers to compare."""
    if rehearsal.anew("norm", key):  # no more for the trial itself, which comes here, too
        _trial(x, norm)
    return True


def _trial(x: Tensor, norm: Norm) -> str | None:
    """What is wrong with the kernels for inputs like this one: on a stream of its own, for a recording may run. What
    fails beside a recording may work without one: then the recording fails, and comes again after a run."""
    recording = torch.cuda.is_current_stream_capturing()
    if not recording:
        torch.cuda.synchronize(x.device)
    with unrecorded(x.device), torch.no_grad():
        g = torch.Generator(x.device).manual_seed(0)
        size = (2, *x.shape[1:])
        a, dy = (_placed(torch.randn(size, generator=g, device=x.device).to(x.dtype), x) for _ in range(2))
        weight, bias, mean, var = torch.rand(4, 2, x.shape[2], generator=g, device=x.device)
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        m, v = (None, None) if norm.own else (mean, var)
        some = (torch.arange(size[1], device=x.device) % 3 != 1).float().expand(2, -1) if norm.counted else None
        try:
            y, m, v = ours = _forward(a, weight, bias, None, m, v, some, norm)
            after = y if norm.relu else None
            back = _backward(dy, a, weight, after, m, v, some, norm)
            mean, var = (None, None) if norm.own else (m, v)
            theirs = norm_plain.forward(a, weight, bias, None, mean, var, some, norm)
            there = norm_plain.back(dy, a, weight, after, m, v, some, norm)
            for mine, other in zip((*ours, *back), (*theirs, *there), strict=True):
                apart = float((mine - other).float().norm() / other.float().norm().clamp(min=1e-20))
                if not apart <= APART[x.dtype]:
                    return f"a result is {apart:.1e} from that of plain code"
        except Exception as reason:
            if recording:
                raise rehearsal.Untried(
                    f"a kernel for {norm.kind} norm cannot be tried while a graph is recorded"
                ) from reason
            return str(reason).strip().splitlines()[0] if str(reason).strip() else type(reason).__name__
    return None
