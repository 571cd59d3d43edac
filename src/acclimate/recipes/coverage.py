"""How much of the papers is reproduced: of their published accuracies, how many have ours beside them, and how near.

A published accuracy counts once, whatever number of recipes compares with it. Ours counts where it was measured at
paper scale, with the rounds and the data of its recipe. Where several files hold a number, the recipe of the table
itself goes before other recipes, then the latest (`written`), then the one with more seeds. What was converted from
records that are older than the recipes is of an earlier setting: a number that stands there alone counts as not
measured, and is shown. What a `released-*` recipe measured, which follows released code where it differs from the
paper's text, stands apart: it never takes the place of another number, and is counted beside it. A cell that the text's
recipe has too is no other reading, and counts as that recipe's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from .. import store
from ..ops import layout
from . import needs, published
from .pages import NEAR
from .record import Cell, Derived, Recipe
from .results import RESULT_SCHEMA

COVERAGE_SCHEMA = "acclimate.coverage/1"
Place = tuple[str, int]
"""A published number: the file of its table, and its place there."""
RELEASED = "/released-"
"""What the names of recipes have that follow released code: `fedicon/released-table1` of `fedicon/table1`."""
State = Literal["near", "far", "earlier", "open", "no data"]
STATES: dict[State, str] = {
    "near": f"within {NEAR} points",
    "far": "measured, further off",
    "earlier": "earlier setting",
    "open": "not measured",
    "no data": "data not here",
}
"""What a published accuracy can be, in words."""


@dataclass(frozen=True)
class Ours:
    """A number of ours at paper scale, with what decides which of several counts."""

    recipe: str
    row: str
    column: str
    mean: float
    by_seed: Mapping[int, float]
    file: str
    converted: bool
    written: str

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.by_seed)

    def rank(self, recipe: str) -> tuple[Any, ...]:
        """The higher, the rather it counts for the table of a recipe."""
        return self.recipe == recipe, self.written, self.seeds, self.file


@dataclass(frozen=True)
class Standing:
    """A published accuracy, and ours beside it."""

    table: str
    fields: Mapping[str, Any]
    theirs: published.Number
    ours: Ours | None
    here: bool
    """Whether the data that it needs is here."""
    released: Ours | None = None
    """Ours as released code has it."""
    earlier: Ours | None = None
    """Ours of an earlier setting, where there is no other."""

    @property
    def difference(self) -> float | None:
        """Ours minus the published number."""
        return self._off(self.ours)

    @property
    def near_as_released(self) -> bool:
        """Whether ours as released code has it is near."""
        off = self._off(self.released)
        return off is not None and abs(off) <= NEAR

    def _off(self, ours: Ours | None) -> float | None:
        return None if ours is None else round(ours.mean - self.theirs.mean, 4)

    @property
    def state(self) -> State:
        """How it stands."""
        if self.difference is None and self.earlier is not None:
            return "earlier"
        if self.difference is None:
            return "open" if self.here else "no data"
        return "near" if abs(self.difference) <= NEAR else "far"


def collected(folder: Path) -> list[Ours]:
    """All numbers below a folder that were measured at paper scale with the rounds and data of their recipe."""
    if not folder.is_dir():
        raise store.RunError(f"{folder} is not a folder; name one that holds results of `acclimate reproduce`")
    out = []
    for path in sorted(folder.rglob("*.json")):
        try:
            body = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(body, dict) and body.get("schema") == RESULT_SCHEMA and body["scale"] == "paper":
            out += [_ours(body, cell, path.relative_to(folder).as_posix()) for cell in body["cells"] if _own(cell)]
    return out


def _own(cell: Mapping[str, Any]) -> bool:
    return bool(cell["percent"]) and not {"rounds", "fraction"} & set(cell)


def _ours(body: Mapping[str, Any], cell: Mapping[str, Any], file: str) -> Ours:
    place, old = (body["recipe"], cell["row"], cell["column"]), "converted" in body
    seeds = cell.get("seeds") or body.get("seeds") or range(len(cell["ours"]))
    by_seed = dict(zip(seeds, cell["ours"], strict=True))
    return Ours(*place, cell["mean"], by_seed, file, old, body.get("written", ""))


@cache
def cells(recipe: Recipe) -> tuple[Cell | Derived, ...]:
    """The cells of a recipe at paper scale, made once."""
    return tuple(recipe.cells("paper"))


@cache
def places(recipe: Recipe) -> Mapping[tuple[str, str], Place]:
    """Rows and columns of a recipe whose number the paper prints, and where it stands."""
    out = {}
    for cell in cells(recipe):
        file = cell.table or recipe.published
        place = published.place(file, cell.key) if file and cell.key is not None else None
        if file and place is not None:
            out[cell.row, cell.column] = (file, place)
    return out


def standings(recipes: Iterable[Recipe], found: Iterable[Ours], have: Collection[str]) -> list[Standing]:
    """Every published accuracy. `have` names the data that is here (see inventory.py)."""
    beside, released, earlier, by_recipe = (defaultdict[Any, list[Ours]](list) for _ in range(4))
    here, known = set[Place](), set[Place]()
    for number in found:
        by_recipe[number.recipe].append(number)
    named = {recipe.name: recipe for recipe in recipes}
    for recipe in named.values():
        at = places(recipe)
        known |= set(at.values())
        here |= {at[c] for c in runnable(recipe, have) if c in at}
        text = named.get(recipe.name.replace(RELEASED, "/"))
        same = _shared(recipe, text) if text is not None and RELEASED in recipe.name else set()
        for number in by_recipe.get(recipe.name, ()):
            if (where := (number.row, number.column)) in at:
                of = released if RELEASED in number.recipe and where not in same else beside
                (earlier if number.converted else of)[at[where]].append(number)
    out = []
    for table in published.tables():
        for i, row in published.accuracies(table):
            place = (table, i)
            ours = _first(beside.get(place, ()), table)
            other = _first(released.get(place, ()), table.replace("/", RELEASED))
            old = _first(earlier.get(place, ()), table) if ours is None else None
            # what has no recipe is not measured for another reason than missing data
            there = place in here or place not in known or any(n is not None for n in (ours, other, old))
            fields = {k: v for k, v in row.items() if k not in ("mean", "std", "doubt")}
            out.append(Standing(table, fields, published.number(row), ours, there, other, old))
    return out


def _shared(recipe: Recipe, text: Recipe) -> set[tuple[str, str]]:
    """Rows and columns of a recipe whose cell, with its training and its test, is that of another recipe too."""
    own = {(c.row, c.column): c for c in cells(text) if isinstance(c, Cell)}
    return {(c.row, c.column) for c in cells(recipe) if isinstance(c, Cell) and own.get((c.row, c.column)) == c}


def _first(some: Iterable[Ours], recipe: str) -> Ours | None:
    """The number that counts for a table, whose own recipe this is."""
    return max(some, key=lambda o: o.rank(recipe), default=None)


def runnable(recipe: Recipe, have: Collection[str]) -> set[tuple[str, str]]:
    """Rows and columns of a recipe whose data is here, those derived from others included."""
    there = {(c.row, c.column) for c in cells(recipe) if isinstance(c, Cell) and needs.fitted(c, have)[0] is not None}
    derived = [c for c in cells(recipe) if isinstance(c, Derived)]
    return there | {(c.row, c.column) for c in derived if all((c.row, part) in there for part in c.of)}


@dataclass(frozen=True)
class Count:
    """How many published accuracies of a table, a paper, or all: their states, and the data that they need."""

    name: str
    states: Mapping[State, int]
    data: str = ""
    released: int = 0
    """Of those further off, how many are near as released code has them."""

    @property
    def published(self) -> int:
        """All."""
        return sum(self.states.values())

    @property
    def here(self) -> int:
        """Those that could be measured, or were."""
        return self.published - self.states["no data"]

    @property
    def measured(self) -> int:
        """Those with ours beside them."""
        return self.states["near"] + self.states["far"]

    @property
    def either(self) -> int:
        """Of those measured, how many are near so or as released code has them."""
        return self.states["near"] + self.released


def counted(name: str, some: Collection[Standing], data: str = "") -> Count:
    """The states of some standings."""
    released = sum(s.state == "far" and s.near_as_released for s in some)
    return Count(name, {state: sum(s.state == state for s in some) for state in STATES}, data, released)


def counts(found: Sequence[Standing], recipes: Iterable[Recipe]) -> list[Count]:
    """A line per table in the order of the papers, one per paper after its tables, and one over all."""
    needed: dict[str, dict[str, None]] = {}
    for recipe in recipes:
        for file in dict.fromkeys(f for f, _ in places(recipe).values()):
            needed.setdefault(file, {}).update(dict.fromkeys(needs.wanted(_behind(recipe, file), ())))
    order = {paper: i for i, paper in enumerate(dict.fromkeys(r.paper for r in recipes))}
    tables = sorted(dict.fromkeys(s.table for s in found), key=lambda t: (order.get(_paper(t), 99), _number(t)))
    out: list[Count] = []
    for paper in dict.fromkeys(_paper(t) for t in tables):
        own = [t for t in tables if _paper(t) == paper]
        out += [counted(t, [s for s in found if s.table == t], ", ".join(needed.get(t, ()))) for t in own]
        out.append(counted(paper, [s for s in found if _paper(s.table) == paper]))
    return [*out, counted("all", found)]


def _behind(recipe: Recipe, file: str) -> list[Cell | Derived]:
    """The cells of a recipe that a table's numbers stand beside, and those that these are made of."""
    at = {place for place, (of, _) in places(recipe).items() if of == file}
    derived = [c for c in cells(recipe) if isinstance(c, Derived) and (c.row, c.column) in at]
    at |= {(c.row, column) for c in derived for column in c.of}
    return [c for c in cells(recipe) if (c.row, c.column) in at]


