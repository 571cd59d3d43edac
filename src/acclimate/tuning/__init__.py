"""Search over settings, judged on validation data alone: spaces, the grids of papers, the search and its report."""

from .grids import GRIDS, Grid, grid
from .outcome import Search, Trial
from .search import tune
from .search_page import page, section_html, sections
from .selecting import Selected, choose
from .space import Choice, Range, Space, parse

__all__ = [
    "GRIDS",
    "Choice",
    "Grid",
    "Range",
    "Search",
    "Selected",
    "Space",
    "Trial",
    "choose",
    "grid",
    "page",
    "parse",
    "section_html",
    "sections",
    "tune",
]
