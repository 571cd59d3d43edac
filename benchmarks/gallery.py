"""The gallery: for each paper a dot plot of our accuracies beside the published ones, with the differences.

    python benchmarks/gallery.py [--results results] [--page docs/gallery.md] [--out docs/gallery]

It draws every published accuracy that has ours beside it, as `acclimate reproduce coverage` counts them. A box is a
column of the paper's table, a line one of its rows: a ring is published, a dot is ours, the number is ours minus
published, in points. Each picture is made twice, for light and for dark pages.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

from picture import THEMES

from acclimate import store
from acclimate.recipes import RECIPES, coverage, published
from acclimate.recipes.coverage import Standing
from acclimate.recipes.pages import NEAR

PAPERS = {"fedthe": "FedTHE", "fedtta": "FedTTA", "fedicon": "FedICON", "fedspl": "FedSPL", "fedpcl": "FedPCL"}
BEGIN, END = "<!-- gallery -->", "<!-- /gallery -->"
"""What encloses the gallery in its page."""
DOTS = {"near": ("#0b6bcb", "#58a6ff"), "far": ("#bc4c00", "#f0883e")}
"""Of ours in light and in dark: within NEAR points of the published number, or further off."""
WIDTH, LEFT, BOX, GAP, ACROSS, LINE, HEAD, TITLE, FOOT = 960, 226, 250, 46, 5, 17, 24, 50, 30
KNOWN = {
    "fedthe": "CIFAR-10, dealt as the released code deals it.",
    "fedtta": "CIFAR-10, Fashion-MNIST and MNIST, of most rows one seed.",
    "fedicon": "Digit-5 without SynthDigits, and Office-10; how many images clients have is read off the printed "
    "numbers.",
    "fedspl": "PACS at 64 pixels and few rounds, from an EfficientNet-Lite0 where the paper has a ResNet-18, both "
    "trained on ImageNet: what is compared here is not the same experiment. FedAvg, Tent and FedSPL of Table 1 have "
    "that ResNet-18.",
    "fedpcl": "EfficientNet-Lites that have seen ImageNet stand in for the paper's ResNet-18s, but for one backbone on "
    "digits under one shift (Tables 2 and 11), which has seen QuickDraw as the paper's. That is why "
    "Office-10 comes out far above the paper.",
}
"""What must be known to read a paper's picture."""


@dataclass(frozen=True)
class Panel:
    """A table of a paper: what it prints, and the standings that have ours, by row and column."""

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Standing]
    printed: int
    """How many accuracies the paper's table has."""

    @property
    def across(self) -> int:
        """Boxes side by side: all, or a number that fills its rows."""
        return len(self.columns) if len(self.columns) <= ACROSS else 4 if len(self.columns) % 4 == 0 else ACROSS

    @property
    def height(self) -> int:
        """In pixels."""
        return TITLE + math.ceil(len(self.columns) / self.across) * (HEAD + LINE * len(self.rows) + FOOT)

    @property
    def span(self) -> tuple[int, int]:
        """The axis of all its boxes."""
        values = [v for s in self.cells.values() for v in both(s)]
        return 10 * math.floor(min(values) / 10), min(10 * math.ceil(max(values) / 10), 100)


def both(standing: Standing) -> tuple[float, float]:
    """Ours and the published accuracy."""
    assert standing.ours is not None
    return standing.ours.mean, standing.theirs.mean


def column(standing: Standing) -> str:
    """The column of a published number; where another recipe measured it, the paper's own words."""
    assert standing.ours is not None
    own = " ".join(str(standing.fields[k]) for k in ("backbone", "domain") if k in standing.fields)
    return own if own and standing.ours.recipe != standing.table else standing.ours.column


