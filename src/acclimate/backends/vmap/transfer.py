"""Private state and examples that do not lie on the device: sent there group by group, while another group computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core import HostShards, Shards, Tree, tree
from .buckets import Group
from .state_file import Private, Rows


class Load(NamedTuple):
    """What a group needs on the device: sent ahead, so that it travels while another group computes."""

    group: Group
    examples: Tree
    """`x`, `y` of these clients; empty where all examples lie on the device."""
    block: Tensor | None
    """Their private state as bytes (see `Rows`), where it does not lie on the device."""
    slots: Tensor
    """Where it was read."""


class Feeder:
    """Brings groups what they need; on CUDA by a stream of its own, so that neither host nor device waits."""

    def __init__(self, shards: Shards, device: torch.device) -> None:
        self.shards, self.device = shards, device
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ahead: Load | None = None
        """What the next round's first group needs, already on its way."""

    def serves(self, mine: Private) -> bool:
        """Whether there is anything to send."""
        return isinstance(self.shards, HostShards) or isinstance(mine, Rows)

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

    def there(self, x: Tensor) -> Tensor:
        """Numbers of the host on the device; the host does not wait for them to arrive."""
        return x.to(self.device) if self._side is None else x.pin_memory().to(self.device, non_blocking=True)

    def _send(self, g: Group, mine: Private) -> Load:
        """Start the way of what a group needs and what does not lie on the device."""
        pinned = self._side is not None
        examples = self.shards.fetch(g.who, g.size, pinned) if isinstance(self.shards, HostShards) else {}
        own = {"block": mine.block(g.who, pinned)} if isinstance(mine, Rows) else {}
        with self._sideways():
            sent = tree.map(lambda x: x.to(self.device, non_blocking=True), {"examples": examples, **own})
        return Load(g, sent["examples"], sent.get("block"), mine.slots[g.who] if isinstance(mine, Rows) else g.who)

    def _sideways(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._side is None else torch.cuda.stream(self._side)

    def _arrived(self, load: Load, mine: Private) -> tuple[Group, Tree, Tree]:
        """A group with its private state and its examples, once they are on the device (the host does not wait)."""
        g = load.group
        if self._side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._side)
            for x in (*tree.leaves(load.examples), *([] if load.block is None else [load.block])):
                x.record_stream(torch.cuda.current_stream(self.device))
        if not isinstance(mine, Rows) or load.block is None:
            return g, tree.take(mine, g.ids), load.examples
        block, changed = load.block, torch.ne(load.slots, mine.slots[g.who]).nonzero()[:, 0]
        if len(changed):  # these clients took part in the round after which their rows were sent
            block = block.index_copy(0, self.there(changed), self.there(mine.block(g.who[changed])))
        return g, mine.unpack(block), load.examples
