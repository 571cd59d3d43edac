"""Private state of very many clients: rows in a file that is mapped into memory, in versions that never change.

Of a hundred thousand clients a hundred change in a round. `Rows` is one version of what a small federation keeps as a
stacked tree. `put` writes new rows beside the old ones and gives a new version, so that a round costs what its cohort
costs, and older versions (the best round's, the one a failed round began with) stay what they were. A client that was
never written has its initial state, computed when it is asked for and not stored.
"""

from __future__ import annotations

import math
import mmap
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core import Private, Tree, tree
from ...core.private import IDS, ROWS

ALIGNMENT = 8
"""Every leaf of a row begins at a multiple of this many bytes, so that its bytes can be viewed as numbers."""
FIRST_SLOTS = 1024
"""Room for so many rows in a new file."""


@dataclass(frozen=True)
class Layout:
    """Where the leaves of one client's state lie in a row of bytes."""

    like: Tree
    """One client's state, with no data (meta tensors)."""
    width: int
    """Bytes of a row."""

    @classmethod
    def of(cls, row: Tree) -> Layout:
        """The layout of rows like this one."""
        like = tree.map(lambda x: torch.empty_like(x, device="meta"), row)
        return cls(like, sum(_room(x) for x in tree.leaves(like)))

    def pack(self, rows: Tree) -> Tensor:
        """A stacked tree as bytes [rows, width], on the device it is on."""
        got, expected, parts = tree.flatten(rows), tree.flatten(self.like), []
        if got.keys() != expected.keys():
            raise ValueError(
                f"private state must keep its names: got {sorted(got)}, init_client gave {sorted(expected)}"
            )
        for name, like in expected.items():
            leaf = got[name]
            if leaf.shape[1:] != like.shape or leaf.dtype != like.dtype:
                raise ValueError(
                    f"private state must keep shape and type: got {leaf.dtype} {tuple(leaf.shape[1:])}, "
                    f"init_client gave {like.dtype} {tuple(like.shape)}"
                )
            flat = leaf.detach().reshape(len(leaf), like.numel()).contiguous().view(torch.uint8)
            parts.append(torch.nn.functional.pad(flat, (0, _room(like) - flat.shape[1])))
        return torch.cat(parts, dim=1)

    def unpack(self, block: Tensor) -> Tree:
        """The inverse of `pack`."""
        at = 0

        def leaf(like: Tensor) -> Tensor:
            nonlocal at
            flat = block[:, at : at + like.numel() * like.element_size()].contiguous().view(like.dtype)
            at += _room(like)
            return flat.view(len(block), *like.shape)

        rows: Tree = tree.map(leaf, self.like)
        return rows


def _room(leaf: Tensor) -> int:
    return math.ceil(leaf.numel() * leaf.element_size() / ALIGNMENT) * ALIGNMENT


def _put(block: Tensor, places: Tensor, rows: Tensor) -> None:
    """Write rows of bytes to their places, in words of eight bytes: byte by byte it takes longer."""
    block.view(torch.int64).index_copy_(0, places, rows.view(torch.int64))


class Starts:
    """Rows of clients that were never written: computed when they are asked for.

    With most methods every client begins with the same state (`alike`). Then no more is done for a new client than to
    copy its bytes; the method's own function takes longer than a small model's round.
    """

    def __init__(self, start: Callable[[int], Tree], alike: bool) -> None:
        self._start, first = start, start(0)
        self.layout = Layout.of(first)
        self._everyone = self.layout.pack(tree.stack([first])) if alike else None

    def fill(self, block: Tensor, places: Tensor, clients: Tensor) -> None:
        """Write the initial rows of these clients to these places of a block of bytes."""
        if self._everyone is not None:
            rows = self._everyone.expand(len(places), -1)
        else:
            rows = self.layout.pack(tree.stack([self._start(c) for c in clients.tolist()]))
        _put(block, places, rows)


