"""Partitions along what a data set knows of its examples: superclasses, domains, people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..core import check, rng
from ..ops.layout import counted
from .dealing import REVISIONS, deal, enough, shuffled
from .partition import Dirichlet, Partition
from .world import Pool


@dataclass(frozen=True)
class BySuperclass(Partition):
    """Every superclass is dealt evenly to its own clients (FedTTA's CIFAR-100: 20 superclasses x 5 clients)."""

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        enough(examples, clients)
        if examples.superclass is None:
            raise ValueError("BySuperclass: this data set has no superclasses; CIFAR100 has")
        groups = max(examples.superclass) + 1
        if clients % groups:
            raise ValueError(f"BySuperclass: clients={clients} must be a multiple of the {groups} superclasses")
        of = torch.tensor(examples.superclass)[examples.y]
        out: list[Tensor] = []
        for g in range(groups):
            rows = shuffled(of == g, rng.fold(key, "superclass", g))
            _for_all(rows, clients // groups, f"BySuperclass: superclass {g}")
            out += deal(rows, clients // groups)
        return tuple(out)


def _for_all(rows: Tensor, clients: int, what: str) -> None:
    """Refuse a group of examples that leaves a client without any."""
    if len(rows) < clients:
        raise ValueError(f"{what} has {counted(len(rows), 'example')} for {clients} clients; use fewer clients")


@dataclass(frozen=True)
class ByDomain(Partition):
    """One client per domain, or several that share its examples (the total stays the same).

    With `alpha`, each client also draws a class mix from Dirichlet(alpha) and keeps the share `keep` of its examples in
    that mix: FedPCL's feature-and-label shift. Without, clients differ in their domain alone: its feature shift. Whole
    numbers of examples are found by largest remainders; in revision 1, large classes got what was left over.
    """

    alpha: float | None = None
    keep: float = 0.5
    """The share of a client's examples that is kept where a class mix is drawn."""
    revision: Literal[1, 2] = field(default=2, kw_only=True)
    """The revision of the way of dealing; a run names the one it was dealt with."""

    def __post_init__(self) -> None:
        if self.alpha is not None:
            check.positive(self, "alpha")
        check.within(self, "keep", 0.01, 1.0)
        check.choices(self)

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        enough(examples, clients)
        present = examples.domain.unique().tolist()
        if clients % len(present):
            names = ", ".join(examples.domains[d] for d in present)
            raise ValueError(f"ByDomain: clients={clients} must be a multiple of the {len(present)} domains ({names})")
        out: list[Tensor] = []
        for d in present:  # client c holds domain c mod the number of domains
            rows = shuffled(examples.domain == d, rng.fold(key, "domain", d))
            _for_all(rows, clients // len(present), f"ByDomain: the domain {examples.domains[d]!r}")
            out += deal(rows, clients // len(present))
        per = clients // len(present)
        ordered = [out[d * per + i] for i in range(per) for d in range(len(present))]
        return tuple(self._skew(r, examples, rng.fold(key, "skew", c)) for c, r in enumerate(ordered))

    def _skew(self, rows: Tensor, examples: Pool, key: rng.Key) -> Tensor:
        if self.alpha is None:
            return rows
        classes = len(examples.classes)
        pools = [rows[examples.y[rows] == c] for c in range(classes)]
        mix = rng.dirichlet(key, self.alpha, 1, classes)[0]
        quota, left = max(int(len(rows) * self.keep), 1), torch.tensor([len(p) for p in pools])
        counts = REVISIONS[self.revision].apportion(mix, quota, left)
        return torch.cat([p[:n] for p, n in zip(pools, counts.tolist(), strict=True)])


@dataclass(frozen=True)
class NaturalUsers(Partition):
    """A client is a person or device of the data set (FEMNIST's writers): `clients` of them, drawn at random."""

    floor: int = 20
    """Users with fewer examples are left out."""

    def __post_init__(self) -> None:
        check.whole(self, "floor", 1)

    def count(self, examples: Pool) -> int:
        """How many users have enough examples."""
        return 0 if examples.users is None else int((torch.bincount(examples.users) >= self.floor).sum())

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        if examples.users is None:
            raise ValueError("NaturalUsers: this data set does not say who made an example; FEMNIST does")
        counts = torch.bincount(examples.users)
        able = (counts >= self.floor).nonzero().flatten()
        if not len(able):
            raise ValueError(
                f"NaturalUsers: floor={self.floor} must be at most {int(counts.max())}, the most examples of any user"
            )
        if clients > len(able):
            raise ValueError(
                f"NaturalUsers: clients={clients} must be at most {len(able)}: users with {self.floor} or more examples"
            )
        chosen = able[rng.permutation(key, len(able))[:clients]].tolist()
        return tuple((examples.users == u).nonzero().flatten() for u in chosen)


@dataclass(frozen=True)
class ByClient(Partition):
    """Clients as the data names them: its people or devices, else its domains where there are several.

    Data that names neither is dealt by `otherwise`.
    """

    otherwise: Partition = Dirichlet(alpha=0.1)

    def count(self, examples: Pool) -> int:
        """How many clients the data names, which may be 0."""
        if examples.users is not None:
            return len(examples.users.unique())
        domains = len(examples.domain.unique())
        return domains if domains > 1 else 0

    def split(self, examples: Pool, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        if examples.users is None:
            several = len(examples.domain.unique()) > 1
            return (ByDomain() if several else self.otherwise).split(examples, clients, key)
        named = examples.users.unique()
        if clients > len(named):
            raise ValueError(
                f"ByClient: clients={clients} must be at most {len(named)}, the clients that the data names"
            )
        if clients < len(named):  # some of them, drawn; all of them stay in their order
            named = named[rng.permutation(key, len(named))[:clients]].sort().values
        return tuple((examples.users == u).nonzero().flatten() for u in named.tolist())
