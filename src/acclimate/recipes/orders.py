"""What the papers claim first of all: which method is above which. Judged by stored results.

An order is data: a recipe, columns of it, and rows from the highest to the lowest. A row's number is its mean over the
columns that the first row was measured in; a row that lacks one of them is left out. The published numbers are means
over the same columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
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
_SKEWED = tuple(f"{s} {b}" for s in SHIFTS[1:] for b in ("single", "multi"))
ORDERS = (
    *(
        Order("fedthe/table1", (f"{where} mixture",), ("FedTHE+", "FedTHE", OTHERS), f"mixture, {where}")
        for where in ("dir(0.1)", "dir(1.0)")
    ),
    Order("fedtta/table1", ("CIFAR-10 test",), ("FedTTA++", "FedTTA"), "new clients of CIFAR-10", ties=True),
    Order("fedtta/table1", ("CIFAR-10 test",), ("FedTTA", "TENT"), "new clients of CIFAR-10"),
    Order("fedtta/table1", ("CIFAR-10 test",), ("FedTTA", "FedAvg"), "new clients of CIFAR-10"),
    *(Order(f"fedicon/{table}", columns, ("FedICON", OTHERS), what) for table, (columns, what) in _ICON.items()),
    Order("fedspl/table1", PACS, ("FedSPL", OTHERS), "PACS"),
    *(
        Order("fedspl/pacs", tuple(c.removeprefix("PACS ") for c in PACS), ("FedSPL", row), "PACS, with controls")
        for row in ("FedAvg", "Tent", "MBSL")
    ),
    *(
        Order("fedpcl/released", tuple(f"{s} {d}" for s in SHIFTS), ("FedPCL", OTHERS), f"{d}, published classifier")
        for d in _SETS
    ),
    *(
        Order(
            "fedpcl/table2", tuple(f"{b} {d}" for d in DIGITS), ("FedPCL", OTHERS), f"Digit-5, {b}, ordinary classifier"
        )
        for b in ("single", "multi")
    ),
    *(
        Order("fedpcl/table11", tuple(f"{s} {d}" for s in _SKEWED), ("FedPCL", OTHERS), f"{d}, ordinary classifier")
        for d in _SETS
    ),
)
"""The first claims of the five papers."""


@dataclass(frozen=True)
class Judged:
    """An order, and how it stands."""

    order: Order
    holds: bool | None
    """None: not measured."""
    ours: Mapping[str, float]
    """By row, from the highest that the order names."""
    theirs: Mapping[str, float]
    columns: tuple[str, ...]
    """The columns that the numbers are means over."""

    @property
    def verdict(self) -> str:
        """In words."""
        return "not measured" if self.holds is None else "holds" if self.holds else "does not hold"


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
    ours = {
        r: fmean(best[r, c].mean for c in columns) for r in rows if columns and all((r, c) in best for c in columns)
    }
    theirs = {r: fmean(printed[r, c] for c in columns) for r in ours if all((r, c) in printed for c in columns)}
    return Judged(order, _holds(order, named, ours), ours, theirs, columns)


def _holds(order: Order, named: list[str], ours: Mapping[str, float]) -> bool | None:
    others = [value for row, value in ours.items() if row not in named]
    if any(row not in ours for row in named) or (OTHERS in order.rows and not others):
        return None
    chain = [ours[row] for row in named] + ([max(others)] if others else [])
    pairs = zip(chain, chain[1:], strict=False)
    return all(a >= b if order.ties else a > b for a, b in pairs)


def line(found: Judged) -> str:
    """`holds: fedthe/table1, mixture: FedTHE+ > FedTHE ...: 71.8 (72.9), ...`, the others from the highest."""
    named = [r for r in found.order.rows if r in found.ours]
    rest = sorted((r for r in found.ours if r not in named), key=lambda r: -found.ours[r])
    shown = [_number(found, row) for row in (*named, *rest[:2])]
    if rest[2:]:
        shown.append(f"{len(rest) - 2} more below")
    numbers = f": {', '.join(shown)}" if shown else ""
    part = f" (mean of {len(found.columns)} of {len(found.order.columns)} columns)" if len(found.columns) > 1 else ""
    return f"{found.verdict}: {found.order.recipe}, {found.order.what}: {found.order.says}{numbers}{part}"


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
        "columns": list(found.columns),
        "ours": {row: round(value, 4) for row, value in found.ours.items()},
        "published": {row: round(value, 4) for row, value in found.theirs.items()},
    }
