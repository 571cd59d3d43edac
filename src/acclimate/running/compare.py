"""Which of two methods is better, and is that more than chance: paired differences over clients and seeds.

`ranked` does the same for many.

Both sides were tested on the same clients with the same splits, so what counts is every client's own difference. The
interval is a bootstrap over seeds and, anew for every seed that is drawn, over its clients (percentiles of 10,000
draws); of fewer than ten numbers in all it is Student's. Where both runs were kept with `analysis=true`, the best
number over all rounds is given too, and labelled: it was chosen on test data.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import store
from ..eval.frames import data_frame
from ..eval.paired import DRAWS, LEVEL, Difference, PerSeed, difference, interval
from ..eval.ranking import RankedRow, Ranking, listed, rank
from ..eval.same_stream import apart, first_alike
from ..eval.table import ran_where, row_names
from ..ops import layout
from . import cards, chosen

SCHEMA = "acclimate.comparison/1"
SELECTIONS = ("last", "validation")
Cards = Mapping[str, Mapping[str, Any]]
"""What names the examples of streams, by the streams' names."""
__all__ = ["Comparison", "Difference", "NotTwo", "Side", "compare", "compared", "difference", "interval", "ranked"]
__all__ += ["sides"]


class NotTwo(ValueError):
    """The runs hold more rows than two, or fewer, and nobody named two of them."""


@dataclass(frozen=True)
class Comparison:
    """Two sides and their differences, stream by stream."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    best: Mapping[str, tuple[float, float]]
    """Best accuracy over all rounds of both sides by stream: chosen on test data, so an upper bound and no result."""
    left_out: tuple[str, ...] = ()
    """Streams that both have under one name, but not with the same examples."""
    not_shared: Mapping[str, str] = field(default_factory=dict)
    """Streams that one side has alone, or with other seeds, and who has them with which."""
    choices: tuple[str, ...] = ()
    """Where a strategy chose the adapters: what it chose on every stream, and its gap to the oracle."""
    select: str | None = None
    """That strategy."""

    def sentences(self, selection: str = "last") -> list[str]:
        """The result in plain words, a sentence per stream."""
        return [self._sentence(d) for d in self.differences if d.selection == selection]

    def _sentence(self, d: Difference) -> str:
        by = f"{100 * abs(d.mean):.1f} points {'above' if d.mean > 0 else 'below'}"
        if not d.differs and abs(d.mean) < 0.0005:
            by = "level with"
        text = f"On {d.stream}, {self.first} is {by} {self.second} "
        text += f"({100 * d.first:.1f} against {100 * d.second:.1f} %; 95 % interval "
        text += f"{100 * d.low:+.1f} to {100 * d.high:+.1f}): "
        if not d.differs:
            return text + "no difference can be told from chance."
        share = (d.better if d.mean > 0 else 1 - d.better) - d.equal / 2
        text += f"more than chance, and {'better' if d.mean > 0 else 'worse'} for {100 * share:.0f} % of clients"
        return text + (f", equal for {100 * d.equal:.0f} %." if d.equal else ".")

    def caveat(self) -> str | None:
        """What the numbers do not cover."""
        text = []
        if any(d.seeds < 2 for d in self.differences):
            text.append("One seed: the interval covers the choice of clients, not that of splits and initial weights.")
        if self.left_out:
            text.append(f"Left out, because the two were tested on different examples: {', '.join(self.left_out)}.")
        for who in dict.fromkeys(self.not_shared.values()):
            text.append(f"Left out: {listed([s for s, w in self.not_shared.items() if w == who])}, {who}.")
        return " ".join(text) or None

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(d) | {"mean": d.mean, "told_from_chance": d.differs} for d in self.differences]

    def to_dataframe(self) -> Any:
        """A pandas data frame, a row per stream and selection; `first` and `second` are the sides' accuracies."""
        return data_frame(self._rows())

    def to_json(self) -> str:
        """All numbers."""
        body = {"schema": SCHEMA, "first": self.first, "second": self.second, "level": LEVEL, "draws": DRAWS}
        body |= {"differences": self._rows(), "best_over_rounds_on_test_data": self.best, "left_out": self.left_out}
        picked = {"select": self.select, "choices": self.choices} if self.select else {}
        return json.dumps(body | {"not_shared": dict(self.not_shared)} | picked, indent=1) + "\n"

    def to_markdown(self) -> str:
        """A table: a row per stream and selection."""
        head = ["stream", "round", self.first, self.second, "difference", "95 % interval", "seeds x clients"]
        return "\n".join(layout.table(head, self.cells()))

    def cells(self) -> list[list[str]]:
        """The rows of the table as text."""
        rows = []
        for d in self.differences:
            mean, interval = f"{100 * d.mean:+.1f}", f"{100 * d.low:+.1f} to {100 * d.high:+.1f}"
            least, most = min(d.per_seed), max(d.per_seed)
            counts = f"{d.seeds} x {least}" + f" to {most}" * (most > least)
            both = f"{100 * d.first:.1f}", f"{100 * d.second:.1f}"
            rows.append([d.stream, d.selection, *both, mean, interval, counts])
        for stream, (a, b) in self.best.items():
            label = "best over rounds, chosen on test data"
            rows.append([stream, label, f"{100 * a:.1f}", f"{100 * b:.1f}", f"{100 * (a - b):+.1f}", "-", "-"])
        return rows


