"""What the papers claim first of all: which method is above which. Judged by stored results.

An order is data: a recipe, columns of it, and rows from the highest to the lowest. A row's number is its mean over the
columns that the first row was measured in; a row that lacks one of them is left out. The published numbers are means
over the same columns. Neighbours are compared over the seeds that both have. An order does not hold where two of them
are in the other order by more than the standard deviation of their difference over seeds; it holds where all of them
are in order by more than that; else neither is said. The pair that decides is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from . import published
from .coverage import Ours, cells, places
from .record import Recipe

OTHERS = "every other row"
"""Stands for all rows that the paper prints and the order does not name."""


@dataclass(frozen=True)
class Order:
    """A claim of a paper: each row is above the next."""

    recipe: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    """From the highest; the last may be `OTHERS`."""
    what: str
    """Where, in words."""
    ties: bool = False
    """Whether equal numbers are in order too."""

    @property
    def says(self) -> str:
        """`FedTHE+ > FedTHE > every other row`."""
        return (" >= " if self.ties else " > ").join(self.rows)


DIGITS, OFFICE = ("MNIST", "SVHN", "USPS", "Synth", "MNIST-M"), ("Amazon", "Caltech", "DSLR", "Webcam")
PACS = ("PACS Photo", "PACS Art", "PACS Cartoon", "PACS Sketch")
SHIFTS = ("feature shift", "label shift", "both shift")
_ICON: dict[str, tuple[tuple[str, ...], str]] = {
    "table1": (DIGITS, "Digit-5, corrupted"),
    "table7": (DIGITS, "Digit-5, unseen domain"),
    "table5": (OFFICE, "Office-10, corrupted"),
    "table2": (OFFICE, "Office-10, unseen domain"),
}
_SETS = ("Digit-5", "Office-10")
_PACS = {"tenfold": "PACS, with controls, at ten times the rate", "pacs": "PACS, with controls"}
_SKEWED = tuple(f"{s} {b}" for s in SHIFTS[1:] for b in ("single", "multi"))
_CODES = {"released-": "as the published code", "": "ordinary classifier"}
ORDERS = (
    *(
        Order("fedthe/table1", (f"{where} mixture",), ("FedTHE+", "FedTHE", OTHERS), f"mixture, {where}")
        for where in ("dir(0.1)", "dir(1.0)")
    ),
    Order("fedtta/table1", ("CIFAR-10 test",), ("FedTTA++", "FedTTA"), "new clients of CIFAR-10", ties=True),
    Order("fedtta/table1", ("CIFAR-10 test",), ("FedTTA", "TENT"), "new clients of CIFAR-10"),
    Order("fedtta/table1", ("CIFAR-10 test",), ("FedTTA", "FedAvg"), "new clients of CIFAR-10"),
    *(Order(f"fedicon/{table}", columns, ("FedICON", OTHERS), what) for table, (columns, what) in _ICON.items()),
    Order("fedicon/released-table1", DIGITS, ("FedICON", OTHERS), "Digit-5, corrupted, as released code"),
    *(
        Order(f"fedicon/released-{table}", _ICON[table][0], ("FedICON", OTHERS), f"{_ICON[table][1]}, as released code")
        for table in ("table5", "table2")
    ),
    Order("fedspl/table1", PACS, ("FedSPL", OTHERS), "PACS"),
    *(
        Order(f"fedspl/{recipe}", tuple(c.removeprefix("PACS ") for c in PACS), ("FedSPL", row), what)
        for recipe, what in _PACS.items()
        for row in ("FedAvg", "Tent", "MBSL")
    ),
    *(
        Order("fedpcl/released", tuple(f"{s} {d}" for s in SHIFTS), ("FedPCL", OTHERS), f"{d}, published classifier")
        for d in _SETS
    ),
    *(
        Order(f"fedpcl/{t}table2", tuple(f"{b} {d}" for d in DIGITS), ("FedPCL", OTHERS), f"Digit-5, {b}, {how}")
        for t, how in _CODES.items()
        for b in ("single", "multi")
    ),
    *(
        Order(f"fedpcl/{t}table11", tuple(f"{s} {d}" for s in _SKEWED), ("FedPCL", OTHERS), f"{d}, {how}")
        for t, how in _CODES.items()
        for d in _SETS
    ),
)
"""The first claims of the five papers."""


@dataclass(frozen=True)
class Gap:
    """By how much a row is above the next one, and how much that differs over seeds."""

    above: str
    below: str
    margin: float
    """Negative where it is below; over the seeds that both rows have, or where there is none over all."""
    seeds: int
    """Those that both rows have."""
    spread: float | None
    """The standard deviation of the margin over seeds; None where there is at most one."""

    @property
    def told(self) -> bool:
        """Whether the margin is larger than seeds differ, or there is nothing to tell how much they do."""
        return self.spread is None or abs(self.margin) > self.spread

    def in_order(self, ties: bool) -> bool:
        """Whether the first is above the second, or level with it where `ties` are in order too."""
        return self.margin > 0 or (ties and self.margin == 0)

    def strength(self, ties: bool) -> tuple[int, float]:
        """The lower, the rather it decides: what breaks an order comes first, then what cannot be told, by margin."""
        return (0 if not self.in_order(ties) else 2) if self.told else 1, self.margin

    def __str__(self) -> str:
        few = ", one seed" if self.seeds else ", no seed in common"
        over = few if self.spread is None else f" ± {self.spread:.2f} over {self.seeds} seeds"
        return f"{self.above} less {self.below}: {self.margin:.2f}{over}"


@dataclass(frozen=True)
class Judged:
    """An order, and how it stands."""

    order: Order
    gap: Gap | None
    """That which decides; None: not measured."""
    ours: Mapping[str, float]
    """By row, from the highest that the order names."""
    theirs: Mapping[str, float]
    columns: tuple[str, ...]
    """The columns that the numbers are means over."""

    @property
    def holds(self) -> bool | None:
        """Whether the pair that decides is in order, however much its seeds differ. None: not measured."""
        return None if self.gap is None else self.gap.in_order(self.order.ties)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.gap is None:
            return "not measured"
        if not self.gap.told:
            return "within seeds' deviation"
        return "holds" if self.holds else "does not hold"


Seeds = Mapping[int, float]
"""A row's number, by seed."""


