"""Gaussian noise in whole steps of a grid: by inversion, of 96 random bits for every size, without a cut in reach.

A value on a grid plus a Gaussian number, rounded to the grid, is the value plus the rounded number. So noise that is
rounded to the grid protects values on the grid exactly as well as Gaussian noise does, because rounding the result is
post-processing; and no value has last bits that betray what was added to it (Mironov, CCS 2012).

`rounded` inverts the tail in double precision, whose error is far below a step, but not nothing. With `exact`, the few
draws that fall that close to the border between two steps are decided in 60 decimal digits. What is left is the grain
of 96 bits: sizes end at 11.4 standard deviations, and a step's probability is off by 2^-97 at most.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal

import torch
from torch import Tensor

WORDS = 4
"""Random words of 32 bits that a number takes: three for its size, one for its sign."""
STEPS = 20
"""Binary digits of the grid: a standard deviation has between 2^20 and 2^21 steps."""
_UNSURE = 2.0**-16
"""How near, in steps, a draw may come to a border before it is decided exactly: 2^-36 of a standard deviation."""


def step_of(std: float) -> float:
    """The grid for noise of this standard deviation: a power of two, so that sums of its multiples are exact."""
    return 2.0 ** (math.floor(math.log2(std)) - STEPS)


def on_grid(x: Tensor, step: float) -> Tensor:
    """The values in double precision, rounded towards zero to multiples of the step: no norm grows."""
    return torch.trunc(x.double() / step) * step


def rounded(words: Tensor, scale: float, exact: bool = True) -> Tensor:
    """Gaussian numbers of standard deviation `scale`, rounded to whole numbers, in double precision.

    `words` has random 32-bit words, WORDS rows of them. `exact` looks at values, so it is not for `vmap` or a graph.
    """
    high, middle, low, sign = words
    tail = high.double() * 2.0**-33 + middle.double() * 2.0**-65 + (low.double() + 0.5) * 2.0**-97
    size = -torch.special.ndtri(tail) * scale
    whole = torch.round(size).clamp_min(0.0)
    if exact:
        unsure = ((size - size.floor() - 0.5).abs() < _UNSURE).nonzero().tolist()
        for place in map(tuple, unsure):
            whole[place] = _decided([int(w[place]) for w in (high, middle, low)], int(size[place].floor()), scale)
    return torch.where(sign & 1 == 1, -whole, whole)


def _decided(words: list[int], below: int, scale: float) -> int:
    """`below` or the number after it: on which side of the border between them the draw falls."""
    with decimal.localcontext(prec=60):
        high, middle, low = words
        tail = Decimal(2 * ((high << 64) + (middle << 32) + low) + 1) / Decimal(1 << 98)
        return below if tail >= upper_tail((Decimal(below) + Decimal("0.5")) / Decimal(scale)) else below + 1


def upper_tail(x: Decimal) -> Decimal:
    """The probability that a standard normal number is above x >= 0, to the digits of the decimal context."""
    total, term, n = x, x, 1
    while term > total.scaleb(-decimal.getcontext().prec):
        n += 2
        term = term * x * x / n
        total += term
    density = (-x * x / 2).exp() / (2 * _PI).sqrt()
    return Decimal("0.5") - density * total


_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