@dataclass(frozen=True)
class Side:
    """One row of the runs' tables: a method with its personaliser and adapter, over all seeds."""

    name: str
    adapter: str
    cells: Mapping[tuple[str, str], PerSeed]
    """By stream and selection."""
    data: Mapping[int, Mapping[str, str]]
    """The hashes of the examples and of every split, by seed."""
    streams: Mapping[int, Cards]
    """The card of every stream, by seed."""
    curves: Mapping[int, Mapping[str, Sequence[float]]]
    """Accuracy at every evaluated round, by seed and stream."""
    doubt: str | None = None
    """Why its numbers cannot be used: two runs of one seed that do not agree."""
    choices: tuple[Mapping[str, Any], ...] = ()
    """What a strategy chose, where it chose the adapter."""

    @property
    def title(self) -> str:
        """How sentences call it."""
        adapter = f"what {self.adapter} chose" if self.choices else self.adapter
        return self.name if adapter == "none" else f"{self.name} with {adapter}"


def sides(paths: Iterable[Path], select: str | None = None) -> list[Side]:
    """Every row of every finished run at or below these folders, and those whose adapter a strategy chose."""
    runs = [folder.load() for path in paths for folder in store.find_runs(path) if folder.finished]
    chosen.check(runs, select)
    rows = [(row, run) for run in runs for row in (*run["results"]["table"], *chosen.rows_of(run, select))]
    found: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
    for name, (row, run) in zip(_names([r for r, _ in rows]), rows, strict=True):
        found.setdefault((name, row["adapter"]), []).append((row, run))
    return [_side(name, adapter, members) for (name, adapter), members in found.items()]


def _names(rows: Sequence[Any]) -> list[str]:
    """The rows' names. Where a run was computed is no part of them: seeds of several machines are those of one row,
    unless one seed was computed in several ways."""
    bare: list[Any] = [{**r, "settings": [s for s in r["settings"] if not ran_where(s)]} for r in rows]
    anywhere = row_names(bare)
    ways: dict[Any, set[tuple[str, ...]]] = {}
    for name, r in zip(anywhere, rows, strict=True):
        key = (name, r["adapter"], r["stream"], r["selection"], r["seed"])
        ways.setdefault(key, set()).add(tuple(filter(ran_where, r["settings"])))
    several = {key[:2] for key, own in ways.items() if len(own) > 1}
    every = zip(row_names(rows), anywhere, rows, strict=True)
    return [whole if (name, r["adapter"]) in several else name for whole, name, r in every]


