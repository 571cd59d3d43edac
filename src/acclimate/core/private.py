"""Private state of all clients as one value, wherever it lies: engines, the round loop and checkpoints ask it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from . import tree
from .tree import Tree

IDS, ROWS = "@ids", "@rows"
"""Names in a checkpoint that holds the state of some clients alone; no method has leaves of such names."""


class Private(ABC):
    """One version of every client's private state. It never changes; `put` gives another version."""

    far: ClassVar[bool] = False
    """Whether it lies elsewhere than where clients run: then it is asked by numbers on the host, and travels."""

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many clients there are."""

    @abstractmethod
    def take(self, ids: int | Tensor) -> Tree:
        """The state of one client, or of several with a leading axis."""

    @abstractmethod
    def put(self, ids: Tensor, rows: Tree) -> Private:
        """A version in which these clients have new rows."""

    def changed(self, before: Private | None) -> Tensor:
        """Whose rows are others than in an earlier version, or than before the first round; asked where it is `far`."""
        raise TypeError(f"{type(self).__name__} does not know which of its rows have changed")

    def fetch(self, ids: Tensor, pinned: bool = False) -> Tree:
        """What must travel to the device before these clients run there: host tensors with a row for each client."""
        return {}

    def arrived(self, ids: Tensor, fetched: Tree) -> Tree:
        """The state of these clients, once what `fetch` gave is on the device."""
        return self.take(ids)

    @abstractmethod
    def saved(self) -> Tree:
        """What a checkpoint holds of it."""

    @abstractmethod
    def restored(self, flat: Mapping[str, Tensor], prefix: str) -> Private:
        """The version that was saved under names with this prefix, asked of the version before the first round.

        Every kind of state is also read from what another kind has saved.
        """

    def _with_rows(self, flat: Mapping[str, Tensor], prefix: str, ids: Tensor, place: str) -> Private:
        """This version with saved rows of some clients."""
        if ids.dtype != torch.int64 or ids.dim() != 1 or bool(((ids < 0) | (ids >= self.clients)).any()):
            raise ValueError(f"tensor '{prefix}{IDS}' must hold numbers of clients, 0 to {self.clients - 1}")
        like = tree.map(lambda x: x.new_empty(()).expand(len(ids), *x.shape), self.take(0))
        rows = tree.unflatten(flat, like, place)
        return self.put(ids.to(tree.leaves(like)[0].device), rows)


class Stacked(Private, Mapping[str, Any]):
    """State that lies in memory as one tree with a leading client axis; it reads like that tree."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> Any:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def clients(self) -> int:
        """How many clients there are; zero where nobody has any state."""
        return next((len(x) for x in tree.leaves(self._rows)), 0)

    def take(self, ids: int | Tensor) -> Tree:
        own: Tree = tree.take(self._rows, ids)
        return own

    def put(self, ids: Tensor, rows: Tree) -> Stacked:
        return Stacked(tree.put(self._rows, ids, rows))

    def saved(self) -> Tree:
        return dict(self._rows)

    def restored(self, flat: Mapping[str, Tensor], prefix: str) -> Private:
        ids = flat.get(prefix + IDS)
        if ids is None:
            return Stacked(tree.unflatten(flat, self._rows, prefix))
        return self._with_rows(flat, prefix, ids, f"{prefix}{ROWS}/")


def private(value: Private | Mapping[str, Any]) -> Private:
    """Private state as such; a plain tree of all clients' rows lies in memory."""
    return value if isinstance(value, Private) else Stacked(value)