def judged(order: Order, recipes: Mapping[str, Recipe], found: Iterable[Ours]) -> Judged:
    """How an order stands by stored numbers."""
    recipe = recipes[order.recipe]
    printed = {at: published.number(published.table(file)["rows"][i]).mean for at, (file, i) in places(recipe).items()}
    own = [o for o in found if o.recipe == order.recipe]
    best: dict[tuple[str, str], Ours] = {}
    for number in sorted(own, key=lambda o: o.rank(order.recipe)):
        best[number.row, number.column] = number
    columns = tuple(c for c in order.columns if (order.rows[0], c) in best)
    named = [r for r in order.rows if r != OTHERS]
    every = dict.fromkeys(c.row for c in cells(recipe))
    rest = [r for r in every if r not in named and any((r, c) in printed for c in order.columns)]
    rows = named + (rest if OTHERS in order.rows else [])
    whole = [r for r in rows if columns and all((r, c) in best for c in columns)]
    ours = {r: fmean(best[r, c].mean for c in columns) for r in whole}
    seeds = {r: _by_seed([best[r, c] for c in columns]) for r in whole}
    theirs = {r: fmean(printed[r, c] for c in columns) for r in ours if all((r, c) in printed for c in columns)}
    return Judged(order, _nearest(order, named, ours, seeds), ours, theirs, columns)


def _by_seed(numbers: list[Ours]) -> Seeds:
    """The mean over columns, for the seeds that all of them have."""
    common = set(numbers[0].by_seed).intersection(*(n.by_seed for n in numbers))
    return {seed: fmean(n.by_seed[seed] for n in numbers) for seed in sorted(common)}


def _nearest(order: Order, named: list[str], ours: Mapping[str, float], seeds: Mapping[str, Seeds]) -> Gap | None:
    """The gap that decides, the nearest to breaking the order; None where a row of it was not measured."""
    others = [row for row in ours if row not in named]
    if any(row not in ours for row in named) or (OTHERS in order.rows and not others):
        return None
    pairs = [*pairwise(named), *((named[-1], row) for row in others)]
    return min((_gap(a, b, ours, seeds) for a, b in pairs), key=lambda gap: gap.strength(order.ties))


def _gap(above: str, below: str, ours: Mapping[str, float], seeds: Mapping[str, Seeds]) -> Gap:
    each = [value - seeds[below][seed] for seed, value in seeds[above].items() if seed in seeds[below]]
    margin = fmean(each) if each else ours[above] - ours[below]
    return Gap(above, below, margin, len(each), stdev(each) if len(each) > 1 else None)


HEAD = ("where", "order", "ours, in brackets the paper's", "nearest pair", "verdict")


def line(found: Judged) -> tuple[str, ...]:
    """An order in words, as `HEAD` says: the rows that it names, and the highest two of the others."""
    named = [r for r in found.order.rows if r in found.ours]
    rest = sorted((r for r in found.ours if r not in named), key=lambda r: -found.ours[r])
    shown = [_number(found, row) for row in (*named, *rest[:2])]
    if rest[2:]:
        shown.append(f"{len(rest) - 2} more below")
    part = f" (mean of {len(found.columns)} of {len(found.order.columns)} columns)" if len(found.columns) > 1 else ""
    where = f"{found.order.recipe}, {found.order.what}"
    return where, found.order.says, ", ".join(shown) + part, str(found.gap or ""), found.verdict


def plain(found: Judged) -> str:
    """`holds: fedthe/table1, mixture: FedTHE+ > FedTHE: FedTHE+ 71.8 (72.9), ...; FedTHE+ less FedTHE: 0.80`."""
    where, says, numbers, gap, verdict = line(found)
    return "; ".join(part for part in (": ".join(w for w in (verdict, where, says, numbers) if w), gap) if part)


def _number(found: Judged, row: str) -> str:
    theirs = f" ({found.theirs[row]:.1f})" if row in found.theirs else ""
    return f"{row} {found.ours[row]:.1f}{theirs}"


def as_json(found: Judged) -> dict[str, Any]:
    """An order with its numbers."""
    order = found.order
    return {
        "recipe": order.recipe,
        "what": order.what,
        "says": order.says,
        "verdict": found.verdict,
        "holds": found.holds,
        "gap": None if found.gap is None else {k: _rounded(v) for k, v in asdict(found.gap).items()},
        "columns": list(found.columns),
        "ours": {row: round(value, 4) for row, value in found.ours.items()},
        "published": {row: round(value, 4) for row, value in found.theirs.items()},
    }


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
