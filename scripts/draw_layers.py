"""Draws docs/layers.svg out of the list of layers in docs/design.md: `python scripts/draw_layers.py`."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROOMS = {
    "version": "the version",
    "core": "the contract",
    "ops": "shared functions",
    "methods": "train",
    "adapters": "adapt at test time",
    "personal": "personalise",
    "filters": "protect and compress",
    "models": "networks",
    "data": "sets and partitions",
    "shifts": "test streams",
    "backends": "where clients run",
    "eval": "tables and traces",
    "experiment": "one record, its files and names",
    "store": "run folders",
    "reporting": "report.html, previews",
    "live": "answer and keep adapting",
    "running": "build, train, evaluate, join, compare",
    "fleet": "real sites over Flower",
    "recipes": "the papers' tables",
    "leaderboard": "frozen tracks, submissions",
    "serving": "live models, over HTTP",
    "tuning": "searches",
    "cli": "the command line",
}
"""What each room is for, in a few words."""
WIDTH, ROW, GAP, MARGIN = 1000, 64, 14, 16


def layers() -> list[list[str]]:
    """The layers of docs/design.md, from the lowest to the highest."""
    text = (DOCS / "design.md").read_text().partition("## Who imports whom")[2]
    listed = re.search(r"```text\n(.*?)```", text, re.S)
    assert listed is not None, "docs/design.md lists no layers"
    return [line.split() for line in listed.group(1).strip().splitlines()]


def draw(rows: list[list[str]]) -> str:
    """An SVG with the highest layer on top; every room may use all that is below it."""
    height = len(rows) * (ROW + GAP) + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">',
        "<title>The layers of acclimate: a room may import from the rooms below its own</title>",
    ]
    for place, rooms in enumerate(reversed(rows)):
        y, wide = MARGIN + place * (ROW + GAP), (WIDTH - 2 * MARGIN - (len(rooms) - 1) * GAP) / len(rooms)
        for i, room in enumerate(rooms):
            x = MARGIN + i * (wide + GAP)
            parts += [
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW}" rx="8" fill="#e8f1f8" stroke="#2a6592"/>',
                f'<text x="{x + wide / 2:.1f}" y="{y + 27}" text-anchor="middle" font-size="18" fill="#12344d">'
                f"{escape(room)}</text>",
                f'<text x="{x + wide / 2:.1f}" y="{y + 48}" text-anchor="middle" font-size="12" fill="#345">'
                f"{escape(ROOMS[room])}</text>",
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    (DOCS / "layers.svg").write_text(draw(layers()))
