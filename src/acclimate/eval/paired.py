"""Paired differences over clients and seeds, and their intervals.

Two rows of a table were tested on the same clients with the same splits, so what counts is every client's own
difference. The interval is a bootstrap over seeds and, anew for every seed that is drawn, over its clients
(percentiles of 10,000 draws). The draws depend on the numbers of seeds and clients alone: so many rows can share them
(`resampled`), and their intervals are those of every pair by itself.

A bootstrap of few numbers is too sure of itself: where all of two to five clients agree in sign, so does every draw.
Fewer than ten numbers in all have Student's interval instead (`student`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS, LEVEL = 10_000, 0.95
"""Bootstrap draws, and how much of them the interval covers."""
ROUNDING = 1e-9
"""An end of an interval that is nearer to zero than this is zero: sums in another order differ by as much."""
ANYTHING = (-1.0, 1.0)
"""The interval of a difference of which there is one number: of one client with one seed."""
FEW = 10
"""Below so many differences in all the interval is Student's."""
AGREE = 6
"""So few differences that are all the same, and not zero, tell nothing of chance: fewer than so many agree in sign by
chance alone in more than one case of twenty."""
STUDENT = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004)
"""The 97.5 % points of Student's distribution with 1, 2, ... degrees of freedom."""
AT_ONCE = 2_000_000
"""How many clients are drawn at a time, so that large federations fit into memory."""

PerSeed = Mapping[int, Sequence[float]]
"""Accuracy of every client, by seed."""


@dataclass(frozen=True)
class Difference:
    """How far the first side is above the second on one stream, in accuracy (0..1)."""

    stream: str
    selection: str
    first: float
    second: float
    low: float
    high: float
    seeds: int
    clients: int
    """Of all seeds together."""
    better: float
    """Share of clients with whom the first side does better; those with equal accuracy count half."""
    equal: float
    """Share of clients with equal accuracy."""
    per_seed: tuple[int, ...]
    """Clients of every seed: a client without examples does not count."""

    @property
    def mean(self) -> float:
        """The paired difference."""
        return self.first - self.second

    @property
    def differs(self) -> bool:
        """Whether the interval leaves zero out."""
        return told_apart(self.low, self.high)


def told_apart(low: float, high: float) -> bool:
    """Whether an interval leaves zero out."""
    return low > ROUNDING or high < -ROUNDING


def interval(differences: Sequence[Sequence[float]], draws: int = DRAWS) -> tuple[float, float]:
    """An interval of the mean over seeds of the mean over clients; one list of differences per seed.

    A seed that a draw holds twice brings its clients in two draws of their own: the same clients twice would count
    their spread twice. One number alone says nothing of chance: its interval is all that accuracies can differ by.
    """
    own = [[np.asarray(some, dtype=float)] for some in differences]
    return student(own) if few(own) else ends(resampled([[d[:, None]] for (d,) in own], draws=draws)[:, 0])


def ends(drawn: np.ndarray) -> tuple[float, float]:
    """The percentiles of drawn means between which the interval lies."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def few(seeds: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether these clients are too few for a bootstrap; a seed has groups of clients."""
    return sum(len(own) for groups in seeds for own in groups) < FEW


def student(seeds: Sequence[Sequence[np.ndarray]], weights: Sequence[float] = (1.0,)) -> tuple[float, float]:
    """Student's interval of the mean over seeds of the weighted mean over groups of clients, for few differences.

    Differences spread about their group's mean over all seeds, by as much in every group. One number alone, or so few
    that are all the same, have the interval of all that accuracies can differ by.
    """
    mean = sum(w * own.mean() for groups in seeds for own, w in zip(groups, weights, strict=True)) / len(seeds)
    shares = [(w / len(seeds)) ** 2 / len(own) for groups in seeds for own, w in zip(groups, weights, strict=True)]
    groups = [np.concatenate(own) for own in zip(*seeds, strict=True)]
    count, left = sum(map(len, groups)), sum(len(own) - 1 for own in groups)
    if left < 1:
        return ANYTHING
    spread = (sum(((own - own.mean()) ** 2).sum() for own in groups) / left) ** 0.5
    if spread < ROUNDING < abs(mean) and count < AGREE:
        return ANYTHING
    half = STUDENT[left - 1] * spread * sum(shares) ** 0.5
    return max(float(mean - half), ANYTHING[0]), min(float(mean + half), ANYTHING[1])


def resampled(
    seeds: Sequence[Sequence[np.ndarray]], weights: Sequence[float] = (1.0,), draws: int = DRAWS
) -> np.ndarray:
    """The means of many rows [draws, rows] under one and the same bootstrap.

    A seed has groups of clients [clients, rows], which are drawn apart and count by their weights: one group, unless
    streams have different clients. The difference of two columns is the bootstrap of the two rows' paired difference.
    """
    rng = np.random.default_rng(0)
    total = np.zeros((draws, seeds[0][0].shape[1]))
    for _ in seeds:
        picked = rng.integers(0, len(seeds), draws)
        for i, groups in enumerate(seeds):
            places = np.flatnonzero(picked == i)
            for own, weight in zip(groups, weights, strict=True):
                for here, clients in _drawn(rng, places, len(own)):
                    total[here] += weight * _means(own, clients)
    return total / len(seeds)


def _means(own: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """The means of these clients, draw by draw; of many rows by how often each client was drawn, which is quicker."""
    if own.shape[1] == 1:
        means: np.ndarray = own[clients].mean(1)
        return means
    size = len(own)
    flat = (np.arange(len(clients))[:, None] * size + clients).ravel()
    return np.bincount(flat, minlength=len(clients) * size).reshape(-1, size) @ (own / size)


def _drawn(rng: np.random.Generator, places: np.ndarray, clients: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For some of the draws at a time, which clients each has; the numbers are those of one large draw."""
    step = max(AT_ONCE // max(clients, 1), 1)
    for at in range(0, len(places), step):
        here = places[at : at + step]
        yield here, rng.integers(0, clients, (len(here), clients))


def difference(stream: str, selection: str, first: PerSeed, second: PerSeed) -> Difference:
    """The paired difference of two sides; both must have the same seeds with the same clients."""
    if first.keys() != second.keys():
        raise ValueError(
            f"stream {stream}: seeds {sorted(first)} and {sorted(second)} cannot be paired; run both alike"
        )
    for seed in first:
        if len(first[seed]) != len(second[seed]):
            raise ValueError(
                f"stream {stream}, seed {seed}: {len(first[seed])} and {len(second[seed])} clients cannot be paired"
            )
    own = [np.subtract(first[s], second[s]) for s in sorted(first)]
    every = np.concatenate(own)
    low, high = interval([d.tolist() for d in own])
    return Difference(
        stream=stream,
        selection=selection,
        first=float(np.mean([np.mean(first[s]) for s in sorted(first)])),
        second=float(np.mean([np.mean(second[s]) for s in sorted(second)])),
        low=low,
        high=high,
        seeds=len(own),
        clients=len(every),
        better=float(((every > 0) + 0.5 * (every == 0)).mean()),
        equal=float((every == 0).mean()),
        per_seed=tuple(map(len, own)),
    )
