"""The coverage of the papers as `acclimate reproduce coverage` shows it: text, JSON, a picture, a part of a page."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import store
from ..ops import layout
from . import causes, coverage, inventory, orders
from .coverage_picture import TITLE, draw
from .pages import NEAR
from .record import Recipe

BEGIN, END = "<!-- coverage -->", "<!-- /coverage -->"
"""What encloses the coverage in a page."""
ORDERS, FAR = "### Orders of the papers", f"### Numbers that are more than {NEAR} points off"
LEGEND = (
    "published: accuracies that the paper prints. data here: those whose data is here. measured: those with ours "
    f"beside them, at paper scale, as a share of data here. within {NEAR} points: of those measured, by the paper's "
    "text. or as released: of those measured, so or by a released-* recipe, which follows released code instead. "
    "earlier: not measured, but in an earlier setting of the recipe."
)


@dataclass(frozen=True)
class Covered:
    """All of it: every published accuracy, their counts, the orders, and why numbers differ."""

    recipes: Sequence[Recipe]
    data: Sequence[str]
    standings: Sequence[coverage.Standing]
    counts: Sequence[coverage.Count]
    orders: Sequence[orders.Judged]
    causes: Sequence[causes.Differing]

    def plain(self) -> str:
        """As text for a terminal."""
        claims = [orders.plain(found) for found in self.orders]
        here = f"data here: {'; '.join(self.data) or 'none'}"
        legend = [line for text in (LEGEND, here) for line in layout.wrapped(text, layout.room())]
        return "\n".join([coverage.plain(self.counts), "", *legend, "", "Orders of the papers:", *claims])

    def json(self) -> str:
        """As JSON."""
        body = coverage.as_json(self.standings, self.recipes, self.data)
        claims, why = [orders.as_json(found) for found in self.orders], [causes.as_json(group) for group in self.causes]
        return json.dumps({**body, "orders": claims, "causes": why}, indent=1)

    def section(self, picture: str | None) -> str:
        """As a part of a page; `picture` is where the page finds the picture."""
        drawn = [f"![{TITLE}]({picture})", ""] if picture else []
        here = f"Data that is here: {'; '.join(self.data) or 'none'}."
        claims = layout.table(orders.HEAD, [orders.line(found) for found in self.orders])
        both = Counter(s.table for s in self.standings if s.ours and s.released)
        twice = ", ".join(f"{n} of {table}" for table, n in both.items()) or "none"
        here += f" Measured in both ways, by the paper's text and as released: {twice}."
        parts = [*drawn, coverage.markdown(self.counts), "", here, "", ORDERS, "", *claims, "", FAR, ""]
        return "\n".join([*parts, causes.markdown(self.causes)])


def covered(recipes: Mapping[str, Recipe], results: Path, data: str | None = None) -> Covered:
    """The coverage of a folder of results. `data` names the data that is here; None: what this machine has."""
    every, found = list(recipes.values()), coverage.collected(results)
    here = inventory.here(every) if data is None else [w.strip() for w in data.split(";") if w.strip()]
    standings = coverage.standings(every, found, inventory.named("; ".join(here), every))
    judged = [orders.judged(order, recipes, found) for order in orders.ORDERS]
    counts = coverage.counts(standings, every)
    return Covered(every, here, standings, counts, judged, causes.groups(standings, [c.name for c in counts]))


def write(found: Covered, picture: Path | None = None, page: Path | None = None) -> list[str]:
    """Write the picture, and put the coverage into a page between its marks; what was written, a line each."""
    said = []
    if picture is not None:
        store.write(picture, draw(found.counts))
        said.append(f"wrote {picture}")
    if page is not None:
        before, begin, rest = page.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise store.RunError(f"{page} has no place for the coverage; enclose one with {BEGIN} and {END}")
        link = Path(os.path.relpath(picture, page.parent)).as_posix() if picture is not None else None
        store.write(page, f"{before}{BEGIN}\n{found.section(link)}\n{END}{after}")
        said.append(f"wrote {page}")
    return said
