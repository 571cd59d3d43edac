"""The coverage of the papers as a picture: a bar per table, plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

from .coverage import STATES, Count, State
from .pages import NEAR

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 960, 150, 280, 62, 19, 13
TITLE = "Published accuracies by table: how many are measured, and how near"
Part = State | Literal["released"]
"""What a bar is made of, from left to right; `released` is cut from what is further off."""
FILLS: dict[Part, str] = {
    "near": "#1b6ca8",
    "released": "#8fbfe3",
    "far": "#f0a04b",
    "earlier": "#e6dcc8",
    "open": "#c9ced3",
    "no data": "#ffffff",
}
WORDS: dict[Part, str] = {part: f"within {NEAR} as released" if part == "released" else STATES[part] for part in FILLS}


def draw(found: Sequence[Count]) -> str:
    """An SVG of the counts: every table's accuracies by state, to one scale; bold lines are whole papers."""
    tables = [c for c in found if "/" in c.name]
    most = max((c.published for c in tables), default=1)
    height = TOP + ROW * len(found) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" role="img">',
        f"<title>{TITLE}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_legend(),
    ]
    for i, count in enumerate(found):
        parts += _bar(count, TOP + ROW * i, most)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    out, x = [], 16
    for state, words in WORDS.items():
        out += [
            f'<rect x="{x}" y="16" width="14" height="{BAR}" fill="{FILLS[state]}" stroke="#667"/>',
            f'<text x="{x + 20}" y="27" fill="#223">{escape(words)}</text>',
        ]
        x += 44 + 6 * len(words)
    return out


def _bar(count: Count, y: int, most: int) -> list[str]:
    """A table's bar as long as it has accuracies; for a paper and for all the shares of one full bar."""
    whole = "/" not in count.name
    weight = ' font-weight="bold"' if whole else ""
    scale = (WIDTH - LEFT - RIGHT) / (count.published if whole else most)
    out = [f'<text x="{LEFT - 10}" y="{y + 11}" text-anchor="end" fill="#223"{weight}>{escape(count.name)}</text>']
    x = float(LEFT)
    for state, words in WORDS.items():
        number = count.released if state == "released" else count.states[state] - count.released * (state == "far")
        if number:
            wide = number * scale
            title = f"<title>{escape(f'{count.name}: {number} {words}')}</title>"
            out.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}" fill="{FILLS[state]}" stroke="#667" '
                f'stroke-width="0.6">{title}</rect>'
            )
            x += wide
    near = f"{count.measured} of {count.here} measured, {count.states['near']} within {NEAR}"
    said = near if count.here else "data not here"
    place = x if not whole else WIDTH - RIGHT
    out.append(f'<text x="{place + 8:.1f}" y="{y + 11}" fill="#445"{weight}>{said}</text>')
    return out
