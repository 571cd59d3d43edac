"""Text as token ids of fixed length: the bytes of UTF-8 plus 1, and 0 where a text is over."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

BYTES = 257
"""How many ids byte-level text has: 256 bytes and the padding."""


def cut(text: str, length: int) -> bytes:
    """The first `length` bytes of a text; a character that would be cut in two is left out."""
    raw = text.encode("utf-8")
    return raw if len(raw) <= length else raw[:length].decode("utf-8", "ignore").encode("utf-8")


def encode(texts: Iterable[str], length: int) -> np.ndarray:
    """Ids [N, length], int16."""
    rows = [np.frombuffer(cut(text, length), np.uint8).astype(np.int16) + 1 for text in texts]
    out = np.zeros((len(rows), length), np.int16)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return out


def decode(x: Tensor | np.ndarray) -> list[str]:
    """The texts of ids [N, length]; bytes that are no UTF-8 become question marks in a box."""
    ids = np.asarray(x).astype(np.int64)
    return [(row[row > 0] - 1).astype(np.uint8).tobytes().decode("utf-8", "replace") for row in ids]