def panels(found: Sequence[Standing], paper: str) -> list[Panel]:
    """The tables of a paper that have numbers of ours, in the order of the paper."""
    out = []
    for name in sorted({s.table for s in found if s.table.startswith(f"{paper}/")}, key=_place):
        printed = [s for s in found if s.table == name]
        ours = {(s.ours.row, column(s)): s for s in printed if s.ours is not None}
        if ours:
            measured = [name] if name in RECIPES else sorted({s.ours.recipe for s in ours.values() if s.ours})
            cells = [cell for recipe in measured for cell in coverage.cells(RECIPES[recipe])]
            columns = _ordered((c for _, c in ours), [c.column for c in cells])
            rows = _ordered((r for r, _ in ours), [c.row for c in cells])
            out.append(Panel(name, rows, columns, ours, len(printed)))
    return out


def _place(table: str) -> tuple[int, str]:
    digits = "".join(c for c in table if c.isdigit())
    return int(digits or 99), table


def _ordered(names: Iterable[str], order: Sequence[str]) -> tuple[str, ...]:
    """Each once, as the recipe has them; what it does not name comes last."""
    places = {name: i for i, name in reversed(list(enumerate(order)))}
    once = dict.fromkeys(names)
    return tuple(sorted(once, key=lambda name: places.get(name, len(order))))


def gap(standing: Standing) -> float:
    """Ours minus published, as it is told: to one digit."""
    return round(standing.difference or 0.0, 1) + 0.0


def words(cells: Sequence[Standing], printed: int) -> str:
    """How many are measured, and how near they come."""
    gaps = [abs(s.difference or 0.0) for s in cells]
    near = sum(s.state == "near" for s in cells)
    return (
        f"{len(cells)} of {printed} published accuracies are measured, {near} within {NEAR} points; "
        f"median difference {median(gaps):.1f}, largest {max(gaps):.1f}"
    )


def draw(found: Sequence[Panel], paper: str, theme: str) -> str:
    """The picture of a paper as SVG text."""
    tone, top = THEMES[theme], 34
    height = top + sum(p.height for p in found)
    title = f"{PAPERS[paper]}: our accuracies beside the published ones"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-size="12" '
        f'font-family="system-ui, sans-serif" fill="{tone["text"]}">',
        f"<title>{title}</title>",
        *_legend(theme),
    ]
    for panel in found:
        out += _panel(panel, top, theme)
        top += panel.height
    return "\n".join([*out, "</svg>"]) + "\n"


def _legend(theme: str) -> list[str]:
    tone = THEMES[theme]
    said = (("published", None), (f"ours, within {NEAR} points", "near"), ("ours, further off", "far"))
    out = []
    for i, (text, state) in enumerate(said):
        x = 8 + 170 * i
        out += [_dot(x, 14, state, theme), f'<text x="{x + 12}" y="18">{text}</text>']
    note = "numbers: ours minus published, in points"
    return [*out, f'<text x="{WIDTH - 4}" y="18" text-anchor="end" fill="{tone["muted"]}">{note}</text>']


def _dot(x: float, y: float, state: str | None, theme: str) -> str:
    """A ring for a published number, a dot for ours."""
    if state is None:
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{THEMES[theme]["muted"]}" stroke-width="2"/>'
        )
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{DOTS[state][theme == "dark"]}"/>'


def _panel(panel: Panel, top: int, theme: str) -> list[str]:
    tone = THEMES[theme]
    place = published.table(panel.name).get("place", panel.name)
    number = panel.name.partition("/")[2].replace("table", "Table ").replace("text_numbers", "Text")
    about = RECIPES[panel.name].title if panel.name in RECIPES else "Numbers that the paper prints beside its tables"
    heads = f'<tspan font-weight="bold">{number}</tspan> {escape(about)}'
    said = words(list(panel.cells.values()), panel.printed)
    out = [
        f'<g><title>{escape(str(place))}</title><text x="8" y="{top + 18}" font-size="14">{heads}</text>'
        f'<text x="8" y="{top + 36}" fill="{tone["muted"]}">{said}.</text></g>'
    ]
    each = min((WIDTH - LEFT) / panel.across, BOX + GAP)
    for i, name in enumerate(panel.columns):
        down, across = divmod(i, panel.across)
        y = top + TITLE + down * (HEAD + LINE * len(panel.rows) + FOOT)
        out += _box(panel, name, LEFT + each * across, y, each - GAP, theme)
        if across == 0:
            out += [
                f'<text x="{LEFT - 10}" y="{y + HEAD + LINE * j + 12}" text-anchor="end">{escape(row)}</text>'
                for j, row in enumerate(panel.rows)
            ]
    return out


