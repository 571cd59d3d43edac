"""Search over settings, judged on validation data alone: spaces, the papers' grids, the search and its section."""

from .grids import GRIDS, Grid, grid
from .search import Search, Trial, tune
from .section import page, section_html, sections
from .space import Choice, Range, Space, parse

__all__ = [
    "GRIDS",
    "Choice",
    "Grid",
    "Range",
    "Search",
    "Space",
    "Trial",
    "grid",
    "page",
    "parse",
    "section_html",
    "sections",
    "tune",
]
