"""Numbers of float32 as those of float16 and one power of two for each client: what sums over pixels multiply.

float16 has as many bits after the point as TF32, ten, and the hardware multiplies it in either order of memory, at
twice the rate and with half the bytes; only its range is small. So the numbers of a client are multiplied by a power of
two, which is exact, so that the largest lies between 2^14 and 2^15: none overflows. Those that are more than 2^28 times
smaller than the client's largest lose bits, and from 2^40 on they are zeros, which TF32 would keep: a sum in which
there are only such is less exact than by TF32, and small beside the client's others. The power is taken away from the
sum at the end. Another client's numbers do not matter. Powers end at 2^126: where the largest of a client is below
2^-112, it comes to lie lower.

What is not finite stays so, and does not count for the largest.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .cutting import cut
from .kernels import AVAILABLE, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl

BLOCK, PARTS, WARPS = 4096, 128, 8
"""Numbers that a program reads at a time, parts of a client of which the largest is found at most, and warps."""
NAME = "fp16"
"""How a cut says that it multiplies so."""


class Halves(NamedTuple):
    """Numbers of float16 in the order of those that they were made of, and the powers [G] (int32) in them: the
    exponents of the two that they were multiplied by."""

    numbers: Tensor
    powers: Tensor


@late
@jit(do_not_specialize=["parts"])
def _largest(x, found, numbers, span, parts, BLOCK: tl.constexpr):
    """found[g, part] = the bits of the largest magnitude that is finite; bits of magnitudes are in their order."""
    client = (tl.program_id(0) // parts).to(tl.int64)
    begin = (tl.program_id(0) % parts).to(tl.int64) * span
    x += client * numbers
    largest = tl.zeros((BLOCK,), dtype=tl.int32)
    for first in range(begin, tl.minimum(begin + span, numbers), BLOCK):
        at = first + tl.arange(0, BLOCK)
        bits = tl.load(x + at, mask=at < numbers, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        largest = tl.maximum(largest, tl.where(bits < 0x7F800000, bits, 0))
    tl.store(found + tl.program_id(0), tl.max(largest, 0))


@late
@jit(do_not_specialize=["parts"])
def _halved(x, found, halves, powers, numbers, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """halves[g, at] = x[g, at] * 2^powers[g]. What was read last before comes first: it may still be near."""
    blocks = tl.cdiv(numbers, BLOCK)
    here = tl.num_programs(0) - 1 - tl.program_id(0)
    client = (here // blocks).to(tl.int64)
    part = tl.arange(0, PARTS)
    largest = tl.max(tl.load(found + client * parts + part, mask=part < parts, other=0), 0)
    power = tl.minimum(141 - (largest >> 23), 126)
    tl.store(powers + client, power, mask=here % blocks == 0)
    at = (here % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + client * numbers + at, mask=at < numbers, other=0.0)
    tl.store(halves + client * numbers + at, (value * two_to(power)).to(tl.float16), mask=at < numbers)


@jit
def two_to(power):
    """2 to a power from -126 to 127, exactly."""
    return ((power + 127) << 23).to(tl.float32, bitcast=True)


@jit
def without(sum, first, second):
    """A sum of products without the powers of two that are in their factors, in two steps: one alone could overflow
    where the result does not."""
    half = (first + second) // 2
    return sum * two_to(-half) * two_to(half - (first + second))


def halved(x: Tensor) -> Halves:
    """Halves of x [G, ...], which lies in memory in its own order."""
    clients, numbers = len(x), x[0].numel()
    parts = min(cut(numbers, BLOCK), PARTS)
    span = cut(cut(numbers, parts), BLOCK) * BLOCK
    found = blank(clients, parts, dtype=torch.int32, device=x.device)
    halves = blank(*x.shape, dtype=torch.float16, device=x.device)
    powers = blank(clients, dtype=torch.int32, device=x.device)
    _largest[(clients * parts,)](x, found, numbers, span, parts, BLOCK, num_warps=WARPS)
    _halved[(clients * cut(numbers, BLOCK),)](x, found, halves, powers, numbers, parts, PARTS, BLOCK, num_warps=WARPS)
    return Halves(halves, powers)
