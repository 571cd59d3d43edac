"""Stateless random numbers: a key is an int64 scalar, a draw is pure tensor code (splitmix64).

The same key gives the same numbers alone, under `vmap`, inside a captured GPU graph, in a Ray worker or on a Flower
node. So backends can be tested for equality, padded and unpadded clients draw alike (draw `i` depends on the key and
on `i` only), and there is no generator state to ship or to restore.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .nn import kernels

Key: TypeAlias = Tensor
"""An int64 scalar. `fold` derives new ones; never draw twice from one key."""

_MASK = (1 << 64) - 1
MULTIPLIERS = _GAMMA, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(u: int) -> int:
    return u - (1 << 64) if u >= 1 << 63 else u


def _shift(x: Tensor, n: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _mix(x: Tensor) -> Tensor:
    if x.is_cuda and kernels.AVAILABLE:
        mixed: Tensor = _Mix.apply(x, (0,))
        return mixed
    x = (x ^ _shift(x, 30)) * _signed(_MIX1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX2)
    return x ^ _shift(x, 31)


class _Mix(torch.autograd.Function):
    """`_mix` as one kernel: under a GPU's captured round, nine small ones cost more than the numbers are worth. What is
    folded in is combined before, one after the other."""

    @staticmethod
    def forward(x: Tensor, folds: tuple[int, ...]) -> Tensor:
        return kernels.mix(x, _MIX1, _MIX2, folds)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, folds: tuple[int, ...]
    ) -> tuple[Tensor, int | None]:
        return _Mix.apply(x, folds), in_dims[0]


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX2) & _MASK
    return x ^ (x >> 31)


def _number(data: int | str) -> int:
    if isinstance(data, str):
        return int.from_bytes(hashlib.blake2b(data.encode(), digest_size=8).digest(), "little")
    return data & _MASK


def key(seed: int | Tensor, device: torch.device | str | None = None) -> Key:
    """The root key of a seed. Filled, not copied, onto the device, so that a graph capture may contain it."""
    if isinstance(seed, Tensor):
        return _mix(seed + _signed(_GAMMA))
    return torch.full((), _signed(_mix_int((seed + _GAMMA) & _MASK)), dtype=torch.int64, device=device)


def key_for(seed: int | Tensor, device: torch.device | str | None, *data: int | str | Tensor) -> Key:
    """`fold(key(seed, device), *data)`: what comes before the first tensor is folded on the host."""
    if isinstance(seed, Tensor):
        return fold(key(seed, device), *data)
    first = next((i for i, d in enumerate(data) if isinstance(d, Tensor)), len(data))
    root = _mix_int((seed + _GAMMA) & _MASK)
    for d in data[:first]:
        root = _mix_int(root ^ _mixed(d))
    return fold(torch.full((), _signed(root), dtype=torch.int64, device=device), *data[first:])


def _mixed(data: Any) -> int:
    """What a number or a name of the host is combined with a key as."""
    return _mix_int((_number(data) * _GAMMA + _MIX2) & _MASK)


def fold(k: Key, *data: int | str | Tensor) -> Key:
    """A new key for each distinct sequence of integers, names or integer tensors.

    Python values are hashed in Python arithmetic and equal the tensor path, so `fold(k, 3) == fold(k, tensor(3))`.
    """
    folds: list[int] = []
    for d in data:
        if isinstance(d, Tensor):
            k, folds = _folded(k, folds), []
            k = _mix(k ^ _mix(d * _signed(_GAMMA) + _signed(_MIX2)))
        else:
            folds.append(_mixed(d))
    return _folded(k, folds)


def _folded(k: Key, folds: list[int]) -> Key:
    """Numbers of the host folded into a key, on a GPU in one kernel."""
    if folds and k.is_cuda and kernels.AVAILABLE:
        mixed: Tensor = _Mix.apply(k, tuple(folds))
        return mixed
    for each in folds:
        k = _mix(k ^ _signed(each))
    return k


def advance(k: Key, rows: int | Tensor) -> Key:
    """The key that stands `rows` further down the same sequence: see `rows`."""
    if isinstance(rows, Tensor):
        return k + rows * _signed(_GAMMA)  # int64 wraps around, as the mask does
    return k + _signed((rows * _GAMMA) & _MASK)


def rows(k: Key, count: int) -> Tensor:
    """One key per row, the same however a sequence is cut: `rows(advance(k, a), b)` is `rows(k, a + b)[a:]`."""
    return _mix(k + torch.arange(1, count + 1, device=k.device, dtype=torch.int64) * _signed(_GAMMA))


def bits(k: Key, *shape: int) -> Tensor:
    """Uniform 64-bit integers."""
    counter = torch.arange(1, math.prod(shape) + 1, device=k.device, dtype=torch.int64)
    return _mix(k + counter * _signed(_GAMMA)).reshape(shape)


def uniform(k: Key, *shape: int) -> Tensor:
    """float32 in [0, 1), 24 random bits each, so 1.0 is never returned."""
    return _shift(bits(k, *shape), 40).to(torch.float32) * 2.0**-24


def uniforms(keys: Sequence[Key], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """`uniform` of every key, each with its own shape, drawn together: as few kernels as for one."""
    sizes = [math.prod(shape) for shape in shapes]
    # a sequence that begins so much earlier has the key's own numbers at its place among all
    begun = [advance(k, -before).expand(n) for k, before, n in zip(keys, accumulate([0, *sizes]), sizes, strict=False)]
    parts = uniform(torch.cat(begun), sum(sizes)).split(sizes) if begun else []
    return [part.reshape(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


def normal(k: Key, *shape: int) -> Tensor:
    """Standard normal numbers (Box-Muller)."""
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(fold(k, 0), *shape)))
    return radius * torch.cos(2.0 * torch.pi * uniform(fold(k, 1), *shape))


def bernoulli(k: Key, p: float, *shape: int) -> Tensor:
    """Booleans that are true with probability p."""
    return uniform(k, *shape) < p


def randint(k: Key, low: int, high: int, *shape: int) -> Tensor:
    """Integers in [low, high). The range must be far below 2**24 for the bias to be negligible."""
    return low + (uniform(k, *shape) * (high - low)).to(torch.int64)


def permutation(k: Key, n: int) -> Tensor:
    """A uniform random order of `range(n)`."""
    return torch.argsort(bits(k, n), stable=True)


def order(k: Key, size: int, n: Tensor | int) -> Tensor:
    """The first `n` entries are a permutation of `range(n)` that does not depend on the padding up to `size`."""
    last = torch.iinfo(torch.int64).max
    draws = _shift(bits(k, size), 1)
    real = torch.arange(size, device=k.device) < n
    return torch.argsort(torch.where(real, draws, torch.full_like(draws, last)), stable=True)


def dirichlet(k: Key, alpha: float, rows: int, columns: int) -> Tensor:
    """Rows drawn from a symmetric Dirichlet(alpha), in float64 and in log space, so that tiny alphas do not underflow.

    A Gamma(alpha) variable is Gamma(alpha + 1) * U^(1/alpha) (Marsaglia & Tsang, 2000, for the former).
    """
    shape = alpha + 1.0
    d = shape - 1.0 / 3.0
    tries = 24  # each is accepted with probability > 0.95
    x = normal(fold(k, "x"), tries, rows, columns).double()
    u = (uniform(fold(k, "u"), tries, rows, columns).double() + 2.0**-25).log()
    v = (1.0 + x / (9.0 * d) ** 0.5).clamp_min(1e-12) ** 3
    fine = u < 0.5 * x**2 + d - d * v + d * v.log()
    first = fine.to(torch.int64).argmax(0, keepdim=True)
    gamma = (d * v).gather(0, first)[0]
    boost = (uniform(fold(k, "boost"), rows, columns).double() + 2.0**-25).log() / alpha
    return (gamma.log() + boost).softmax(-1)