class Slab:
    """Slots for rows of bytes in one temporary file. What a living version refers to is never overwritten.

    The file has no name, so that nothing is left behind whatever happens, and it is sparse: slots take space on disk
    once they are written.
    """

    def __init__(self, width: int, folder: str | None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, prefix="acclimate-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._bytes = torch.empty(0, width, dtype=torch.uint8)
        self._free = torch.empty(0, dtype=torch.int64)
        self._versions: weakref.WeakSet[Rows] = weakref.WeakSet()

    @property
    def slots(self) -> int:
        """How many rows the file has room for."""
        return len(self._bytes)

    def keep(self, version: Rows) -> None:
        """Leave the rows of this version alone for as long as it lives."""
        self._versions.add(version)

    def read(self, slots: Tensor, pinned: bool = False) -> Tensor:
        """Copies of rows; in page-locked memory where they are to travel to a GPU."""
        out = torch.empty(len(slots), self._bytes.shape[1], dtype=torch.uint8, pin_memory=pinned)
        return torch.index_select(self._bytes, 0, slots, out=out) if self.slots else out

    def write(self, block: Tensor) -> Tensor:
        """Put rows into free slots; says which."""
        if len(self._free) < len(block):
            self._find_free(len(block))
        slots, self._free = self._free[: len(block)], self._free[len(block) :]
        _put(self._bytes, slots, block)
        return slots

    def _find_free(self, wanted: int) -> None:
        used = torch.zeros(self.slots, dtype=torch.bool)
        for version in self._versions:
            used[version.slots[version.slots >= 0]] = True
        # at least a quarter of the file must come free, or looking for free slots would happen too often
        if self.slots - int(used.sum()) < max(wanted, self.slots // 4):
            self._grow(max(2 * self.slots, self.slots + wanted, FIRST_SLOTS))
        self._free = torch.cat([~used, torch.ones(self.slots - len(used), dtype=torch.bool)]).nonzero()[:, 0]

    def _grow(self, slots: int) -> None:
        width = self._bytes.shape[1]
        self._file.truncate(slots * width)
        mapped = mmap.mmap(self._file.fileno(), slots * width)
        self._bytes = torch.frombuffer(mapped, dtype=torch.uint8).view(slots, width)


class Rows(Private):
    """One version of every client's private state in a file."""

    far: ClassVar[bool] = True

    def __init__(self, slab: Slab, starts: Starts, device: Any, slots: Tensor) -> None:
        self.slots = slots
        """The slot of every client's row in the slab; -1 where it was never written."""
        self._slab, self._starts, self._device = slab, starts, torch.device(device)
        slab.keep(self)

    @classmethod
    def fresh(
        cls,
        start: Callable[[int], Tree],
        clients: int,
        device: torch.device | str = "cpu",
        folder: str | None = None,
        alike: bool = False,
    ) -> Rows:
        """The state before the first round: `start` gives a client's initial row, on the CPU; nothing is stored.

        `alike` says that `start` gives the same row for every client.
        """
        starts = Starts(start, alike)
        return cls(Slab(starts.layout.width, folder), starts, device, torch.full((clients,), -1))

    @property
    def clients(self) -> int:
        return len(self.slots)

    @property
    def written(self) -> Tensor:
        """The clients whose state is no longer the initial one, ascending."""
        return (self.slots >= 0).nonzero()[:, 0]

    def changed(self, before: Private | None) -> Tensor:
        if not isinstance(before, Rows):
            return self.written
        return (self.slots != before.slots).nonzero()[:, 0]

    def take(self, ids: int | Tensor) -> Tree:
        """The state of one client, or of several with a leading axis, on the device."""
        if not isinstance(ids, Tensor):
            one: Tree = tree.take(self.take(torch.tensor([ids])), 0)
            return one
        return self._starts.layout.unpack(self._block(ids.cpu()).to(self._device))

    def put(self, ids: Tensor, rows: Tree) -> Rows:
        slots = self.slots.clone()
        slots[ids.cpu()] = self._slab.write(self._starts.layout.pack(rows).cpu())
        return Rows(self._slab, self._starts, self._device, slots)

    def fetch(self, ids: Tensor, pinned: bool = False) -> Tree:
        return {"block": self._block(ids, pinned)}

    def arrived(self, ids: Tensor, fetched: Tree) -> Tree:
        return self._starts.layout.unpack(fetched["block"])

    def _block(self, ids: Tensor, pinned: bool = False) -> Tensor:
        """Rows as bytes on the host: what travels in one piece."""
        slots = self.slots[ids]
        block = self._slab.read(slots.clamp_min(0), pinned)
        new = (slots < 0).nonzero()[:, 0]
        if len(new):
            self._starts.fill(block, new, ids[new])
        return block

    def saved(self) -> Tree:
        """The written rows and whose they are."""
        return {IDS: self.written, ROWS: self.take(self.written)}

    def restored(self, flat: Mapping[str, Tensor], prefix: str) -> Private:
        ids = flat.get(prefix + IDS)
        if ids is None:
            return self._with_rows(flat, prefix, torch.arange(self.clients), prefix)
        return self._with_rows(flat, prefix, ids, f"{prefix}{ROWS}/")
