"""A world: examples, and what each client trains on, validates on and is tested on. Fixed, disjoint and hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import Shards
from ..ops.layout import counted


class Feature(NamedTuple):
    """What a column of inputs stands for: a number; 1 where that number was missing; or 1 where a word was there."""

    column: str
    kind: str = "number"
    """`number`, `date` (in days), `time` (in hours since midnight), `missing` or `word`."""
    word: str = ""
    """The word; of dates the day from which days are counted, that of the first training row."""
    fill: float = 0.0
    """What a missing number is filled with: the median of the training rows, or their mean (`data.missing`)."""

    @property
    def measured(self) -> bool:
        """Whether it is a number, a date or a time."""
        return self.kind in ("number", "date", "time")


class Scale(NamedTuple):
    """Mean and deviation of every input, by which rows are scaled."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Examples:
    """Labelled examples as read from a data set: inputs, labels, domains.

    Inputs are uint8 images [N, C, H, W], float features, or token ids, which are whole numbers. Features become
    float32. Labels, domains and users are whole numbers from 0.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    domain: Tensor
    domains: tuple[str, ...]
    users: Tensor | None = None
    """Which person or device each example comes from, numbered from 0, where the set says so (FEMNIST's writers)."""

    superclass: tuple[int, ...] | None = None
    """The superclass of every class, where the set has them (CIFAR-100)."""
    features: tuple[Feature, ...] = ()
    """What the columns of inputs stand for, where these come from a table or from sensors."""
    text: bool = False
    """Whether token ids are bytes of text: UTF-8 plus 1, and 0 for padding. Then text can be shifted."""
    notes: tuple[str, ...] = ()
    """What was done when the examples were read, in sentences."""
    user_names: tuple[str, ...] = ()
    """What the data calls its users, by number, where it says so."""

    @classmethod
    def of(cls, x: Tensor, y: Tensor, classes: Iterable[str]) -> Examples:
        """Examples of one domain."""
        return cls(x, y, tuple(classes), torch.zeros(len(y), dtype=torch.int64), ("all",))

    def pool(self, rows: Tensor | None = None) -> Pool:
        """What a partition looks at: everything but the pixels, of some rows or of all."""
        pick = slice(None) if rows is None else rows
        users = None if self.users is None else self.users[pick]
        return Pool(self.y[pick], self.classes, self.domain[pick], self.domains, users, self.superclass)

    @property
    def channels(self) -> int:
        """How many channels an image has; of features, how long their first axis is."""
        return self.x.shape[1] if self.x.dim() > 1 else 1

    def __repr__(self) -> str:
        classes = counted(len(self.classes), "class", "classes")
        return f"Examples({len(self.y)} of shape {tuple(self.x.shape[1:])}, {classes})"

    def __post_init__(self) -> None:
        self._take_types()
        self._check_rows()
        _check_range("labels", self.y, len(self.classes))
        _check_range("domain numbers", self.domain, len(self.domains))
        if self.users is not None and int(self.users.min()) < 0:
            raise ValueError(f"examples: users has {int(self.users.min())}, but users are numbered from 0")
        if self.x.is_floating_point() and not bool(torch.isfinite(self.x).all()):
            bad = int((~torch.isfinite(self.x)).flatten(1).any(1).nonzero()[0])
            raise ValueError(f"examples: x[{bad}] holds values that are not finite")

    def _take_types(self) -> None:
        """Inputs and numbers in the types that the rest computes with, where nothing is lost by it."""
        object.__setattr__(self, "x", _inputs(self.x))
        for name in ("y", "domain", "users"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, _numbers(name, values))

    def _check_rows(self) -> None:
        n = len(self.y)
        if not (len(self.x) == len(self.domain) == n):
            raise ValueError(f"examples: x has {len(self.x)} rows, y {n} and domain {len(self.domain)}; all must agree")
        if self.users is not None and len(self.users) != n:
            raise ValueError(f"examples: users has {len(self.users)} rows and y {n}; both must agree")
        if n == 0:
            raise ValueError("examples: there are none")


def _inputs(x: Tensor) -> Tensor:
    """uint8 (images) and whole numbers (token ids) as they are; floating-point numbers as float32, in which models
    compute (numpy makes float64)."""
    _check_tensor("x", x)
    if x.is_floating_point():
        return x.to(torch.float32)
    if x.dtype not in (torch.uint8, *TOKENS):
        raise ValueError(
            f"examples: x is {x.dtype}, allowed are torch.uint8 (images), floating point (features) and "
            "torch.int16, int32 or int64 (token ids)"
        )
    if x.dtype != torch.uint8 and x.numel() and int(x.min()) < 0:
        raise ValueError(f"examples: x has {int(x.min())}, but token ids are numbered from 0; for features give floats")
    return x


TOKENS = (torch.int16, torch.int32, torch.int64)
"""Types of token ids. Bytes of text are none: uint8 stands for pixels."""


def _numbers(name: str, values: Tensor) -> Tensor:
    """Whole numbers, one per example."""
    _check_tensor(name, values)
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"examples: {name} is {values.dtype}, but must hold whole numbers, such as torch.int64")
    if values.dim() != 1:
        raise ValueError(f"examples: {name} has shape {tuple(values.shape)}, but must hold one number per example")
    # int32 has always been good enough, and the hash of a world tells it from int64
    return values if values.dtype == torch.int32 else values.to(torch.int64)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"examples: {name} is a {type(value).__name__}, but must be a tensor; use torch.as_tensor")


