"""Many methods ranked by their mean over streams, and which of them cannot be told apart.

What two rows differ by is judged as `acclimate compare` judges it: by the paired interval of `eval.paired`. Rows are
ranked on the seeds and streams that most of them share; others are left out, with the reason.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..ops.layout import counted
from .paired import DRAWS, LEVEL, PerSeed, ends, few, resampled, student, told_apart


@dataclass(frozen=True)
class RankedRow:
    """One method with one adapter, as it is ranked: the accuracy of every client, and what it was tested on."""

    title: str
    cells: Mapping[str, PerSeed]
    """By stream."""
    tested_on: Mapping[tuple[int, str], Hashable] = field(default_factory=dict)
    """By seed and stream, what names the examples; rows on other examples cannot be paired."""
    doubt: str | None = None
    """Why its numbers cannot be used."""

    def blocks(self) -> frozenset[Block]:
        """All that it was tested on: seed, stream, and what names the examples and the number of clients."""
        return frozenset(
            (n, s, (self.tested_on.get((n, s)), len(own[n]))) for s, own in self.cells.items() for n in own if own[n]
        )


@dataclass(frozen=True)
class RankedPlace:
    """A row's place in a ranking."""

    title: str
    rank: int
    """By its mean, from 1."""
    mean: float
    low: float
    high: float
    """The interval of the first row's lead over it."""
    average_rank: float
    """The mean of its ranks on every stream and seed; equals share a rank."""

    @property
    def level(self) -> bool:
        """Whether it cannot be told from the first."""
        return not told_apart(self.low, self.high)


@dataclass(frozen=True)
class Ranking:
    """Rows from the best mean down."""

    places: tuple[RankedPlace, ...]
    groups: tuple[tuple[int, int], ...]
    """From which place to which, counted from zero, no two rows can be told apart; groups of one are not listed."""
    by_stream: Mapping[str, tuple[RankedPlace, ...]]
    """The same ranking for every stream by itself."""
    seeds: tuple[int, ...]
    left_out: Mapping[str, str]
    """Rows that are not ranked, and why."""
    other_seeds: tuple[int, ...] = ()
    other_streams: tuple[str, ...] = ()
    """What some ranked rows were tested on besides, and others were not: it is not in any number here."""

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON can hold them."""
        rows = [asdict(p) | {"level_with_first": p.level} for p in self.places]
        streams = {s: [asdict(p) | {"level_with_first": p.level} for p in own] for s, own in self.by_stream.items()}
        groups = [[p.title for p in self.places[a : b + 1]] for a, b in self.groups]
        body = {
            "level": LEVEL,
            "draws": DRAWS,
            "seeds": list(self.seeds),
            "places": rows,
            "cannot_be_told_apart": groups,
        }
        besides = {"seeds": list(self.other_seeds), "streams": list(self.other_streams)}
        return body | {"streams": streams, "left_out": dict(self.left_out), "not_ranked_on": besides}

    def bars(self) -> list[str]:
        """For every place, which groups it is in, as letters (a to z, a2 to z2, ...): rows that share one
        cannot be told apart."""
        letters = [f"{chr(ord('a') + k % 26)}{k // 26 + 1 if k >= 26 else ''}" for k in range(len(self.groups))]
        return ["".join(x for x, (a, b) in zip(letters, self.groups, strict=True) if a <= i <= b)
                for i in range(len(self.places))]  # fmt: skip

    def words(self) -> list[str]:
        """What the ranking says, and what it cannot say."""
        return [f"{self._lead()} {self._level()}".strip(), *self._groups(), *self._caveats()]

    def _lead(self) -> str:
        first, over = self.places[0], counted(len(self.by_stream), "stream")
        return f"{first.title} has the best mean over {over}: {100 * first.mean:.1f} %."

    def _level(self) -> str:
        level = [p.title for p in self.places[1:] if p.level]
        if not level:
            return "Every other row is below it by more than chance." if len(self.places) > 1 else ""
        return f"Within chance of it: {listed(level)}."

    def _groups(self) -> list[str]:
        return [
            f"Ranks {a + 1} to {b + 1} cannot be told apart: {listed([p.title for p in self.places[a : b + 1]])}."
            for a, b in self.groups
            if a > 0
        ]

    def besides(self) -> list[str]:
        """Which seeds and streams do not count, because not every ranked row has them; a sentence of each."""
        out = []
        if self.other_seeds:
            alone, others = (listed([str(n) for n in some]) for some in (self.seeds, self.other_seeds))
            out.append(f"Ranked on seed{_s(self.seeds)} {alone} alone: not every row has seed{_s(self.other_seeds)} "
                       f"{others}.")  # fmt: skip
        if self.other_streams:
            out.append(f"Ranked without stream{_s(self.other_streams)} {listed(self.other_streams)}: not every row was "
                       "tested on the same.")  # fmt: skip
        return out

    def _caveats(self) -> list[str]:
        out = self.besides()
        if len(self.seeds) < 2:
            out.append("One seed: the intervals cover the choice of clients, not that of splits and initial weights.")
        if len(self.places) > 3:
            out.append("Each interval is of 95 % by itself: of many comparisons, some exceed chance by chance.")
        return out + [f"Not ranked: {title}, because {why}." for title, why in self.left_out.items()]


def _s(some: Sequence[object]) -> str:
    return "s" * (len(some) != 1)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names as prose; of many, the first few and how many more."""
    names = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def rank(entries: Sequence[RankedRow]) -> Ranking | None:
    """The ranking of rows; None unless two of them can be paired."""
    sound = [e for e in entries if e.doubt is None]
    common = _common(sound)
    chosen = [e for e in sound if common and common <= e.blocks()]
    if len(chosen) < 2:
        return None
    seeds = tuple(sorted({n for n, _, _ in common}))
    streams = [s for s in chosen[0].cells if any(s == t for _, t, _ in common)]
    values = {s: [np.array([e.cells[s][n] for e in chosen], dtype=float).T for n in seeds] for s in streams}
    titles, averages = [e.title for e in chosen], _average_ranks(values)
    alone = {}
    for s, own in values.items():
        alone[s] = _places(titles, _Leads([[v] for v in own], [1.0]), _means([own]), _average_ranks({s: own}))
    weights, together = _grouped(list(values.values()))
    leads, means = _Leads(together, weights), _means(list(values.values()))
    places = _places(titles, leads, means, averages)
    order = np.argsort(-means, kind="stable")
    left = {e.title: _reason(e, common, seeds) for e in entries if e not in chosen}
    held = frozenset[Block]().union(*(e.blocks() for e in chosen))
    more = tuple(sorted({n for n, _, _ in held} - set(seeds)))
    besides = tuple(s for s in dict.fromkeys(s for e in chosen for s in e.cells) if s not in streams)
    return Ranking(places, _groups(leads, order.tolist()), alone, seeds, left, more, besides)


