"""Whether a trace of numbers has changed: ADWIN and Page-Hinkley, in plain Python, one number at a time.

They are not records: a detector is what it has seen. `update` says whether a change was found with this number; the
detector then goes on with what came after the change (ADWIN) or afresh (Page-Hinkley).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Detector(Protocol):
    """What finds changes in a trace."""

    def update(self, x: float) -> bool:
        """Take one number more; whether a change was found with it."""
        ...


class ADWIN:
    """Adaptive windowing (Bifet & Gavalda, SDM 2007): drops the older part of its window when the means of two parts
    differ by more than chance explains.

    The window is a list of buckets of 1, 2, 4, ... numbers, at most `most` of a size, so that memory grows with the
    logarithm of its length. Cuts between buckets are tested with every `clock`-th number, by the paper's bound that
    knows the variance, at confidence 1 - `delta`.
    """

    def __init__(self, delta: float = 0.002, clock: int = 4, least: int = 8, most: int = 5) -> None:
        if not 0 < delta < 1:
            raise ValueError(f"ADWIN: delta={delta} must be between 0 and 1")
        self.delta, self.clock, self.least, self.most = delta, clock, least, most
        self.seen = 0
        self.buckets: list[_Bucket] = []
        """Oldest first; sizes fall."""

    @property
    def width(self) -> int:
        """How many numbers the window holds."""
        return sum(b.count for b in self.buckets)

    def update(self, x: float) -> bool:
        """Take one number more; whether the window was cut."""
        if not math.isfinite(x):
            raise ValueError(f"ADWIN: x={x} must be a finite number")
        self.seen += 1
        self.buckets.append(_Bucket(1, x, 0.0))
        self._compress()
        found = False
        while self.seen % self.clock == 0 and self._cut():
            del self.buckets[0]
            found = True
        return found

    def _compress(self) -> None:
        """Where more than `most` buckets have one size, the two oldest of them become one."""
        size = 1
        while True:
            places = [i for i, b in enumerate(self.buckets) if b.count == size]
            if len(places) <= self.most:
                return
            i = places[0]
            self.buckets[i : i + 2] = [self.buckets[i] + self.buckets[i + 1]]
            size *= 2

    def _cut(self) -> bool:
        """Whether somewhere the older and the newer part of the window differ."""
        whole = _total(self.buckets)
        if whole.count < 2 * self.least:
            return False
        level = math.log(2 * math.log(whole.count) / self.delta)
        variance, old = whole.spread / whole.count, _Bucket(0, 0.0, 0.0)
        for bucket in self.buckets[:-1]:
            old = old + bucket
            new = whole.count - old.count
            if old.count < self.least or new < self.least:
                continue
            m = 1 / (1 / old.count + 1 / new)
            bound = math.sqrt(2 / m * variance * level) + 2 / (3 * m) * level
            if abs(old.sum / old.count - (whole.sum - old.sum) / new) > bound:
                return True
        return False


@dataclass(frozen=True)
class _Bucket:
    """Neighbouring numbers, summed up."""

    count: int
    sum: float
    spread: float
    """The sum of squared differences from their mean."""

    def __add__(self, other: _Bucket) -> _Bucket:
        if not self.count or not other.count:
            return self if self.count else other
        apart, count = self.sum / self.count - other.sum / other.count, self.count + other.count
        between = apart**2 * self.count * other.count / count
        return _Bucket(count, self.sum + other.sum, self.spread + other.spread + between)


def _total(buckets: Iterable[_Bucket]) -> _Bucket:
    total = _Bucket(0, 0.0, 0.0)
    for b in buckets:
        total = total + b
    return total


class PageHinkley:
    """Page-Hinkley test (Page, Biometrika 1954): sums up how far numbers lie from their mean so far.

    A change is found where the sum has moved by more than `threshold` from its least (for a rise) or its largest value
    (for a fall), after at least `least` numbers. Moves of up to `delta` per number are allowed for.
    """

    def __init__(self, delta: float = 0.05, threshold: float = 4.0, least: int = 16) -> None:
        if delta < 0 or threshold <= 0:
            raise ValueError(f"PageHinkley: delta={delta} must be at least 0 and threshold={threshold} above 0")
        self.delta, self.threshold, self.least = delta, threshold, least
        self._restart()

    def _restart(self) -> None:
        self.count, self.mean = 0, 0.0
        self.up = self.down = self.lowest = self.highest = 0.0

    def update(self, x: float) -> bool:
        """Take one number more; whether the sum has moved too far, in either direction. It then starts afresh."""
        if not math.isfinite(x):
            raise ValueError(f"PageHinkley: x={x} must be a finite number")
        self.count += 1
        self.mean += (x - self.mean) / self.count
        self.up += x - self.mean - self.delta
        self.down += x - self.mean + self.delta
        self.lowest, self.highest = min(self.lowest, self.up), max(self.highest, self.down)
        moved = max(self.up - self.lowest, self.highest - self.down) > self.threshold
        found = self.count >= self.least and moved
        if found:
            self._restart()
        return found


def alarms(detector: Detector, trace: Iterable[float], before: Iterable[float] = ()) -> list[int]:
    """Where in a trace, counted from 1, changes were found. `before` is taken first, and its alarms are not told."""
    for x in before:
        detector.update(x)
    return [i for i, x in enumerate(trace, 1) if detector.update(x)]
