"""Data that the server never sees: stand-ins of the right sizes, so that the same experiment runs without the data.

Each site sends the shape of an example, the names of the classes and how many examples it has; pixels and labels stay
there. The server's world holds noise instead. Nothing is computed from it: it has the sizes that checks and streams
need, and its streams have names of their own, by which nodes find theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..backends.flower.protocol import FleetError, Link, Request, stream_name
from ..core import Shards, rng
from ..data import Dataset, World
from ..data.world import Examples
from ..experiment.names import allow
from .remote_cards import Card, CardRules, agreed, smallest

VALIDATION = "validation"
BLOCK = 2**22
"""Numbers of noise that are drawn at once, each of which takes many times the byte that a pixel has."""
GONE = "it was removed from the fleet"


@dataclass(frozen=True, repr=False)
class RemoteWorld(World):
    """A world whose examples are stand-ins."""

    def card(self) -> dict[str, Any]:
        """What the server may say of the data: sizes, and nothing about labels."""
        known = super().card()
        del known["hash"], known["histograms"]
        known["splits"] = {name: {"sizes": split["sizes"]} for name, split in known["splits"].items()}
        return {**known, "where": "at the sites; the server has seen sizes and class names only"}


@dataclass(frozen=True)
class Remote(Dataset):
    """The data of all sites, as far as the server knows it."""

    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    pixels: bool = True
    """Whether examples are images of bytes. Else they are numbers."""
    train: tuple[int, ...] = ()
    """How many training examples each site has."""
    val: tuple[int, ...] = ()
    """How many validation examples each site has."""
    test: tuple[int, ...] = ()
    """How many test examples each site has."""

    def world(self, seed: int = 0) -> RemoteWorld:
        """Stand-ins in the sizes that the sites sent."""
        sizes = [*self.train, *self.val, *self.test]
        total, key = sum(sizes), rng.fold(rng.key(seed), "stand-ins")
        x = torch.empty(total, *self.shape, dtype=torch.uint8 if self.pixels else torch.float32)
        for i, part in enumerate(x.split(max(BLOCK // math.prod(self.shape), 1))):
            noise = rng.uniform(rng.fold(key, i), *part.shape)
            part.copy_(noise * 255 if self.pixels else noise)
        y = (rng.uniform(rng.fold(key, "y"), total) * len(self.classes)).to(torch.int64)
        parts = torch.arange(total).split(sizes)
        k = self.clients
        examples = Examples.of(x, y, self.classes)
        rows = (tuple(parts[:k]), tuple(parts[k : 2 * k]), tuple(parts[2 * k :]))
        return RemoteWorld(examples, *rows, mean=self.mean, std=self.std, name="sites", seed=seed)


def card_of(world: World) -> dict[str, Any]:
    """What a site sends about its data."""
    sizes = {name: len(getattr(world, name)[0]) for name in ("train", "val", "test")}
    pixels = world.examples.x.dtype == torch.uint8
    return {"shape": list(world.shape), "classes": list(world.examples.classes), "pixels": pixels, **sizes}


def gather(link: Link, data: Dataset, seconds: float, rules: CardRules | None = None) -> Remote:
    """Ask all sites for their cards. A site whose card is not believed is left out, with a fault.

    An error where a site says nothing, or where fewer than half of all have cards that fit together. Sites that have
    left the fleet are not waited for, and do not count.
    """
    rules = rules or CardRules(data.clients)
    cards: dict[int, Card] = {}
    gone = [] if rules.registry is None else rules.registry.removed(data.clients)
    left_out = dict.fromkeys(gone, GONE)
    asked: set[int] = set()
    waited = 0.0
    while len(cards.keys() | left_out.keys()) < data.clients and waited <= seconds:
        new = [n for n in link.nodes() if n not in asked]
        for answer in link.exchange([Request(n, "query", {}, {}) for n in new], seconds, "hello"):
            asked.add(answer.node)
            good, bad = rules.heard(answer)
            cards, left_out = {**good, **cards}, {**bad, **left_out}
        if len(cards.keys() | left_out.keys()) < data.clients:
            link.wait(1.0)
            waited += 1.0
    if missing := sorted(set(range(data.clients)) - cards.keys() - left_out.keys()):
        raise FleetError(f"no word of the data of site(s) {missing} within {seconds:.0f} s; are their nodes up?")
    cards, odd = agreed({c: card for c, card in cards.items() if c not in left_out})
    left_out |= odd
    if not cards or 2 * len(cards) < data.clients - len(gone):
        why = "; ".join(f"site {c}: {reason}" for c, reason in sorted(left_out.items())[:3])
        raise FleetError(f"the cards of {len(cards)} of {data.clients} sites can be used: {why}")
    for c, reason in sorted(left_out.items()):
        link.bar(c, reason)
    first, all_sizes = next(iter(cards.values())), list(cards.values())
    mean, std = data.constants(first["shape"][0])

    def sizes(name: str) -> tuple[int, ...]:
        fill = smallest(all_sizes, name)
        return tuple(int(cards[c][name]) if c in cards else fill for c in range(data.clients))

    return Remote(
        clients=data.clients,
        augment=data.augment,
        mean=mean,
        std=std,
        shape=tuple(first["shape"]),
        classes=tuple(first["classes"]),
        pixels=bool(first["pixels"]),
        train=sizes("train"),
        val=sizes("val"),
        test=sizes("test"),
    )


def stream_names(world: World, streams: Mapping[str, Shards]) -> dict[str, str]:
    """The nodes' names of the streams for which the server has stand-ins."""
    named = {VALIDATION: world.shards(world.val), **streams}
    return {stream_name(shards): name for name, shards in named.items()}


allow(Remote)