def _side(name: str, adapter: str, members: Sequence[tuple[Any, Any]]) -> Side:
    """One side of its rows and their runs; of a stream and seed the first run counts: its numbers, hashes and curve."""
    cells: dict[tuple[str, str], dict[int, list[float]]] = {}
    data: dict[int, dict[str, str]] = {}
    streams: dict[int, dict[str, Mapping[str, Any]]] = {}
    curves: dict[int, dict[str, list[float]]] = {}
    counted: dict[tuple[str, int], Any] = {}
    choices = []
    for row, run in members:
        stream, seed = row["stream"], row["seed"]
        if counted.setdefault((stream, seed), run) is run:
            cells.setdefault((stream, row["selection"]), {})[seed] = row["per_client"]
            data.setdefault(seed, cards.data(run))
            streams.setdefault(seed, {}).update(cards.stream(run, stream))
            curves.setdefault(seed, {})[stream] = cards.curve(run, adapter, stream)
            choices += [row] if "gap" in row else []
    return Side(name, adapter, cells, data, streams, curves, _doubt(members), tuple(choices))


def _doubt(members: Sequence[tuple[Any, Any]]) -> str | None:
    """Words on the first two runs of one seed that do not agree; None where all do.

    Runs of one name have the same settings, as far as older versions noted them; other accuracies give the rest away.
    """
    first: dict[Any, tuple[Any, Any]] = {}
    for row, run in members:
        seed, stream = row["seed"], row["stream"]
        _, earlier = first.setdefault(seed, (row, run))
        twin, twin_run = first.setdefault((seed, stream, row["selection"]), (row, run))
        if others := _apart(cards.data(earlier), cards.data(run)):
            return _said_twice(seed, earlier, run, f"on different data (not the same: {', '.join(others)})")
        if _unlike(cards.stream(twin_run, stream), cards.stream(run, stream)):
            return _said_twice(seed, twin_run, run, f"on different examples of {stream}")
        if twin["per_client"] != row["per_client"]:
            return _said_twice(seed, twin_run, run, f"with different accuracies on {stream}")
    return None


def _said_twice(seed: int, first: Any, second: Any, how: str) -> str:
    return f"seed {seed} was run in {first['path']} and in {second['path']}, {how}; give only one of these folders"


