"""The gradient of attention over few tokens, by the kernel that is fastest for its shape.

One (`attention_kernels.back`) holds all keys of a head; the others take them in turns, so that several programs share a
processor. Each must agree with the formula before it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from . import attention_kernels, fastest, trials
from .attention_kernels import TURNS, Turns
from .kernels import INTERPRETED

LEAST = 2**20
"""Numbers in qkv from which on ways are measured."""
MOST = 128
"""Samples that are measured with."""
WHOLE = "whole"


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int) -> Tensor:
    """As `attention_kernels.back`."""
    return attention_kernels.back(qkv, out, g, sums, heads, _turns(qkv, heads))


def _turns(qkv: Tensor, heads: int) -> Turns | None:
    """How keys are taken; None for all at once."""
    if INTERPRETED or qkv.numel() < LEAST or not attention_kernels.takes_turns(qkv):
        return None
    samples, tokens, width = qkv.shape
    what = f"attention's gradient of {fastest.about(samples)} x {tokens} x {width}, {heads} heads"
    way = fastest.chosen(what, qkv, WHOLE, lambda: _ways(qkv, heads))
    turns = next((t for t in TURNS if t.name == way), None)
    return turns if turns is None or trials.serves_attention(qkv, heads, turns) else None


def _ways(qkv: Tensor, heads: int) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: the kernels that work, on numbers made for that."""
    samples, tokens, width = min(len(qkv), MOST), qkv.shape[1], qkv.shape[2] // 3
    given, out = (trials.repeated(qkv, samples, tokens, wide) for wide in (3 * width, width))
    sums = trials.draw(qkv, samples, heads, tokens).float()
    run = partial(attention_kernels.back, given, out, out, sums, heads)
    turns = [t for t in TURNS if trials.serves_attention(qkv, heads, t)]
    return {WHOLE: run, **{t.name: partial(run, t) for t in turns}}
