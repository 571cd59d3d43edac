"""The table of choices: what each strategy chose on each stream, its accuracy, and the gap to the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from ..ops.layout import markdown

By = Literal["stream", "client"]
"""Whether all clients of a stream get one candidate, or each chooses its own."""
ORACLE = "oracle (test labels)"
"""How tables call the oracle, so that nobody takes it for a result."""


class Pick(TypedDict):
    """What one strategy chose on one stream. Accuracies are fractions."""

    stream: str
    strategy: str
    by: By
    chosen: dict[str, int]
    """The candidates that were chosen, and for how many clients."""
    accuracy: float
    """The mean over clients, each with the candidate that was chosen for it."""
    gap: float
    """How far that is below the oracle, which chooses by the stream's labels."""
    per_client: list[float]


@dataclass(frozen=True)
class Selection:
    """Choices of strategies, and what every candidate would have reached; `str` shows the choices in points."""

    rows: tuple[Pick, ...] = ()
    candidates: tuple[Mapping[str, Any], ...] = ()
    """stream, adapter, accuracy, and `scores`: what each strategy thinks of it, higher being better."""
    left_out: tuple[str, ...] = ()
    """Candidates and streams that nothing was chosen of, and why."""

    def __add__(self, other: Selection) -> Selection:
        return Selection(self.rows + other.rows, self.candidates + other.candidates, (*self.left_out, *other.left_out))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON."""
        return asdict(self)

    def strategies(self) -> list[str]:
        """The strategies, in order of appearance."""
        return list(dict.fromkeys(r["strategy"] for r in self.rows))

    def streams(self) -> list[str]:
        """The streams, in order of appearance."""
        return list(dict.fromkeys(r["stream"] for r in self.rows))

    def accuracy(self, strategy: str, stream: str | None = None) -> float:
        """The mean accuracy of a strategy's choices, over seeds, on one stream or over all, which count alike; an error
        where there is none."""
        return self._mean("accuracy", strategy, stream)

    def gap(self, strategy: str, stream: str | None = None) -> float:
        """The mean distance of a strategy's choices from the oracle's, on one stream or over all."""
        return self._mean("gap", strategy, stream)

    def overall(self, strategy: str) -> str:
        """The candidate with the highest score of a strategy, mean over all streams: the first of equals.

        Streams count alike, whatever the number of seeds that have a score on them. Candidates that are missing on a
        stream, because their answers were not finite there, are not chosen; where every one is missing somewhere, they
        are compared on the streams that all have, or each on its own where there are none.
        """
        scores: dict[str, dict[str, list[float]]] = {}
        for c in self.candidates:
            value = c["scores"].get(strategy)
            if value is not None:
                scores.setdefault(c["adapter"], {}).setdefault(c["stream"], []).append(value)
        if not scores:
            raise KeyError(f"no candidate has a score by {strategy!r}")
        streams = dict.fromkeys(s for own in scores.values() for s in own)
        most = {s: max(len(own.get(s, ())) for own in scores.values()) for s in streams}
        whole = {n: own for n, own in scores.items() if all(len(own.get(s, ())) == most[s] for s in streams)} or scores
        common = [s for s in streams if all(s in own for own in whole.values())]
        known = {name: _average(_average(own[s]) for s in common or own) for name, own in whole.items()}
        return max(known, key=lambda name: known[name])

    def to_markdown(self) -> str:
        """A line per stream and strategy, and one per strategy over all streams; accuracies in per cent."""
        lines = ["| stream | strategy | chosen | accuracy | gap to the oracle |", "|---|---|---|---:|---:|"]
        for stream in self.streams():
            lines += [self._line(stream, s, _chosen(self._of(s, stream))) for s in self.strategies()]
        lines += [self._line(None, s, "") for s in self.strategies()]
        return "\n".join(lines)

    def _line(self, stream: str | None, strategy: str, chosen: str) -> str:
        name = ORACLE if strategy == "oracle" else strategy
        accuracy, gap = 100 * self.accuracy(strategy, stream), 100 * self.gap(strategy, stream)
        return markdown([stream or "mean", name, chosen, f"{accuracy:.1f}", f"{gap:.1f}"])

    def _of(self, strategy: str, stream: str | None) -> list[Pick]:
        return [r for r in self.rows if r["strategy"] == strategy and stream in (None, r["stream"])]

    def _mean(self, field: Literal["accuracy", "gap"], strategy: str, stream: str | None) -> float:
        found: dict[str, list[float]] = {}
        for r in self._of(strategy, stream):
            found.setdefault(r["stream"], []).append(r[field])
        if not found:
            raise KeyError(f"no choice by {strategy!r} on {stream or 'any stream'}")
        return _average(map(_average, found.values()))

    def __str__(self) -> str:
        return self.to_markdown()


def _average(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _chosen(rows: Iterable[Pick]) -> str:
    """`tent x2, bn`: candidates by how many clients, or how many seeds, chose them; the most often chosen first."""
    every: dict[str, int] = {}
    for row in rows:
        for name, clients in row["chosen"].items():
            every[name] = every.get(name, 0) + (clients if row["by"] == "client" else 1)
    ranked = sorted(every.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} x{n}" if n > 1 else name for name, n in ranked)
