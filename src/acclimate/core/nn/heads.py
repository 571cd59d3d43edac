"""Attention over few tokens and its gradient, by the kernels that are fastest for their shape.

One kernel of the gradient (`attention_kernels`) holds all keys of a head; the others (`attention_block_kernels`) have a
block of queries or of keys, so that several programs share a processor. On Hopper's GPUs another (`attention_head`) has
a whole head in a processor's memory. Each must agree with the formula before it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from . import fastest, trials
from .attention_block_kernels import BLOCKS, Blocks
from .attention_head import HELD
from .kernels import INTERPRETED

LEAST = 2**20
"""Numbers in qkv from which on ways are measured."""
MOST = 128
"""Samples that are measured with."""
WHOLE, LIBRARY = "whole", "library"
CUTS = (*BLOCKS, HELD)
"""How tokens may be cut."""


def forward(
    qkv: Tensor, heads: int, asked: int, library: Callable[[Tensor, int], tuple[Tensor, ...]]
) -> tuple[Tensor, Tensor] | None:
    """Attention's output for the first tokens that are asked for, and the logarithms of the sums of weights, as
    `trials.mix`; None where the library, for all tokens, is faster."""
    if INTERPRETED or qkv.numel() < LEAST or not _has_gradient(qkv, heads, asked):
        return None
    samples, tokens, width = qkv.shape
    few = "" if asked == tokens else f", {asked} asked"
    what = f"attention of {fastest.about(samples)} x {tokens} x {width}, {heads} heads{few}"
    way = fastest.chosen(what, qkv, LIBRARY, lambda: _forward_ways(qkv, heads, asked, library))
    cut = next((cut for cut in CUTS if cut.name == way), None)
    if cut is None or not trials.serves_mixing(qkv, heads, cut, asked):
        return None
    return trials.mix(qkv.contiguous(), heads, cut, asked)


def _has_gradient(qkv: Tensor, heads: int, asked: int) -> bool:
    """Whether the gradient of what `forward` gives has a kernel."""
    return trials.serves_attention(qkv, heads, None if asked == qkv.shape[1] else BLOCKS[0], asked)


def _forward_ways(
    qkv: Tensor, heads: int, asked: int, library: Callable[[Tensor, int], tuple[Tensor, ...]]
) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: the library, and the kernels that work, on numbers made for that."""
    given = trials.repeated(qkv, min(len(qkv), MOST), *qkv.shape[1:])
    run = partial(trials.mix, given, heads, asked=asked)
    cuts = [cut for cut in CUTS if trials.serves_mixing(qkv, heads, cut, asked)]
    return {LIBRARY: partial(library, given, heads), **{cut.name: partial(run, cut=cut) for cut in cuts}}


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int) -> Tensor:
    """As `trials.attention_back`, with the fastest cut, or that for an output of the first tokens."""
    cut = _cut(qkv, heads) if g.shape[1] == qkv.shape[1] else BLOCKS[0]
    return trials.attention_back(qkv, out, g, sums, heads, cut)


def _cut(qkv: Tensor, heads: int) -> Blocks | None:
    """How tokens are cut into blocks; None where a program holds all keys."""
    if INTERPRETED or qkv.numel() < LEAST:
        return None
    samples, tokens, width = qkv.shape
    what = f"attention's gradient of {fastest.about(samples)} x {tokens} x {width}, {heads} heads"
    way = fastest.chosen(what, qkv, WHOLE, lambda: _ways(qkv, heads))
    cut = next((cut for cut in CUTS if cut.name == way), None)
    return cut if cut is None or trials.serves_attention(qkv, heads, cut) else None


def _ways(qkv: Tensor, heads: int) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: the kernels that work, on numbers made for that."""
    samples, tokens, width = min(len(qkv), MOST), qkv.shape[1], qkv.shape[2] // 3
    given, out = (trials.repeated(qkv, samples, tokens, wide) for wide in (3 * width, width))
    sums = trials.draw(qkv, samples, heads, tokens).float()
    cuts = [cut for cut in CUTS if trials.serves_attention(qkv, heads, cut)]
    run = partial(trials.attention_back, given, out, out, sums, heads)
    return {WHOLE: run, **{cut.name: partial(run, cut) for cut in cuts}}