def _box(panel: Panel, name: str, x0: float, y0: float, wide: float, theme: str) -> list[str]:
    """A column: its axis, and per row a ring, a dot, what is between them, and the difference."""
    tone, (low, high), bottom = THEMES[theme], panel.span, y0 + HEAD + LINE * len(panel.rows)

    def x(value: float) -> float:
        return x0 + (value - low) / (high - low) * wide

    out = [f'<text x="{x0:.1f}" y="{y0 + 15}" font-size="11" fill="{tone["muted"]}">{escape(name)}</text>']
    for tick in (low, (low + high) / 2, high):
        out += [
            f'<path d="M{x(tick):.1f} {y0 + HEAD}V{bottom}" stroke="{tone["faint"]}"/>',
            f'<text x="{x(tick):.1f}" y="{bottom + 14}" text-anchor="middle" font-size="11" fill="{tone["muted"]}">'
            f"{tick:g}</text>",
        ]
    for j, row in enumerate(panel.rows):
        y = y0 + HEAD + LINE * j + 8
        standing = panel.cells.get((row, name))
        if standing is None:
            continue
        (ours, theirs), state = both(standing), standing.state
        colour = DOTS[state][theme == "dark"]
        said = f"{row}, {name}: ours {ours:.1f}, published {theirs:.1f}"
        out += [
            f"<g><title>{escape(said)}</title>"
            f'<path d="M{x(theirs):.1f} {y}H{x(ours):.1f}" stroke="{colour}" stroke-width="1.5"/>',
            f"{_dot(x(theirs), y, None, theme)}{_dot(x(ours), y, state, theme)}"
            f'<text x="{x0 + wide + 34:.1f}" y="{y + 4}" text-anchor="end" font-size="11" fill="{colour}">'
            f"{gap(standing):+.1f}</text></g>",
        ]
    return out


def section(paper: str, found: Sequence[Panel], printed: int, pictures: str) -> str:
    """The part of the page about a paper: its picture, and what it shows in one sentence."""
    cells = [s for p in found for s in p.cells.values()]
    seeds = sorted({s.ours.seeds for s in cells if s.ours is not None})
    lines = [
        f"## {PAPERS[paper]}",
        "",
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="{pictures}/{paper}-dark.svg">',
        f'  <img alt="{PAPERS[paper]}: our accuracies beside the published ones, a box per column of a table" '
        f'src="{pictures}/{paper}-light.svg">',
        "</picture>",
        "",
        f"{KNOWN[paper]} {words(cells, printed)}; seeds of a number: {' or '.join(map(str, seeds))}.",
        f"What is done differently, and what is known of the reasons: [{PAPERS[paper]}](papers/{paper}.md).",
    ]
    return "\n".join(lines)


def made(results: Path, page: Path, out: Path) -> dict[Path, str]:
    """Every file of the gallery with its text; the page keeps what stands outside of its marks."""
    found = coverage.standings(RECIPES.values(), coverage.collected(results), frozenset())
    files, sections = {}, []
    for paper in PAPERS:
        tables = panels(found, paper)
        printed = sum(s.table.startswith(f"{paper}/") for s in found)
        sections.append(section(paper, tables, printed, Path(os.path.relpath(out, page.parent)).as_posix()))
        files |= {out / f"{paper}-{theme}.svg": draw(tables, paper, theme) for theme in THEMES}
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no place for the gallery; enclose one with {BEGIN} and {END}")
    return {**files, page: f"{before}{BEGIN}\n" + "\n\n".join(sections) + f"\n{END}{after}"}


def main() -> None:
    """Draw all papers, and put them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--page", type=Path, default=Path("docs/gallery.md"))
    parser.add_argument("--out", type=Path, default=Path("docs/gallery"))
    args = parser.parse_args()
    for path, text in made(args.results, args.page, args.out).items():
        store.write(path, text)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
