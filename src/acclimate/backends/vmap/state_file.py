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
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from ...core import Tree, tree

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


class Anyone:
    """Stands for a client's number where it must not matter which: whoever looks at it gets a TypeError."""

    def _asked(self, *_: Any) -> Any:
        raise TypeError("this is no client in particular")

    __index__ = __int__ = __float__ = __bool__ = __hash__ = __str__ = __repr__ = __format__ = _asked
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _asked


class Starts:
    """Rows of clients that were never written: computed when they are asked for.

    With most methods every client begins with the same state. Then no more is done for a new client than to copy its
    bytes; the method's own function takes longer than a small model's round.
    """

    def __init__(self, start: Callable[[int], Tree]) -> None:
        self._start, first = start, start(0)
        self.layout = Layout.of(first)
        self._everyone = self.layout.pack(tree.stack([first])) if _same_for_all(start) else None

    def fill(self, block: Tensor, places: Tensor, clients: Tensor) -> None:
        """Write the initial rows of these clients to these places of a block of bytes."""
        if self._everyone is not None:
            rows = self._everyone.expand(len(places), -1)
        else:
            rows = self.layout.pack(tree.stack([self._start(c) for c in clients.tolist()]))
        _put(block, places, rows)


def _same_for_all(start: Callable[[int], Tree]) -> bool:
    """Whether a client's state is made without a look at whose it is."""
    try:
        start(cast(int, Anyone()))
    except Exception:  # whatever came of the look
        return False
    return True


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


class Rows:
    """One version of every client's private state. Immutable; `put` gives another one."""

    def __init__(self, slab: Slab, starts: Starts, device: Any, slots: Tensor) -> None:
        self.slots = slots
        """The slot of every client's row in the slab; -1 where it was never written."""
        self._slab, self._starts, self._device = slab, starts, torch.device(device)
        slab.keep(self)

    @classmethod
    def fresh(
        cls, start: Callable[[int], Tree], clients: int, device: torch.device | str = "cpu", folder: str | None = None
    ) -> Rows:
        """The state before the first round: `start` gives a client's initial row, on the CPU; nothing is stored."""
        starts = Starts(start)
        return cls(Slab(starts.layout.width, folder), starts, device, torch.full((clients,), -1))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.slots)

    @property
    def written(self) -> Tensor:
        """The clients whose state is no longer the initial one, ascending."""
        return (self.slots >= 0).nonzero()[:, 0]

    def take(self, ids: int | Tensor) -> Tree:
        """The state of one client, or of several with a leading axis, on the device."""
        if not isinstance(ids, Tensor):
            one: Tree = tree.take(self.take(torch.tensor([ids])), 0)
            return one
        return self.unpack(self.block(ids.cpu()).to(self._device))

    def put(self, ids: Tensor, rows: Tree) -> Rows:
        """A version in which these clients have new rows."""
        slots = self.slots.clone()
        slots[ids.cpu()] = self._slab.write(self._starts.layout.pack(rows).cpu())
        return Rows(self._slab, self._starts, self._device, slots)

    def block(self, ids: Tensor, pinned: bool = False) -> Tensor:
        """Rows as bytes on the host: what travels in one piece. `unpack` makes a tree of them, on any device."""
        slots = self.slots[ids]
        block = self._slab.read(slots.clamp_min(0), pinned)
        new = (slots < 0).nonzero()[:, 0]
        if len(new):
            self._starts.fill(block, new, ids[new])
        return block

    def unpack(self, block: Tensor) -> Tree:
        """The stacked tree of some rows of bytes."""
        return self._starts.layout.unpack(block)


Private: TypeAlias = Tree | Rows
"""Every client's private state: a stacked tree in memory, or rows in a file."""


def take(mine: Private, ids: int | Tensor) -> Tree:
    """The private state of one client, or of several with a leading axis."""
    own: Tree = mine.take(ids) if isinstance(mine, Rows) else tree.take(mine, ids)
    return own


def put(mine: Private, ids: Tensor, rows: Tree) -> Private:
    """The private state of all, with new rows for some clients; what was given is unchanged."""
    changed: Private = mine.put(ids, rows) if isinstance(mine, Rows) else tree.put(mine, ids, rows)
    return changed


IDS, ROWS = "@ids", "@rows"
"""Names in a checkpoint of `Rows`; no method has leaves of such names."""


def saved(mine: Private) -> Tree:
    """What a checkpoint holds: the whole tree, or of `Rows` the written ones and whose they are."""
    return {IDS: mine.written, ROWS: mine.take(mine.written)} if isinstance(mine, Rows) else mine


def restored(flat: Mapping[str, Tensor], fresh: Private, prefix: str) -> Private:
    """The inverse of `saved`, out of flat names that begin with `prefix`; `fresh` is the state before the first round.

    Either kind of state is also read from what the other kind has saved.
    """
    ids = flat.get(prefix + IDS)
    if isinstance(fresh, Rows):
        clients = fresh.clients
        ids, place = (torch.arange(clients), prefix) if ids is None else (ids, f"{prefix}{ROWS}/")
    elif ids is None:
        whole: Tree = tree.unflatten(flat, fresh, prefix)
        return whole
    else:
        clients, place = len(tree.leaves(fresh)[0]), f"{prefix}{ROWS}/"
    if ids.dtype != torch.int64 or ids.dim() != 1 or bool(((ids < 0) | (ids >= clients)).any()):
        raise ValueError(f"tensor '{prefix}{IDS}' must hold numbers of clients, 0 to {clients - 1}")
    like = tree.map(lambda x: x.new_empty(()).expand(len(ids), *x.shape), take(fresh, 0))
    rows = tree.unflatten(flat, like, place)
    return put(fresh, ids.to(tree.leaves(like)[0].device), rows)
