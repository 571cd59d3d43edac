"""Data that the server never sees: stand-ins of the right sizes, so that the same experiment runs without the data.

Each site sends the shape of an example, the names of the classes and how many examples it has; pixels and labels stay
there. The server's world holds noise instead. Nothing is computed from it: it has the sizes that checks and streams
need, and its streams have names of their own, by which nodes find theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..backends.flower.protocol import FleetError, Link, NodeAnswer, Request, stream_name
from ..core import Shards, rng
from ..data import Dataset, World
from ..data.world import Examples
from ..experiment.names import allow

VALIDATION = "validation"


@dataclass(frozen=True)
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
        noise = rng.uniform(key, total, *self.shape)
        x = (noise * 255).to(torch.uint8) if self.pixels else noise
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


def gather(link: Link, data: Dataset, seconds: float) -> Remote:
    """Ask all sites for their cards. An error where one is missing, or where they do not fit together."""
    cards: dict[int, Mapping[str, Any]] = {}
    asked: set[int] = set()
    waited = 0.0
    while len(cards) < data.clients and waited <= seconds:
        new = [n for n in link.nodes() if n not in asked]
        for answer in link.exchange([Request(n, "query", {}, {}) for n in new], seconds, "hello"):
            asked.add(answer.node)
            cards |= _card(answer, data.clients)
        if len(cards) < data.clients:
            link.wait(1.0)
            waited += 1.0
    if missing := sorted(set(range(data.clients)) - set(cards)):
        raise FleetError(f"no word of the data of site(s) {missing} within {seconds:.0f} s; are their nodes up?")
    for key in ("shape", "classes", "pixels"):
        for c, card in cards.items():
            if card[key] != cards[0][key]:
                raise FleetError(f"site {c} has {key}={card[key]}, but site 0 has {cards[0][key]}; all must agree")
    first, order = cards[0], [cards[c] for c in range(data.clients)]
    mean, std = data.constants(first["shape"][0])
    return Remote(
        clients=data.clients,
        augment=data.augment,
        mean=mean,
        std=std,
        shape=tuple(first["shape"]),
        classes=tuple(first["classes"]),
        pixels=bool(first["pixels"]),
        train=tuple(int(card["train"]) for card in order),
        val=tuple(int(card["val"]) for card in order),
        test=tuple(int(card["test"]) for card in order),
    )


def _card(answer: NodeAnswer, clients: int) -> dict[int, Mapping[str, Any]]:
    if answer.error is not None:
        raise FleetError(f"node {answer.node} cannot tell about its data: {answer.error}")
    card = answer.fields.get("data")
    if card is None:
        raise FleetError(f'node {answer.node} was started without its data; its --node-config must hold data="FOLDER"')
    return {c: card for c in answer.fields.get("clients", ()) if c < clients}


def stream_names(world: World, streams: Mapping[str, Shards]) -> dict[str, str]:
    """The nodes' names of the streams for which the server has stand-ins."""
    named = {VALIDATION: world.shards(world.val), **streams}
    return {stream_name(shards): name for name, shards in named.items()}


allow(Remote)
