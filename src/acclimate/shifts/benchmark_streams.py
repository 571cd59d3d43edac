"""The streams of BRFL, the benchmark of FedTHE (Jiang & Lin, ICLR 2023, Sec. 5.1 and Appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core import Shards, check, rng
from ..ops.hashing import content_hash
from .base import Corrupting, Federation, Shift, Stream, choice, consecutive, frost, ordered, others, shuffled
from .corruptions import COMMON
from .suited import ALL, as_fitted, changed, ice_for, kept, suited


@dataclass(frozen=True)
class Original(Shift):
    """The client's own test examples, as they are."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        return Stream(Shards.of(world.examples.x, world.examples.y, ordered(world, key)))


@dataclass(frozen=True)
class Corrupted(Corrupting):
    """The client's own test examples, each under one of the corruption types, drawn once and kept.

    Images have the common corruptions by default, vectors and windows the shifts of numbers (`shifts.numbers`).
    Of images at severity 5 this is also FedICON's covariate shift (Tan et al., 2023, Appendix A.2).
    """

    severity: int = 5
    kinds: tuple[str, ...] = COMMON

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "severity", 1, 5)
        check.several(self, "kinds")
        unknown = [k for k in self.kinds if k not in ALL]
        if unknown or not self.kinds:
            raise check.FieldError(
                f"{type(self).__name__}: kinds={unknown or self.kinds} must name some of {', '.join(ALL)}",
                "kinds",
            )

    def rows(self, world: Federation, key: rng.Key) -> list[Tensor]:
        """The examples that are corrupted, in stream order."""
        return ordered(world, key)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        rows, names = self.rows(world, key), suited(self, world).kinds
        used = torch.cat(rows).unique()
        x, kinds = corrupted(world, used, names, self.severity, key, self.revision)
        mix = dict(zip(names, torch.bincount(kinds, minlength=len(names)).tolist(), strict=True))
        places = [torch.searchsorted(used, r) for r in rows]
        card = {"severity": self.severity, "kinds": mix} | ({"frost": frost().source} if mix.get("frost") else {})
        return Stream(Shards.of(x, world.examples.y[used], places), card, copied=used)


@dataclass(frozen=True)
class OutOfClient(Shift):
    """Test examples of the other clients: label shift for a personal model. As many as the client has of its own."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        return Stream(Shards.of(world.examples.x, world.examples.y, others(world, key)))


@dataclass(frozen=True)
class Interleaved(Corrupted):
    """Test examples of the other clients, corrupted: both shifts at once."""

    def rows(self, world: Federation, key: rng.Key) -> list[Tensor]:
        return others(world, key)


@dataclass(frozen=True)
class Natural(Shift):
    """Examples of another, naturally shifted set (CIFAR-10.1, ImageNet variants) with the client's class histogram.

    Every client gets `scale * its test histogram`, with the largest scale that the other set can serve. FedTHE's
    Appendix D takes the training set's histogram: a larger draw of the same distribution, as splits are random. With
    CIFAR-10 and CIFAR-10.1 it is also FedICON's attribute shift.
    """

    source: Any = None
    """The data set record that the examples come from; its classes are matched by name, else by number."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        if self.source is None:
            raise ValueError("Natural: source must name a data set, for example data.CIFAR10_1()")
        try:
            shifted = self.source.load()
        except FileNotFoundError as e:
            raise FileNotFoundError(f"Natural: {e}. Another set is named by streams.natural.source=NAME") from e
        x = as_fitted(shifted, world, f"Natural: {type(self.source).__name__}")
        if x.shape[1:] != world.examples.x.shape[1:]:
            raise ValueError(
                f"Natural: {type(self.source).__name__} has inputs {tuple(x.shape[1:])}, the clients' are "
                f"{tuple(world.examples.x.shape[1:])}; set its size= and channels="
            )
        y = _renumbered(shifted, world)
        classes = len(world.examples.classes)
        wanted = torch.stack([torch.bincount(world.examples.y[r], minlength=classes) for r in world.test])
        pools = [shuffled((y == c).nonzero().flatten(), rng.fold(key, "natural", c)) for c in range(classes)]
        demand = wanted.sum(0)
        missing = [name for name, p, d in zip(world.examples.classes, pools, demand, strict=True) if d and not len(p)]
        if missing:  # the only scale that could be served would be 0
            raise ValueError(
                f"Natural: {type(self.source).__name__} has no example of {_listed(missing)}, which clients are tested "
                "on; name a source that has every class of the clients"
            )
        scale = min((len(p) / int(d) for p, d in zip(pools, demand, strict=True) if d > 0), default=0.0)
        counts = (wanted.double() * scale + 1e-9).floor().long()
        ends = counts.cumsum(0)
        rows = []
        for k in range(len(world.test)):
            own = [pools[c][int(ends[k, c] - counts[k, c]) : int(ends[k, c])] for c in range(classes)]
            rows.append(shuffled(torch.cat(own), rng.fold(key, "natural order", k)))
        card = {"source": type(self.source).__name__, "scale": round(scale, 4)}
        return Stream(Shards.of(x, y, rows), card, foreign=(self.source,))


