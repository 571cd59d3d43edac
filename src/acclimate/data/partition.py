"""Who gets which example: partitions as records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import check, rng
from .world import Examples


@dataclass(frozen=True)
class Partition:
    """Deals examples out to clients."""

    def split(self, examples: Examples, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        """Row indices per client, disjoint."""
        raise TypeError(f"{type(self).__name__} must define split(examples, clients, key)")


def _deal(order: Tensor, parts: int) -> tuple[Tensor, ...]:
    return tuple(order.tensor_split(parts))


@dataclass(frozen=True)
class IID(Partition):
    """Every client gets a random share of the same size."""

    def split(self, examples: Examples, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        _enough(examples, clients)
        return _deal(rng.permutation(key, len(examples.y)), clients)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Clients of equal size whose class mixes are drawn from Dirichlet(alpha): small alpha, few classes each.

    Every client draws its mix, then clients take turns in picking examples of their mix until they are full; a class
    that has run out is left out of the mix. So sizes are met exactly and it always ends, for any alpha and number of
    clients - at the price that the last picks of an extreme split may fall outside a client's mix.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        check.positive(self, "alpha")

    def split(self, examples: Examples, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        _enough(examples, clients)
        classes = len(examples.classes)
        mixes = dirichlet(rng.fold(key, "mix"), self.alpha, clients, classes)
        pools = [_shuffled(examples.y == c, rng.fold(key, "pool", c)) for c in range(classes)]
        sizes = [len(part) for part in torch.arange(len(examples.y)).tensor_split(clients)]
        rounds = 10  # picks are spread over a few turns so that no client drains a class before the others came
        taken = [0] * classes
        out: list[list[Tensor]] = [[] for _ in range(clients)]
        for turn in range(rounds):
            for c in rng.permutation(rng.fold(key, "turn", turn), clients).tolist():
                quota = sizes[c] * (turn + 1) // rounds - sizes[c] * turn // rounds
                left = torch.tensor([len(p) - t for p, t in zip(pools, taken, strict=True)])
                for k, count in enumerate(_apportion(mixes[c], quota, left).tolist()):
                    out[c].append(pools[k][taken[k] : taken[k] + count])
                    taken[k] += count
        return tuple(torch.cat(parts) for parts in out)


@dataclass(frozen=True)
class Pathological(Partition):
    """Every client holds examples of `classes_per_client` classes only (McMahan et al.'s sorted shards)."""

    classes_per_client: int = 2

    def __post_init__(self) -> None:
        check.at_least(self, "classes_per_client", 1)

    def split(self, examples: Examples, clients: int, key: rng.Key) -> tuple[Tensor, ...]:
        _enough(examples, clients)
        classes, per = len(examples.classes), self.classes_per_client
        if per > classes:
            raise ValueError(f"Pathological: classes_per_client={per} must be at most the number of classes, {classes}")
        # Slots go round the classes, so every class is held as often as any other; then clients are shuffled.
        slots = torch.arange(clients * per) % classes
        owners = rng.permutation(rng.fold(key, "owner"), clients)
        out: list[list[Tensor]] = [[] for _ in range(clients)]
        for c in range(classes):
            holders = owners[(slots == c).nonzero().flatten() // per].tolist()
            pool = _shuffled(examples.y == c, rng.fold(key, "pool", c))
            for owner, part in zip(holders, _deal(pool, max(len(holders), 1)), strict=False):
                out[owner].append(part)
        return tuple(torch.cat(parts) for parts in out)


def dirichlet(key: rng.Key, alpha: float, rows: int, columns: int) -> Tensor:
    """Rows drawn from a symmetric Dirichlet(alpha), in float64 and in log space, so that tiny alphas do not underflow.

    A Gamma(alpha) variable is Gamma(alpha + 1) * U^(1/alpha) (Marsaglia & Tsang, 2000, for the former).
    """
    shape = alpha + 1.0
    d = shape - 1.0 / 3.0
    tries = 24  # each is accepted with probability > 0.95
    x = rng.normal(rng.fold(key, "x"), tries, rows, columns).double()
    u = (rng.uniform(rng.fold(key, "u"), tries, rows, columns).double() + 2.0**-25).log()
    v = (1.0 + x / (9.0 * d) ** 0.5).clamp_min(1e-12) ** 3
    fine = u < 0.5 * x**2 + d - d * v + d * v.log()
    first = fine.to(torch.int64).argmax(0, keepdim=True)
    gamma = (d * v).gather(0, first)[0]
    boost = (rng.uniform(rng.fold(key, "boost"), rows, columns).double() + 2.0**-25).log() / alpha
    return (gamma.log() + boost).softmax(-1)


def _apportion(mix: Tensor, quota: int, left: Tensor) -> Tensor:
    """`quota` whole examples in the proportions of `mix`, never more of a class than is left (largest remainders)."""
    got = torch.zeros_like(left)
    for _ in range(len(mix) + 1):
        missing = quota - int(got.sum())
        free = left - got
        if missing <= 0:
            break
        weight = torch.where(free > 0, mix, torch.zeros_like(mix))
        if float(weight.sum()) <= 0:
            weight = free.double()  # nothing of the mix is left: take what there is
        share = weight / weight.sum() * missing
        whole = torch.minimum(share.floor().long(), free)
        if int(whole.sum()) == 0:
            best = torch.where(free > 0, share, -torch.ones_like(share)).argsort(descending=True)[:missing]
            whole[best] = (free[best] > 0).long()
        got = got + whole
    return got


def _shuffled(mask: Tensor, key: rng.Key) -> Tensor:
    rows = mask.nonzero().flatten()
    return rows[rng.permutation(key, len(rows))]


def _enough(examples: Examples, clients: int) -> None:
    if clients < 1:
        raise ValueError(f"clients={clients} must be at least 1")
    if clients > len(examples.y):
        raise ValueError(f"clients={clients} must be at most the number of examples, {len(examples.y)}")