MOST_KINDS = 40
"""So many different sets of seeds and streams are looked at in pairs, those of the most rows."""
Block = tuple[int, str, Hashable]
"""A seed, a stream, and what names its examples."""


def _common(entries: Sequence[RankedRow]) -> frozenset[Block]:
    """Seeds and streams on which to rank: those that give the most numbers, of rows that have all of them.

    They are those of some row, or what is left of them where another row lacks some. Where no two rows have these, they
    are what two rows share, who have other examples of the rest.
    """
    held = [e.blocks() for e in entries]
    kinds = list(dict.fromkeys(held))
    pairs = list(itertools.combinations((blocks for blocks, _ in Counter(held).most_common(MOST_KINDS)), 2))
    alike = [_whole(a & b) for a, b in pairs if _places_of(a) & _places_of(b) == _places_of(a & b)]
    return _most([*kinds, *alike], held) or _most([_whole(a & b) for a, b in pairs], held)


def _places_of(blocks: frozenset[Block]) -> set[tuple[int, str]]:
    return {(n, s) for n, s, _ in blocks}


def _most(kinds: Sequence[frozenset[Block]], held: Sequence[frozenset[Block]]) -> frozenset[Block]:
    """Of some seeds and streams those that give the most numbers; the first of equals, nothing where no two rows fit.

    Every seed must have every stream, or a mean over streams would mix them.
    """
    best: tuple[int, frozenset[Block]] = (0, frozenset())
    for blocks in dict.fromkeys(kinds):
        rows = sum(blocks <= other for other in held)
        if blocks == _whole(blocks) and rows > 1 and rows * len(blocks) > best[0]:
            best = (rows * len(blocks), blocks)
    return best[1]


