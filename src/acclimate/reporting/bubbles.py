"""The bubble plot: how many training examples of which class every client has. The report and the preview draw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .style import TONES, esc, scroll, short, span
from .svg import drawing

CELL, TOP, LONGEST = 24, 34, 15
"""A cell's usual side and the head's height in pixels, and how many letters of a class's name are shown."""
CLASSES = 100
"""How many classes are shown."""
MOST_BUBBLES = 2000
"""How many cells a report has room for; further clients are only counted."""


@dataclass(frozen=True)
class BubbleColumn:
    """One client of the plot, and how many examples of every class it has."""

    name: str
    counts: Sequence[float]
    tone: int = 0
    """Which of the report's colours its bubbles have."""
    new: bool = False
    """Whether the client joins after training; its bubbles are paler."""


def bubble_plot(
    clients: Sequence[BubbleColumn], classes: Sequence[str], label: str, most: int = MOST_BUBBLES, cell: int = CELL
) -> str:
    """Clients across, classes down, areas as counts, and every client's total below. Wide federations are cut short.

    `label` is the plot's text alternative, in plain text; `most` is how many cells there may be, `cell` a cell's side.
    """
    names = classes[:CLASSES]
    shown = clients[: max(most // max(len(names), 1), 1)]
    left = 24 + 7 * max(min(max(map(len, names), default=0), LONGEST), len("examples"))
    largest = max((n for c in shown for n in c.counts[: len(names)]), default=0) or 1
    titled = len(shown) * len(names) <= most // 5  # tooltips weigh more than bubbles
    foot = TOP + len(names) * cell
    parts = [f'<text x="{left}" y="12">Client</text>']
    for k, name in enumerate(names):
        parts.append(_text(left - 10, TOP + (k + 0.5) * cell + 4, short(name, LONGEST), "end"))
    parts.append(_text(left - 10, foot + 16, "examples", "end"))
    every = math.ceil(len(shown) / 30)
    for i, client in enumerate(shown):
        x = left + (i + 0.5) * cell
        if i % every == 0 or client.new:
            parts.append(_text(x, TOP - 6, client.name, "middle"))
        turned = f'transform="translate({x + 4:.0f} {foot + 4}) rotate(-90)"'
        parts.append(f'<text {turned} text-anchor="end">{span([sum(client.counts)], ",.0f")}</text>')
        parts += [
            _bubble(client, names[k], n, x, TOP + (k + 0.5) * cell, radius(n, largest, cell), titled)
            for k, n in enumerate(client.counts[: len(names)])
            if n > 0
        ]
    width, height = left + len(shown) * cell + 6, foot + 52
    plot = scroll(label, drawing("plot", width, height, label, "".join(parts), fixed=True))
    return f'{plot}<p class="muted">{_note(clients, shown, classes, largest)}</p>'


def radius(count: float, largest: float, cell: int) -> float:
    """The radius whose circle has an area in proportion to the count; the largest nearly fills its cell."""
    return max(math.sqrt(count / max(largest, 1)) * (cell / 2 - 1), 0.8)


def _bubble(client: BubbleColumn, name: str, count: float, x: float, y: float, r: float, titled: bool) -> str:
    title = f"<title>client {esc(client.name)}, {esc(name)}: {count:g}</title>" if titled else ""
    look = f'class="bubble c{client.tone % TONES}{" new" * client.new}"'
    return f'<circle {look} cx="{x:.0f}" cy="{y:.0f}" r="{r:.1f}">{title}</circle>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{esc(text)}</text>'


def _note(
    clients: Sequence[BubbleColumn], shown: Sequence[BubbleColumn], classes: Sequence[str], largest: float
) -> str:
    note = f"Area is the number of training examples; the largest is {largest:g}."
    note += f" The first {len(shown)} of {len(clients)} clients." * (len(shown) < len(clients))
    note += f" The first {CLASSES} of {len(classes)} classes." * (len(classes) > CLASSES)
    note += " Paler clients join after training; theirs are the examples that they are tested on." * any(
        c.new for c in shown
    )
    return note
