"""The base record of compression filters: the client encodes each tensor, the server decodes each message on arrival.

What is sent are the encoded tensors, so that bytes are counted as they are. Codes of different clients do not add up
(each has its own scale or its own coordinates), so every message is decoded before it is summed. A decoder knows
shapes from what it is given; nothing else is sent and nothing is remembered between rounds. So there is no error
feedback, which would need a state per client: what is lost in a round stays lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core import Filter, Rules, Sender, Tree, rng
from .message_parts import map_keyed, unknown


@dataclass(frozen=True)
class Codec(Filter):
    """Encodes floating-point tensors one by one. A codec writes `parts`, `encode` and `decode`."""

    encodes: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ()
    """The names under which an encoded tensor's pieces travel. No model has such names."""

    groups: tuple[str, ...] = ()
    """The groups that are encoded; all, where none is named. Integers (counts) are always sent as they are."""

    def refusal(self, rules: Rules) -> str | None:
        return unknown(self.groups, rules)

    def encode(self, x: Tensor, key: rng.Key) -> Tree | Tensor:
        """The pieces that are sent for a tensor, or the tensor itself where pieces would not be smaller."""
        raise TypeError(f"{type(self).__name__} must define encode(x, key)")

    def decode(self, pieces: Tree) -> Tensor:
        """What the pieces stand for."""
        raise TypeError(f"{type(self).__name__} must define decode(pieces)")

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        names = [g for g in up if g in self.groups or not self.groups]
        return up | {g: map_keyed(self.encode, up[g], rng.fold(key, g)) for g in names}

    def arrive(self, up: Tree) -> Tree:
        whole: Tree = self._decoded(up)
        return whole

    def _decoded(self, part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        if part.keys() == set(self.parts):
            return self.decode(dict(part))
        return {k: self._decoded(v) for k, v in part.items()}