def _whole(blocks: frozenset[Block]) -> frozenset[Block]:
    """What is left where only seeds with every stream count, or only streams with every seed: the larger."""
    seeds, streams = Counter(n for n, _, _ in blocks), Counter(s for _, s, _ in blocks)
    by_seed = frozenset(b for b in blocks if seeds[b[0]] == len(streams))
    by_stream = frozenset(b for b in blocks if streams[b[1]] == len(seeds))
    return max(by_seed, by_stream, key=len)


def _reason(entry: RankedRow, common: frozenset[Block], seeds: Sequence[int]) -> str:
    if entry.doubt is not None:
        return entry.doubt
    here = entry.blocks()
    missing = [s for s in dict.fromkeys(s for _, s, _ in sorted(common, key=str)) if s not in entry.cells]
    if missing:
        return f"it has no number on {listed(missing)}"
    lacking = [n for n in seeds if any((n, s) not in {(m, t) for m, t, _ in here} for _, s, _ in common)]
    if lacking:
        return f"it lacks seed{'s' * (len(lacking) > 1)} {listed([str(n) for n in lacking])}"
    return "it was tested on other examples"


def _means(streams: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """The mean of every row over streams, of the mean over seeds, of the mean over clients."""
    means: np.ndarray = np.mean([[own.mean(0) for own in seeds] for seeds in streams], axis=(0, 1))
    return means


def _grouped(streams: Sequence[Sequence[np.ndarray]]) -> tuple[list[float], list[list[np.ndarray]]]:
    """Streams with as many clients count as streams of the same ones: every client's mean over them is drawn."""
    kinds: dict[tuple[int, ...], list[Sequence[np.ndarray]]] = {}
    for seeds in streams:
        kinds.setdefault(tuple(len(own) for own in seeds), []).append(seeds)
    weights = [len(group) / len(streams) for group in kinds.values()]
    count = len(streams[0])
    return weights, [[np.mean([s[i] for s in group], axis=0) for group in kinds.values()] for i in range(count)]


@dataclass(frozen=True)
class _Leads:
    """Intervals of rows' leads over each other; a seed has groups of clients [clients, rows], each with a weight."""

    seeds: Sequence[Sequence[np.ndarray]]
    weights: Sequence[float]

    @functools.cached_property
    def _drawn(self) -> np.ndarray:
        """The bootstrap of all rows, [draws, rows]."""
        return resampled(self.seeds, self.weights)

    def interval(self, first: int, second: int) -> tuple[float, float]:
        """The interval of the first row's lead over the second."""
        if few(self.seeds):
            return student([[own[:, first] - own[:, second] for own in s] for s in self.seeds], self.weights)
        return ends(self._drawn[:, first] - self._drawn[:, second])


def _places(titles: Sequence[str], leads: _Leads, means: np.ndarray, ranks: np.ndarray) -> tuple[RankedPlace, ...]:
    order = np.argsort(-means, kind="stable")
    out = []
    for k, i in enumerate(order):
        low, high = leads.interval(order[0], i)
        out.append(RankedPlace(titles[i], k + 1, float(means[i]), low, high, float(ranks[i])))
    return tuple(out)


def _average_ranks(values: Mapping[str, Sequence[np.ndarray]]) -> np.ndarray:
    """Every row's mean rank over streams and seeds; rows with equal means share the mean of their ranks."""
    every = []
    for seeds in values.values():
        for own in seeds:
            means = own.mean(0).round(9)
            every.append([(means > m).sum() + ((means == m).sum() + 1) / 2 for m in means])
    found: np.ndarray = np.mean(every, axis=0)
    return found


def _groups(leads: _Leads, order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The longest runs of places, of rows in order, in which no two rows can be told apart."""

    @functools.cache  # with hundreds of rows, the same two meet from many starts
    def apart(i: int, j: int) -> bool:
        return told_apart(*leads.interval(order[i], order[j]))

    out: list[tuple[int, int]] = []
    end, count = 0, len(order)
    for start in range(count):
        end = max(end, start)
        while end + 1 < count and not any(apart(i, end + 1) for i in range(start, end + 1)):
            end += 1
        if end > start and (not out or end > out[-1][1]):
            out.append((start, end))
    return tuple(out)
