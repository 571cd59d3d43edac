"""The base record of data sets: read examples, deal them to clients, split each client's share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..core import Augment, check, rng
from ..ops.augment import rotate
from . import dealing
from .group_partitions import ByClient, NaturalUsers
from .partition import Dirichlet, Partition
from .raw import Raw, RawRows, RawTexts
from .splits import Split
from .world import Examples, World

Inputs = Literal["images", "vectors", "windows", "texts"]
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Dataset:
    """A data set and how it becomes a federation. A new one only defines `load`."""

    partition: Partition = Dirichlet(alpha=0.1)
    clients: int = 10
    """How many clients train."""
    split: tuple[float, float, float] | Split = (0.6, 0.2, 0.2)
    """Each client's share of training, validation and test examples; or a record that cuts them in another way."""
    seed: int | None = None
    """The seed that draws partition and splits; None takes the experiment's seed."""
    new_clients: int = 0
    """How many further clients join after training, without labels."""
    new_partition: Partition | None = None
    """How newcomers' examples are dealt, for another alpha; None deals them as the others' are."""
    held_out: tuple[str, ...] = ()
    """Domains that no client trains on: for leave-one-domain-out."""
    fraction: float = 1.0
    """How much of the data is used: for quick looks."""
    angles: tuple[float, ...] = ()
    """Each training client's images are rotated by one of these, in degrees: concept shift between clients."""
    new_angles: tuple[float, ...] = ()
    """Each newcomer's images are rotated by one of these, in degrees."""
    augment: Augment | None = None
    """How training images are changed at random; None leaves them as they are."""
    mean: tuple[float, ...] = ()
    """Per-channel mean of pixels in 0..1 that the task subtracts, if any. It is a constant, never measured on tests."""
    std: tuple[float, ...] = ()
    """Per-channel deviation that the task divides by, if any."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.partition, Partition):
            rows = f"; rows in memory are given as {name}.of(...)" if hasattr(self, "of") else ""
            kind = type(self.partition).__name__
            raise check.FieldError(f"{name}: partition is a {kind}, not a record such as IID(){rows}", "partition")
        check.whole(self, "clients", 1)
        check.whole(self, "new_clients", 0)
        if self.seed is not None:
            check.whole(self, "seed", 0)
        check.several(self, "held_out", "angles", "new_angles", "mean", "std")
        check.all_finite(self, "angles", "new_angles", "mean", "std")
        if not 0 < self.fraction <= 1:
            raise check.FieldError(f"{name}: fraction={self.fraction} must be above 0 and at most 1", "fraction")
        if not isinstance(self.split, Split) and not _are_shares(self.split):
            raise check.FieldError(
                f"{name}: split={self.split} must be three shares (train, val, test) that add up to 1", "split"
            )
        if len(self.mean) != len(self.std) or any(s <= 0 for s in self.std):
            raise check.FieldError(
                f"{name}: mean={self.mean} and std={self.std} need one entry per channel each, std above 0",
                "mean",
                "std",
            )

    def load(self) -> Examples:
        """Read or make the examples."""
        raise TypeError(f"{type(self).__name__} must define load()")

    def official_test(self) -> Tensor | None:
        """True for the rows of `load()` that belong to an official test set, where there is one."""
        return None

    def for_training(self, examples: Examples, rows: Tensor) -> Examples:
        """The examples of `load()` as clients train on those in `rows`; all others stay as they are."""
        return examples

    def constants(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std for inputs of so many channels."""
        return _per_channel(self, "mean", channels), _per_channel(self, "std", channels)

    def world(self, seed: int = 0) -> World:
        """Deal and split: fixed by the seed, on any machine."""
        seed = seed if self.seed is None else self.seed
        examples, key = self.load(), rng.key(seed)
        pool, held = self._rows(examples, key)
        shares, new = self._deal(examples, pool, key)
        splits = [self._cut(examples, rows, rng.fold(key, "split", c)) for c, rows in enumerate(shares)]
        held = self._unseen(examples, held, rng.fold(key, "unseen"))
        train, val, test = zip(*splits, strict=True)
        examples = self.for_training(examples, torch.cat(train))
        examples = _turned(examples, shares, self.angles, rng.fold(key, "angle"))
        examples = _turned(examples, new, self.new_angles, rng.fold(key, "new angle"))
        mean, std = self.constants(examples.channels)
        name = type(self).__name__
        return self.fitted(World(examples, train, val, test, new, held, mean, std, name=name, seed=seed))

    def fitted(self, world: World) -> World:
        """The world with all that is fitted to data, such as the scale of inputs: by its training rows alone."""
        return world

    def raw(self, world: World, client: int | None) -> Raw | None:
        """How raw rows or texts of a client, or of a newcomer (None), become inputs; None: they are given as arrays."""
        if world.examples.text:
            return RawTexts(world.shape[0])
        vectors = len(world.shape) == 1 and len(world.examples.features) == world.shape[0]
        return RawRows(world.examples.features) if vectors else None

    def inputs(self) -> Inputs:
        """What kind of inputs it has, as far as that is known before it is read: it decides what fits by default."""
        return "images"

    @property
    def overlapping(self) -> bool:
        """Whether examples have parts in common, so that a random share of them tells of others."""
        return False

    def sharers(self, examples: int) -> int:
        """How many clients so many examples are dealt to, where they name none and nobody says how many."""
        train = 0.6 if isinstance(self.split, Split) else self.split[0]
        return dealing.sharers(int(examples * self.fraction), train)

    def _rows(self, examples: Examples, key: rng.Key) -> tuple[Tensor, Tensor]:
        """The rows to deal out, and those of held-out domains."""
        for d in self.held_out:
            if d not in examples.domains:
                have = ", ".join(examples.domains)
                raise ValueError(f"{type(self).__name__}: held_out={self.held_out!r} has {d!r}; its domains are {have}")
        out = torch.tensor([d in self.held_out for d in examples.domains])[examples.domain]
        if bool(out.all()):
            raise ValueError(f"{type(self).__name__}: held_out={self.held_out!r} leaves no domain to train on")
        keep = rng.uniform(rng.fold(key, "fraction"), len(out)) < self.fraction
        return (keep & ~out).nonzero().flatten(), (keep & out).nonzero().flatten()

    def _cut(self, examples: Examples, rows: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        """A client's training, validation and test rows."""
        if not isinstance(self.split, Split):
            return _cut(rows, self.split, key)
        train, val, test = self.split.cut(examples.y[rows], key)
        return rows[train], rows[val], rows[test]

    def _unseen(self, examples: Examples, held: Tensor, key: rng.Key) -> Tensor:
        """The rows of held-out domains that clients meet: all, or the test part of every domain."""
        if not isinstance(self.split, Split) or not len(held):
            return held
        of = examples.domain[held]
        parts = [held[of == d] for d in of.unique().tolist()]
        return torch.cat([p[self.split.unseen(examples.y[p], rng.fold(key, i))] for i, p in enumerate(parts)])

    def _deal(self, examples: Examples, pool: Tensor, key: rng.Key) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Rows per training client and per newcomer."""
        deal = rng.fold(key, "partition")
        if self.new_clients and self.clients + self.new_clients > len(pool):
            raise ValueError(
                f"{type(self).__name__}: clients={self.clients} and new_clients={self.new_clients} are together more "
                f"than the {len(pool):,} examples; use fewer clients"
            )
        if self.new_partition is None or not self.new_clients:
            shares = self._shares(self.partition, examples, pool, self.clients + self.new_clients, deal)
            order = torch.arange(len(shares))
            if self.new_clients:  # who joins late is drawn, so that no domain or class is late as a whole
                order = rng.permutation(rng.fold(key, "newcomers"), len(shares))
            chosen = [pool[shares[c]] for c in order.tolist()]
            return tuple(chosen[: self.clients]), tuple(chosen[self.clients :])
        late = self._late(examples, pool, key)
        old, new = pool[~late], pool[late]
        shares = self._shares(self.partition, examples, old, self.clients, deal)
        joins = self._shares(self.new_partition, examples, new, self.new_clients, rng.fold(key, "new partition"))
        return tuple(old[s] for s in shares), tuple(new[s] for s in joins)

    def _shares(
        self, how: Partition, examples: Examples, rows: Tensor, clients: int, key: rng.Key
    ) -> tuple[Tensor, ...]:
        """The partition's shares of these rows. Where it refuses too few of them, `fraction` may be the reason: a
        client that the data names, and that was counted, can be left without any."""
        try:
            return how.split(examples.pool(rows), clients, key)
        except ValueError as e:
            if self.fraction == 1 or not _splits(how, examples, clients, key):
                raise
            named = examples.users is not None and isinstance(how, ByClient | NaturalUsers)
            lost = ", in which some clients that the data names have too few examples" if named else ""
            raise ValueError(
                f"{e}; only fraction={self.fraction} of the data is used{lost}: raise it, or set clients lower"
            ) from e

    def _late(self, examples: Examples, pool: Tensor, key: rng.Key) -> Tensor:
        """Which examples newcomers get: the official test set where there is one, else a random share; where clients
        are people, newcomers are other people."""
        share, draw = self.new_clients / (self.clients + self.new_clients), rng.fold(key, "late")
        official, people = self.official_test(), None
        if isinstance(self.partition, ByClient | NaturalUsers) and examples.users is not None:
            people = examples.users[pool]
        if official is not None and 0 < int(official[pool].sum()) < len(pool):
            chosen = official[pool]
            if people is None or not bool(torch.isin(people[chosen], people[~chosen]).any()):
                return chosen
        if people is None:
            return rng.uniform(draw, len(pool)) < share
        named, each = people.unique(return_counts=True)
        named = named[each >= (self.partition.floor if isinstance(self.partition, NaturalUsers) else 1)]
        count = min(max(round(len(named) * share), 1), len(named) - 1)
        return torch.isin(people, named[rng.permutation(draw, len(named))[:count]])


@dataclass(frozen=True)
class CountedClients(Dataset):
    """The base of sets whose data says how many clients there are: `clients=0` is settled once the data is there."""

    def __post_init__(self) -> None:
        if self.clients == 0:
            replace(self, clients=1)  # checks the other fields
            if (count := self._named()) is None:
                return
            object.__setattr__(self, "clients", max(count - self.new_clients, 1))
        super().__post_init__()

    def _named(self) -> int | None:
        """How many clients the data names, or can be dealt to; None where it is not there."""
        raise TypeError(f"{type(self).__name__} must define _named()")

    def world(self, seed: int = 0) -> World:
        """Deal and split: fixed by the seed, on any machine."""
        if self.clients:
            return super().world(seed)
        self.load()  # says what is missing, where something is
        return replace(self).world(seed)


def _splits(how: Partition, examples: Examples, clients: int, key: rng.Key) -> bool:
    """Whether all examples can be dealt to so many clients."""
    try:
        return len(how.split(examples.pool(), clients, key)) == clients
    except ValueError:
        return False


def _per_channel(record: Dataset, field: str, channels: int) -> tuple[float, ...]:
    """Constants of another number of channels: grey ones repeated, colour ones weighed as grey images weigh colours."""
    values: tuple[float, ...] = getattr(record, field)
    if len(values) in (0, channels):
        return values
    if len(values) == 1:
        return values * channels
    if len(values) == 3 and channels == 1:
        return (round(sum(v * w for v, w in zip(values, _LUMA, strict=True)), 4),)
    allowed = "1 entry" if channels == 1 else f"1 or {channels} entries"
    raise ValueError(
        f"{type(record).__name__}: {field}={values} must have {allowed}: its inputs have {channels} "
        f"channel{'' if channels == 1 else 's'}"
    )


def _are_shares(split: object) -> bool:
    """Whether these are three shares, some of them for training."""
    if not isinstance(split, tuple | list) or len(split) != 3:
        return False
    return min(split) >= 0 and split[0] > 0 and bool(abs(sum(split) - 1) <= 1e-6)  # which NaN is not


def _cut(rows: Tensor, shares: tuple[float, float, float], key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
    rows = rows[rng.permutation(key, len(rows))]
    train = round(len(rows) * shares[0])
    val = round(len(rows) * (shares[0] + shares[1]))
    return rows[:train], rows[train:val], rows[val:]


def _turned(examples: Examples, shares: tuple[Tensor, ...], angles: tuple[float, ...], key: rng.Key) -> Examples:
    """Every client's images rotated by its own angle."""
    if not angles or not shares:
        return examples
    x = examples.x.clone()
    for rows, pick in zip(shares, rng.randint(key, 0, len(angles), len(shares)).tolist(), strict=True):
        x[rows] = rotate(x[rows], angles[pick])
    return replace(examples, x=x)
