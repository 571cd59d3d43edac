"""The cards that sites send of their data: which are believed, and which site is left out of the run for its card."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..backends.flower.protocol import FleetError, NodeAnswer, brief
from .registry import EXAMPLES, Registry

STAND_INS = 2**32
"""Bytes that the stand-ins of all sites together may take at the server."""
AXES, SIDE = 8, 2**16
"""The most axes of an example, and the longest of them."""
CLASSES, NAME = 100_000, 200
"""The most classes, and the most characters of the name of one."""
COMMON = ("shape", "classes", "pixels")
"""What must be the same at all sites."""

Card = Mapping[str, Any]


class CardRules(NamedTuple):
    """What a card is held against."""

    clients: int
    least: int = 1
    """The fewest training examples with which the experiment can train."""
    registry: Registry | None = None

    def wrong(self, card: Card, client: int) -> str | None:
        """Why a card is not believed, in words; None where it is."""
        low, high = EXAMPLES if self.registry is None else self.registry.examples(client)
        low = max(low, self.least)
        if not low <= card["train"] <= high:
            return f"train={card['train']} must be between {low} and {high}, the numbers of examples it registered"
        for name in ("val", "test"):
            if card[name] > high:
                return f"{name}={card[name]} must be at most {high}, the number of examples it registered"
        shape, classes = card["shape"], card["classes"]
        if not (0 < len(shape) <= AXES and all(1 <= side <= SIDE for side in shape)):
            return f"shape={brief(str(shape))} must have 1 to {AXES} sides of 1 to {SIDE}"
        named = len(set(classes)) == len(classes) and all(len(c) <= NAME for c in classes)
        if not (0 < len(classes) <= CLASSES and named):
            return f"classes, of which there are {len(classes)}, must be up to {CLASSES} different names"
        size = (card["train"] + card["val"] + card["test"]) * math.prod(shape) * (1 if card["pixels"] else 4)
        if size > STAND_INS // self.clients:
            return f"its examples take {size:,} bytes, and a site's may take {STAND_INS // self.clients:,}"
        return None

    def heard(self, answer: NodeAnswer) -> tuple[dict[int, Card], dict[int, str]]:
        """The cards of a node's answer, and the clients that are left out because of it, with the reason."""
        claimed = [c for c in answer.fields.get("clients", ()) if c < self.clients]
        own = claimed if self.registry is None else self.registry.owned(answer.node, self.clients)
        reason, card = None, answer.fields.get("data")
        if answer.error is not None:
            reason = f"node {answer.node} cannot tell about its data: {answer.error}"
        elif foreign := [c for c in answer.fields.get("clients", ()) if c not in own]:
            reason = f"node {answer.node} says that it hosts client {foreign[0]}, which belongs to another key"
        elif card is None:
            reason = f'node {answer.node} was started without its data; its --node-config must hold data="FOLDER"'
        if reason is not None or card is None:
            if self.registry is None:  # nobody can be blamed by name
                raise FleetError(str(reason))
            return {}, dict.fromkeys(own, str(reason))
        wrong = {c: why for c in own if (why := self.wrong(card, c))}
        return {c: card for c in own if c not in wrong}, wrong


def agreed(cards: Mapping[int, Card]) -> tuple[dict[int, Card], dict[int, str]]:
    """The cards that fit together, and why the others do not: those of more than half of the sites decide."""
    if not cards:
        return {}, {}
    forms = {c: json.dumps([cards[c][key] for key in COMMON]) for c in sorted(cards)}
    form, count = Counter(forms.values()).most_common(1)[0]
    first = min(c for c in cards if forms[c] == form)
    odd = {c: _difference(cards, c, first) for c in cards if forms[c] != form}
    if odd and 2 * count <= len(cards):
        raise FleetError(f"{_difference(cards, min(odd), first)}; all must agree")
    return {c: card for c, card in cards.items() if c not in odd}, odd


def _difference(cards: Mapping[int, Card], client: int, first: int) -> str:
    key = next(k for k in COMMON if cards[client][k] != cards[first][k])
    here, there = (brief(str(cards[c][key])) for c in (client, first))
    return f"site {client} has {key}={here}, but site {first} has {there}"


def smallest(cards: Sequence[Card], name: str) -> int:
    """The size of a split that stands for a site which is left out."""
    return min(int(card[name]) for card in cards)