@dataclass(frozen=True)
class Mixture(Shift):
    """Equal parts of other streams, shuffled: as many of each as the shortest has.

    It is served by its own `batch` and `reset`; a part that sets others is refused, as they would do nothing.
    """

    parts: tuple[Shift, ...] = (Original(), Corrupted(), OutOfClient())

    def __post_init__(self) -> None:
        super().__post_init__()
        check.several(self, "parts")
        if not self.parts:
            raise ValueError("Mixture: parts must name at least one stream")
        for part in self.parts:
            self._check_served(part)

    def _check_served(self, part: Shift) -> None:
        for field in ("batch", "reset"):
            value, own = getattr(part, field), getattr(self, field)
            if value not in (own, getattr(Shift, field)):
                raise ValueError(
                    f"Mixture: part {type(part).__name__} has {field}={value!r}, but the mixture is served with "
                    f"{field}={own!r}; set {field} for the mixture"
                )
        if (part.protocol.every, part.protocol.until) != (1, None):
            raise ValueError(
                f"Mixture: part {type(part).__name__} says what the adapter learns from, which a mixture cannot; "
                "give it as a stream of its own"
            )

    def build(self, world: Federation, key: rng.Key) -> Stream:
        # the same key: the same streams as on their own
        streams = [_of_trained(part, part.build(world, key)) for part in self.parts]
        built = [stream.shards for stream in streams]
        used = [s.rows.unique() for s in built]
        x = torch.cat([s.x[u] for s, u in zip(built, used, strict=True)])
        y = torch.cat([s.y[u] for s, u in zip(built, used, strict=True)])
        starts = [int(p[0]) if len(p) else 0 for p in consecutive(used)]
        rows = []
        for c in range(len(world.test)):
            each = min(int(s.n[c]) for s in built)
            parts = zip(built, used, starts, strict=True)
            equal = torch.cat([torch.searchsorted(u, s.own(c)[:each]) + a for s, u, a in parts])
            rows.append(shuffled(equal, rng.fold(key, "mixture", c)))
        names = _numbered([type(part).__name__ for part in self.parts])
        cards = {name: stream.card for name, stream in zip(names, streams, strict=True)}
        of = [u if s.copied is None else s.copied[u] for s, u in zip(streams, used, strict=True)]
        foreign, sets = _sets(streams, used)
        return Stream(Shards.of(x, y, rows), {"parts": cards}, copied=torch.cat(of), foreign=foreign, sets=sets)


def brfl(natural: Any = None) -> tuple[Shift, ...]:
    """BRFL's streams: original, corrupted, (natural, from a data set given,) out-of-client, and their mixture."""
    parts: tuple[Shift, ...] = (Original(), Corrupted(), OutOfClient())
    if natural is not None:
        parts = (Original(), Corrupted(), Natural(source=natural), OutOfClient())
    return *parts, Mixture(parts=parts)


def corrupted(
    world: Federation, rows: Tensor, names: tuple[str, ...], severity: int, key: rng.Key, revision: int
) -> tuple[Tensor, Tensor]:
    """Examples, each under one of the named types: pixels and types. Keyed by the example: whoever holds it, it looks
    the same. Large results are remembered on disk."""
    keys = rng.fold(rng.fold(key, "image"), rows)
    kinds = choice(rng.fold(rng.fold(key, "kind"), rows), len(names))
    clean = world.examples.x[rows]
    ice = ice_for(clean)
    name = content_hash(f"corrupted/{revision}", clean, keys, kinds, names, severity, ice.mark(names))

    def make() -> Tensor:
        return changed(world, key, clean, kinds, severity, keys, names, ice, revision)

    return kept(clean, name, make), kinds


def _of_trained(part: Shift, stream: Stream) -> Stream:
    """The part's stream, where its clients are those that trained: newcomers have other models."""
    if stream.new:
        raise ValueError(
            f"Mixture: part {type(part).__name__} is of clients that join after training, and the other parts are not; "
            "give it as a stream of its own"
        )
    return stream


def _sets(streams: Sequence[Stream], used: Sequence[Tensor]) -> tuple[tuple[Any, ...], Tensor | None]:
    """All sets that streams take rows of besides the clients' own, and of which the used rows are (`Stream.sets`)."""
    foreign: list[Any] = []
    for other in (f for s in streams for f in s.foreign):
        if other not in foreign:
            foreign.append(other)
    found = []
    for s, u in zip(streams, used, strict=True):
        own = s.sets[u] if s.sets is not None else torch.full_like(u, 1 if s.foreign else 0)
        found.append(torch.tensor([0, *(1 + foreign.index(f) for f in s.foreign)])[own])
    return tuple(foreign), torch.cat(found) if foreign else None


def _numbered(names: list[str]) -> list[str]:
    """The names, those that come again with a number: Natural, Natural 2."""
    before = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name} {n + 1}" if n else name for name, n in zip(names, before, strict=True)]


def _listed(names: list[str], most: int = 5) -> str:
    """The names in a sentence, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def _renumbered(shifted: Any, world: Federation) -> Tensor:
    """Labels of another set in the numbers of the clients' classes; -1 for classes that are not among them."""
    classes: tuple[str, ...] = world.examples.classes
    if set(shifted.classes) & set(classes):
        return torch.tensor([classes.index(c) if c in classes else -1 for c in shifted.classes])[shifted.y]
    if len(shifted.classes) != len(classes):
        raise ValueError(
            f"Natural: its classes {shifted.classes[:3]}... are not those of the clients, {classes[:3]}..."
        )
    y: Tensor = shifted.y
    return y