def _paper(table: str) -> str:
    return table.partition("/")[0]


def _number(table: str) -> tuple[int, str]:
    digits = "".join(c for c in table if c.isdigit())
    return int(digits or 99), table


HEAD = ("table", "published", "data here", "measured", f"within {NEAR} points", "or as released", "earlier", "data")


def line(count: Count) -> tuple[str, ...]:
    """A count in words: shares of what could be measured, and of what was."""
    measured = count.measured
    pairs = (measured, count.here), (count.states["near"], measured), (count.either, measured)
    shares = [f"{n} ({100 * n / of:.0f} %)" if of else str(n) for n, of in pairs]
    earlier = str(count.states["earlier"] or "")
    return count.name, str(count.published), str(count.here), *shares, earlier, count.data


def plain(found: Sequence[Count]) -> str:
    """The counts as text for a terminal."""
    return "\n".join(layout.lined([HEAD, *map(line, found)], layout.room()))


def markdown(found: Sequence[Count]) -> str:
    """The counts as a Markdown table."""
    bold = [tuple(f"**{c}**" if c else c for c in line(n)) if "/" not in n.name else line(n) for n in found]
    return "\n".join(layout.table(HEAD, bold))


def as_json(found: Sequence[Standing], recipes: Sequence[Recipe], data: Sequence[str]) -> dict[str, Any]:
    """The counts, and every published accuracy with ours."""
    return {
        "schema": COVERAGE_SCHEMA,
        "data": list(data),
        "counts": [_count_json(c) for c in counts(found, recipes)],
        "numbers": [_number_json(s) for s in found],
    }


def _count_json(count: Count) -> dict[str, Any]:
    sizes = {"published": count.published, "here": count.here, "measured": count.measured}
    states = {str(state): number for state, number in count.states.items()}
    return {"name": count.name, **sizes, **states, "near or as released": count.either}


def _number_json(standing: Standing) -> dict[str, Any]:
    ours, other, old = standing.ours, standing.released, standing.earlier
    return {
        "table": standing.table,
        **standing.fields,
        "published": standing.theirs.mean,
        "doubt": standing.theirs.doubt,
        "ours": None if ours is None else ours.mean,
        "difference": standing.difference,
        "state": standing.state,
        "file": None if ours is None else ours.file,
        "earlier": old and {"ours": old.mean, "file": old.file},
        "as released": other and {"ours": other.mean, "near": standing.near_as_released, "file": other.file},
    }
