"""ChaCha20 (RFC 8439, Section 2.3) as tensor code: a stream that cannot be told from random without its key.

`core.rng` is quick and good enough for experiments, but its output gives its key away. Masks that must hide something
need a cipher. Words are 32 bits, kept in int64 tensors because torch has no unsigned arithmetic.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")


def stream(key: bytes, nonce: Sequence[Tensor], words: int, counter: int = 0) -> Tensor:
    """The first `words` 32-bit words of the key stream, from block `counter` on.

    `key` has 32 bytes, `nonce` three words as integer scalars. No two messages may share both.
    """
    if len(key) != 32 or len(nonce) != 3:
        raise ValueError(f"ChaCha20: a key of {len(key)} bytes and a nonce of {len(nonce)} words must be 32 and 3")
    blocks, device = -(-words // 16), nonce[0].device
    rows: list[int | Tensor] = [*_CONSTANTS, *struct.unpack("<8I", key)]
    rows += [torch.arange(counter, counter + blocks, device=device), *(n & _WORD for n in nonce)]
    start = torch.stack([_row(r, blocks, device) for r in rows]).reshape(4, 4, blocks)
    a, b, c, d = start
    for _ in range(10):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # columns become diagonals
        a, b, c, d = _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    mixed = (torch.stack([a, b, c, d]) + start) & _WORD
    return mixed.reshape(16, blocks).T.reshape(-1)[:words]


def _row(value: int | Tensor, blocks: int, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(torch.int64).expand(blocks)
    return torch.full((blocks,), value, dtype=torch.int64, device=device)


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = (a + b) & _WORD
    d = _turn(d ^ a, 16)
    c = (c + d) & _WORD
    b = _turn(b ^ c, 12)
    a = (a + b) & _WORD
    d = _turn(d ^ a, 8)
    c = (c + d) & _WORD
    b = _turn(b ^ c, 7)
    return a, b, c, d


def _turn(x: Tensor, by: int) -> Tensor:
    return ((x << by) & _WORD) | (x >> (32 - by))
