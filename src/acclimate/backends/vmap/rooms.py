"""The same room for sets of several sizes, so that they share a recording: what they do not fill is left out of it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...core import Holdings

MOST = 256 * 2**20
"""Bytes of examples that may be made for the sake of a recording; larger sets have one for each of their sizes."""


def room(size: int) -> int:
    """The power of four that has room for this many."""
    return int(4 ** (-(-(size - 1).bit_length() // 2)))


def shared(size: int, clients: int, held: Holdings) -> int:
    """The room of so many clients with up to `size` examples each."""
    return _within(size, clients, held.x)


def widened(held: Holdings) -> Holdings:
    """The same, in memory as large as that of others, and with tables as wide as the room of its largest client."""
    rows = _filled(held.rows.T, room(held.rows.shape[1])).T
    size = _within(len(held.x), 1, held.x)
    return replace(held, x=_filled(held.x, size), y=_filled(held.y, size), rows=rows)


def _within(size: int, times: int, x: Tensor) -> int:
    """The room for `size` examples like those of x, if so many `times` as many bytes may be taken; else `size`."""
    each = x[:1].numel() * x.element_size()
    return room(size) if times * each * room(size) <= MOST else size


def _filled(x: Tensor, rows: int) -> Tensor:
    """x with zeros in further rows."""
    filled = x.new_zeros(rows, *x.shape[1:])
    filled[: len(x)] = x
    return filled