def _apart(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The names under which two sides have different hashes."""
    return [name for name in first if name in second and first[name] != second[name]]


def _unlike(first: Cards, second: Cards) -> list[str]:
    """The streams of one name whose examples differ by more than another machine's rounding."""
    return [name for name in first if name in second and apart(first[name], second[name])]


def compare(*runs: Path | str, rows: Sequence[str] = (), select: str | None = None) -> Comparison:
    """Compare two rows of finished runs, given as run folders or folders of them.

    `rows` names the two where the folders hold more: `method`, `method+personal`, or either with `/adapter`. Without
    it they are the only two, or the only two without adaptation. `select` names a strategy: methods are then compared
    with what it chose for them in their runs, and a lone one with itself without adaptation.
    """
    found = sides((Path(r) for r in runs), select)
    two = [_named(found, row, select or "none") for row in rows] if rows else _only(found, select)
    if len(two) != 2:
        known = ", ".join(f"{s.name}/{s.adapter}" for s in found) or "none"
        raise NotTwo(
            f"rows={list(rows)}: a comparison is of two rows, and these runs hold {known}; "
            "name two of them (rows=, or --row twice)"
        )
    return replace(compared(*two), select=select)


def ranked(*runs: Path | str, selection: str = "last", select: str | None = None) -> Ranking | None:
    """All rows of finished runs, ranked by their mean over streams; None unless two of them can be paired."""
    known: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    return rank([_entry(side, selection, known) for side in sides((Path(r) for r in runs), select)])


def _entry(side: Side, selection: str, known: dict[tuple[int, str], list[Mapping[str, Any]]]) -> RankedRow:
    """A side as a ranking takes it; `known` are the streams that came before, by seed and name."""
    cells = {stream: own for (stream, how), own in side.cells.items() if how == selection}
    tested = {
        (seed, stream): (
            *sorted(side.data[seed].items()),
            first_alike(known.setdefault((seed, stream), []), side.streams[seed].get(stream, {})),
        )
        for stream, own in cells.items()
        for seed in own
    }
    return RankedRow(side.title, cells, tested, side.doubt)


def _only(found: list[Side], select: str | None) -> list[Side]:
    """The sides that are compared where nobody names them."""
    plain, picked = [s for s in found if s.adapter == "none"], [s for s in found if s.choices]
    if select is None:
        return found if len(found) <= 2 else plain
    return picked if len(picked) != 1 else [*picked, *(s for s in plain if s.name == picked[0].name)]


def _named(found: Sequence[Side], row: str, usual: str) -> Side:
    matches = [s for s in found if row in (s.name, f"{s.name}/{s.adapter}", f"{s.name} with {s.adapter}")]
    plain = [s for s in matches if s.adapter == usual]
    if len(matches) != 1 and len(plain) != 1:
        known = [f"{s.name}/{s.adapter}" for s in found]
        near = [] if matches else difflib.get_close_matches(row, [*(s.name for s in found), *known], n=1)
        hint = f" did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"rows: {row!r} names {len(matches)} rows;{hint} these runs hold {', '.join(known) or 'none'}")
    return matches[0] if len(matches) == 1 else plain[0]


def compared(first: Side, second: Side) -> Comparison:
    """The comparison of two sides; refuses runs on other data, and leaves out streams of other examples."""
    for side in (first, second):
        if side.doubt:
            raise ValueError(f"{side.title}: {side.doubt}")
    seeds = sorted(first.data.keys() & second.data.keys())
    for seed in seeds:
        if others := _apart(first.data[seed], second.data[seed]):
            raise ValueError(
                f"seed {seed}: {first.title} and {second.title} were run on different data "
                f"(not the same: {', '.join(others)}); only the same splits can be paired"
            )
    streams = list(dict.fromkeys(s for s, _ in first.cells if any(s == t for t, _ in second.cells)))
    if not streams:
        raise ValueError(f"{first.title} and {second.title} have no stream in common")
    unlike = {name for seed in seeds for name in _unlike(first.streams[seed], second.streams[seed])}
    left_out, streams = tuple(s for s in streams if s in unlike), [s for s in streams if s not in unlike]
    if not streams:
        raise ValueError(
            f"{first.title} and {second.title} were tested on different examples in every stream that both have "
            f"({', '.join(left_out)}); only the same can be paired"
        )
    both = [(s, how) for s in streams for how in SELECTIONS if (s, how) in first.cells and (s, how) in second.cells]
    alike = [pair for pair in both if first.cells[pair].keys() == second.cells[pair].keys()]
    # where none is, the first is refused, with both sides' seeds
    found = tuple(difference(*pair, first.cells[pair], second.cells[pair]) for pair in alike or both)
    words = tuple(w for side in (first, second) for w in chosen.words(side.name, side.choices))
    gone, kept = _not_shared(first, second, both, alike), [s for s in streams if any(s == t for t, _ in alike)]
    return Comparison(first.title, second.title, found, _best(first, second, kept), left_out, gone, words)


Pairs = Sequence[tuple[str, str]]
"""Streams, each with a selection."""


def _not_shared(first: Side, second: Side, both: Pairs, alike: Pairs) -> dict[str, str]:
    """Streams that cannot be paired because one side lacks them, or lacks a seed of them: an adapter that diverged has
    no number there, however often it is run. Who has them, by stream."""
    out: dict[str, str] = {}
    for side, other in ((first, second), (second, first)):
        theirs = {s for s, _ in other.cells}
        out |= {s: f"which only {side.title} has" for s, _ in side.cells if s not in theirs}
    for pair in (p for p in both if p not in alike):
        told = [f"{side.title} has with {_seeds(side.cells[pair])}" for side in (first, second)]
        stream, how = pair
        name = stream if how == SELECTIONS[0] else f"{stream} at the validation-selected round"
        out[name] = f"which {told[0]}, and {told[1]}"
    return out


def _seeds(own: PerSeed) -> str:
    """`seed 0`, `seeds 0 and 2`."""
    return f"seed{'s' * (len(own) != 1)} {listed([str(n) for n in sorted(own)])}"


def _best(first: Side, second: Side, streams: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Of both sides, the best round's accuracy averaged over seeds, for streams whose curve was kept."""
    out = {}
    for stream in streams:
        both = [_peak(side, stream) for side in (first, second)]
        if None not in both:
            out[stream] = (float(both[0] or 0.0), float(both[1] or 0.0))
    return out


def _peak(side: Side, stream: str) -> float | None:
    tops = [max(curves.get(stream, ()), default=None) for curves in side.curves.values()]
    known = [t for t in tops if t is not None]
    return sum(known) / len(known) if known and len(known) == len(tops) else None