def _check_range(what: str, numbers: Tensor, count: int) -> None:
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= count:
        raise ValueError(f"examples: {what} run from {low} to {high}, allowed are 0 to {count - 1}")


class Pool(NamedTuple):
    """Examples without their pixels (see `Examples`): what is dealt out to clients."""

    y: Tensor
    classes: tuple[str, ...]
    domain: Tensor
    domains: tuple[str, ...]
    users: Tensor | None = None
    superclass: tuple[int, ...] | None = None


@dataclass(frozen=True)
class World:
    """What a federation is made of. Index tuples have one entry per client; no example is in two of them."""

    examples: Examples
    train: tuple[Tensor, ...]
    val: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    new: tuple[Tensor, ...] = ()
    """Examples of clients that join after training; their labels are for scoring only."""
    held: Tensor = torch.zeros(0, dtype=torch.int64)
    """Examples of domains that no client trains on."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    name: str = "world"
    seed: int = 0
    notes: tuple[str, ...] = ()
    """What was done to the data so that models can take it, in sentences."""
    scales: tuple[Scale, ...] = ()
    """By which each client's rows were scaled, where it does that by its own; the last one is for newcomers."""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("a world needs at least one client")
        used = torch.cat([*self.train, *self.val, *self.test, *self.new, self.held])
        if len(used) != len(used.unique()):
            raise ValueError("a world must use every example at most once: splits overlap")

    def __repr__(self) -> str:
        return f"World({self.name}: {self.examples!r}, {counted(self.clients, 'client')}, seed {self.seed})"

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """What the data calls each client: the person or device of its examples, else their domain. Where a client has
        several of them, or all have the same, nobody has a name."""
        e = self.examples
        own, names = (e.users, e.user_names) if e.users is not None else (e.domain, e.domains)
        found = [own[torch.cat(parts)].unique().tolist() for parts in zip(self.train, self.val, self.test, strict=True)]
        known = all(len(of) == 1 and of[0] < len(names) for of in found) and len({of[0] for of in found}) > 1
        return tuple(names[of[0]] for of in found) if known else ()

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.examples.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.examples.x.shape[1:])

    @cached_property
    def content(self) -> str | None:
        """A hash over examples and splits; None where they are elsewhere and only their sizes are known."""
        card = self.card()
        if "hash" not in card:
            return None
        splits = {k: v["hash"] for k, v in card["splits"].items()}
        splits |= {"public": card["public"]["hash"]} if "public" in card else {}
        return hashlib.sha256(json.dumps([card["hash"], splits], sort_keys=True).encode()).hexdigest()[:16]

    def shards(self, rows: Iterable[Tensor]) -> Shards:
        """Examples by client, as backends take them."""
        return Shards.of(self.examples.x, self.examples.y.to(torch.int64), tuple(rows))

    def histogram(self, rows: Iterable[Tensor]) -> Tensor:
        """Class counts [clients, classes]."""
        return torch.stack([torch.bincount(self.examples.y[r], minlength=self.num_classes) for r in rows])

    def card(self) -> dict[str, Any]:
        """The data card of results.json: what was used, in numbers and hashes."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        splits |= {"new": self.new} if self.new else {}
        splits |= {"held_out": (self.held,)} if len(self.held) else {}
        return {
            "name": self.name,
            "seed": self.seed,
            "shape": list(self.shape),
            "classes": list(self.examples.classes),
            "domains": list(self.examples.domains),
            "examples": len(self.examples.y),
            "clients": self.clients,
            "new_clients": len(self.new),
            "hash": digest(self.examples.x, self.examples.y),
            "splits": {k: {"hash": digest(*v), "sizes": [len(r) for r in v]} for k, v in splits.items()},
            "histograms": {k: self.histogram(v).tolist() for k, v in splits.items()},
            **({"notes": list(self.notes)} if self.notes else {}),
        }


def digest(*tensors: Tensor) -> str:
    """SHA-256 over shapes, types and bytes: the same on every machine."""
    h = hashlib.sha256()
    for t in tensors:
        h.update(f"{tuple(t.shape)}{t.dtype}".encode())
        h.update(t.contiguous().cpu().numpy().tobytes())
    return h.hexdigest()[:16]
