"""Recipes: every table and figure with numbers of the five papers, as experiments beside the published numbers.

`acclimate reproduce list`, or `python -m acclimate.recipes list` where the command line's packages are not installed,
shows them. Modules named after a paper say what stands behind every cell. `record` has the types, `published` the
papers' numbers. `planning` finds what can run (`needs`: what data is missing), `runner` trains, `probes` tests,
`records` finds what is finished, `results` sets ours beside the published numbers; `pages` and `index` show them,
`coverage` counts them and `orders` judges what the papers claim first; `command` is what both command lines share.
"""

from __future__ import annotations

from ..experiment import ConfigError, catalogue
from . import (
    fedicon,
    fedicon_released,
    fedpcl_released,
    fedpcl_tables,
    fedspl,
    fedspl_pacs,
    fedthe,
    fedtta_fashion,
    fedtta_tables,
)
from .adapters import FixedHeads, TentOnce
from .federations import Few
from .index import index
from .planning import Plan, plan
from .record import Cell, Derived, Line, Named, Recipe, Scale, Training
from .records import table
from .runner import run
from .streams import Redealt
from .wrapped import NotScaled, WrappedBytes

PAPERS = (
    fedthe,
    fedtta_tables,
    fedtta_fashion,
    fedicon,
    fedicon_released,
    fedspl,
    fedspl_pacs,
    fedpcl_tables,
    fedpcl_released,
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for paper in PAPERS for recipe in paper.RECIPES}
"""Every recipe by name."""
OMITTED: dict[str, str] = {name: why for paper in PAPERS for name, why in getattr(paper, "OMITTED", {}).items()}
"""Tables and figures without a recipe, and why."""


def recipe(name: str) -> Recipe:
    """The recipe of this name; an error that names what is allowed."""
    if name in OMITTED:
        raise ConfigError(f"{name} has no recipe: {OMITTED[name]}")
    if name not in RECIPES:
        near = catalogue.nearest(name, list(RECIPES)).partition("allowed:")[0]
        if own := [n.partition("/")[2] for n, r in RECIPES.items() if r.paper == name]:
            raise ConfigError(f"'{name}' is a paper; name one of its recipes, {name}/{', '.join(own)}")
        papers = ", ".join(dict.fromkeys(r.paper for r in RECIPES.values()))
        raise ConfigError(f"no recipe '{name}'; {near}`acclimate reproduce list` shows all of {papers}")
    return RECIPES[name]


__all__ = [
    "OMITTED",
    "RECIPES",
    "Cell",
    "Derived",
    "Few",
    "FixedHeads",
    "Line",
    "Named",
    "NotScaled",
    "Plan",
    "Recipe",
    "Redealt",
    "Scale",
    "TentOnce",
    "Training",
    "WrappedBytes",
    "index",
    "plan",
    "recipe",
    "run",
    "table",
]
