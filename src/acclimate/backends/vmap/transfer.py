"""Private state and examples that do not lie on the device: sent there group by group, while another group computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core import Holdings, Private, Tree, tree
from .buckets import Group


class Load(NamedTuple):
    """What a group needs on the device: sent ahead, so that it travels while another group computes."""

    group: Group
    examples: Tree
    """`x`, `y` of these clients; empty where all examples lie on the device."""
    private: Tree
    """Their private state as it travels; empty where it lies on the device."""
    old: Tensor
    """Positions of clients whose state has changed since it was sent, on the host."""


class Feeder:
    """Brings groups what they need; on CUDA by a stream of its own, so that neither host nor device waits."""

    def __init__(self, shards: Holdings, device: torch.device) -> None:
        self.shards, self.device = shards, device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ahead: Load | None = None
        """What the next round's first group needs, already on its way."""

    def serves(self, mine: Private) -> bool:
        """Whether there is anything to send."""
        return self.shards.far or mine.far

    def feed(
        self, groups: Sequence[Group], mine: Private, then: Group | None = None
    ) -> Iterator[tuple[Group, Tree, Tree]]:
        """Groups with private state and examples. While one computes, the next one's are sent, at last those of `then`,
        which the next round begins with."""
        sent = self.ahead if self.ahead and groups[0].same(self.ahead.group) else self._send(groups[0], mine)
        self.ahead = None
        for following in groups[1:]:
            yield self._arrived(sent, mine)
            sent = self._send(following, mine)
        yield self._arrived(sent, mine)
        if then is not None:
            self.ahead = self._send(then, mine)

    def trained(self, clients: Tensor) -> None:
        """These clients have new private states: what was sent ahead of them is old."""
        if self.ahead is not None:
            old = torch.isin(self.ahead.group.who, clients).nonzero()[:, 0]
            self.ahead = self.ahead._replace(old=old)

    def examples(self, shards: Holdings, g: Group) -> Tree:
        """The examples of a group where they do not lie on the device."""
        fetched: Tree = tree.to(shards.fetch(g.who, g.size), self.device)
        return fetched

    def there(self, x: Tensor) -> Tensor:
        """Numbers of the host on the device; the host does not wait for them to arrive."""
        return x.to(self.device) if self._side is None else x.pin_memory().to(self.device, non_blocking=True)

    def _send(self, g: Group, mine: Private) -> Load:
        """Start the way of what a group needs and what does not lie on the device."""
        pinned = self._side is not None
        needed = {"examples": self.shards.fetch(g.who, g.size, pinned), "private": mine.fetch(g.who, pinned)}
        with self._sideways():
            sent = tree.map(lambda x: x.to(self.device, non_blocking=True), needed)
        return Load(g, sent["examples"], sent["private"], g.who[:0])

    def _sideways(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def _arrived(self, load: Load, mine: Private) -> tuple[Group, Tree, Tree]:
        """A group with its private state and its examples, once they are on the device (the host does not wait)."""
        g, sent = load.group, load.private
        if self._side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._side)
            for x in (*tree.leaves(load.examples), *tree.leaves(sent)):
                x.record_stream(torch.cuda.current_stream(self.device))
        if sent and len(load.old):
            at, new = self.there(load.old), mine.fetch(g.who[load.old])
            sent = tree.map(lambda x, fresh: x.index_copy(0, at, self.there(fresh)), sent, new)
        return g, mine.arrived(g.ids, sent), load.examples
