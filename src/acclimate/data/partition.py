"""Who gets which example: partitions as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..core import check, rng
from .counts import class_wise
from .dealing import REVISIONS, deal, enough, hand_out, shuffled
from .world import Pool


@dataclass(frozen=True)
class Partition:
    """Deals examples out to clients."""

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        """Row indices per client, disjoint."""
        raise TypeError(f"{type(self).__name__} must define split(examples, clients, key)")


@dataclass(frozen=True)
class IID(Partition):
    """Every client gets a random share of the same size."""

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        enough(examples, clients)
        return deal(rng.permutation(key, len(examples.y)), clients)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Clients whose class mixes are drawn from Dirichlet(alpha): small alpha, few classes each.

    `sizes="equal"`: every client draws its mix, and the matrix of clients and classes is balanced: all clients get the
    same number of examples and all examples are dealt, while the mean number of effective classes (exp of the entropy
    of a client's mix) stays the one that was drawn. counts.py says how. It always ends, for any alpha and number of
    clients; with fewer clients than classes, and a small alpha, mixes are flatter than drawn, since every class must be
    somewhere. In revision 1 clients took turns in picking examples, until those of their mix had run out and others
    filled them up: mixes were flatter (3.4 effective classes in place of 2.5 at alpha 0.1 with 20 clients).
    `sizes="natural"`: every class is dealt in proportions drawn from Dirichlet(alpha) over clients, so sizes differ;
    clients below `floor` are filled up from the largest.
    `sizes="brfl"`: as the released code of FedTHE's benchmark BRFL deals. Groups of ten clients get a random share of
    the examples each. In a group, every class is dealt in proportions drawn from Dirichlet(alpha) over those clients
    that have less than the mean so far, and all is drawn again until every client has half of the mean.
    """

    alpha: float = 0.1
    sizes: Literal["equal", "natural", "brfl"] = "equal"
    floor: int = 10
    """The least number of examples of a client, for natural sizes."""
    revision: Literal[1, 2] = field(default=2, kw_only=True)
    """The revision of the way of dealing; a run names the one it was dealt with."""

    def __post_init__(self) -> None:
        check.positive(self, "alpha")
        check.choices(self)
        check.at_least(self, "floor", 1)

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        enough(examples, clients)
        if self.sizes == "brfl":
            return self._brfl(examples, clients, key)
        classes = len(examples.classes)
        pools = [shuffled(examples.y == c, rng.fold(key, "pool", c)) for c in range(classes)]
        if self.sizes == "natural":
            return self._natural(pools, clients, key)
        mixes = rng.dirichlet(rng.fold(key, "mix"), self.alpha, clients, classes)
        sizes = [len(part) for part in torch.arange(len(examples.y)).tensor_split(clients)]
        return REVISIONS[self.revision].equal(pools, mixes, sizes, key)

    def _natural(self, pools: list[Tensor], clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        if sum(map(len, pools)) < self.floor * clients:
            raise ValueError(
                f"Dirichlet: floor={self.floor} for {clients} clients needs {self.floor * clients} examples, "
                f"there are {sum(map(len, pools))}; lower floor or the number of clients"
            )
        shares = rng.dirichlet(rng.fold(key, "mix"), self.alpha, len(pools), clients)
        out: list[list[int]] = [[] for _ in range(clients)]
        for pool, share in zip(pools, shares, strict=True):
            cuts = (share.cumsum(0)[:-1] * len(pool)).round().long()
            for own, part in zip(out, pool.tensor_split(cuts), strict=True):
                own += part.tolist()
        for own in out:  # from whoever has most: it ends, because there are enough examples for all
            while len(own) < self.floor:
                own.append(max(out, key=len).pop())
        return tuple(torch.tensor(own, dtype=torch.int64) for own in out)

    def _brfl(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        rows = rng.permutation(rng.fold(key, "rows"), len(examples.y))
        out: list[Tensor] = []
        for first in range(0, clients, 10):
            group = range(first, min(first + 10, clients))
            own = rows[len(rows) * first // clients : len(rows) * group.stop // clients]
            pools = [own[examples.y[own] == c] for c in range(len(examples.classes))]
            held = torch.tensor([len(p) for p in pools])
            counts = class_wise(held, len(group), self.alpha, rng.fold(key, "group", first))
            if counts is None:
                raise ValueError(
                    f"Dirichlet: with alpha={self.alpha}, {len(group)} clients of a group and "
                    f"{int((held > 0).sum())} classes some client always has less than half of the mean size, which "
                    'sizes="brfl" does not allow; raise alpha, lower clients, or take sizes="equal"'
                )
            out += hand_out(pools, counts)
        return tuple(out)


@dataclass(frozen=True)
class Pathological(Partition):
    """Every client holds examples of at most `classes_per_client` classes: as many shards of one class each (McMahan et
    al., AISTATS 2017). Where clients have fewer shards than there are classes, the last classes belong to nobody."""

    classes_per_client: int = 2
    shards: Literal["random", "in-order"] = "random"
    """Which shards meet: any, so that a client may get two of one class, or those of neighbouring classes (0 and 1, 2
    and 3, ...), so that few sets of classes occur, each at many clients."""

    def __post_init__(self) -> None:
        check.at_least(self, "classes_per_client", 1)
        check.choices(self)

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        enough(examples, clients)
        classes, per = len(examples.classes), self.classes_per_client
        if per > classes:
            raise ValueError(f"Pathological: classes_per_client={per} must be at most the number of classes, {classes}")
        # Slots go round the classes, so every class is held as often as any other; then clients or slots are shuffled.
        slots = torch.arange(clients * per) % classes
        owners = rng.permutation(rng.fold(key, "owner"), clients)
        if self.shards == "random":
            slots = slots[rng.permutation(rng.fold(key, "shard"), len(slots))]
        out: list[list[Tensor]] = [[] for _ in range(clients)]
        for c in range(classes):
            holders = owners[(slots == c).nonzero().flatten() // per].tolist()
            pool = shuffled(examples.y == c, rng.fold(key, "pool", c))
            for owner, part in zip(holders, deal(pool, max(len(holders), 1)), strict=False):
                out[owner].append(part)
        if empty := [c for c, parts in enumerate(out) if not sum(map(len, parts))]:
            raise ValueError(f"Pathological: no examples are left for client {empty[0]}; use fewer clients")
        return tuple(torch.cat(parts) for parts in out)
