"""The README's picture: accuracy on clients' own examples against that on other clients', with arrows for adaptation.

    acclimate run --seeds 3 -o runs/first3
    python benchmarks/picture.py --runs runs/first3 [--data results/benchmarks/first-run.json] [--out docs]

Without `--runs` it draws from the stored file alone. A point is the mean over seeds and clients at the last round. An
arrow leads from a method as it is trained to the same training with a personaliser or an adapter.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from acclimate import store

HOME, ABROAD = "original", "out-of-client"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 420, 64, 14, 56, 58
FONT = 15
LINE = 17
"""Large enough for a phone, where the picture has half its width, and the height of a line."""
THEMES = {
    "light": {"text": "#1f2328", "faint": "#d0d7de", "muted": "#59636e"},
    "dark": {"text": "#e6edf3", "faint": "#30363d", "muted": "#9198a1"},
}
COLOURS = {"fedavg": ("#0b6bcb", "#58a6ff"), "fedthe": ("#1a7f37", "#3fb950"), "fedtta": ("#bc4c00", "#f0883e")}
"""Of a method in light and in dark."""

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def stored(runs: Path) -> dict[str, Any]:
    """What the picture and the README need of run folders: every row of every seed, without per-client lists."""
    folders = [folder.load() for folder in store.find_runs(runs)]
    keep = ("method", "personal", "adapter", "stream", "seed", "clients", "accuracy", "std", "up_bytes", "settings")
    rows = [{k: r[k] for k in keep} for f in folders for r in f["results"]["table"] if r["selection"] == "last"]
    seconds = {f"{f['results']['label']}, seed {f['results']['seed']}": f["results"]["timings"] for f in folders}
    env = folders[0]["env"]
    return {
        "schema": "acclimate.first-run/1",
        "command": "acclimate run --seeds 3",
        "commit": env.get("commit"),
        "torch": env.get("torch"),
        "device": env.get("device"),
        "rounds": folders[0]["config"]["experiment"]["rounds"],
        "seconds": seconds,
        "rows": rows,
    }


def points(data: Mapping[str, Any]) -> dict[tuple[str, str, str], Point]:
    """(method, personaliser, adapter) to own and out-of-client accuracy in percent, means over seeds."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for r in data["rows"]:
        key = (r["method"], r["personal"], r["adapter"])
        found.setdefault(key, {}).setdefault(r["stream"], []).append(100 * r["accuracy"])
    return {k: (fmean(v[HOME]), fmean(v[ABROAD])) for k, v in found.items()}


def name(key: tuple[str, str, str]) -> str:
    """`fedavg + finetune`, `fedthe + the`."""
    return " + ".join([key[0], *(part for part in key[1:] if part != "none")])


def label_boxes(at: Point, lines: Sequence[str]) -> list[tuple[str, Point, Box]]:
    """Where the label of a point can stand: the anchor of its text, the place of that, and the room it takes."""
    wide, high, (px, py) = 0.56 * FONT * max(map(len, lines)), LINE * len(lines), at
    out = []
    for anchor, dx, left in (("start", 11, 0.0), ("end", -11, -wide), ("middle", 0, -wide / 2)):
        for top in (-high / 2, -high, 0.0) if anchor != "middle" else (-high - 9, 9.0):
            x, y = px + dx, py + top
            out.append((anchor, (x, y + 0.8 * LINE), (x + left, y, x + left + wide, y + high)))
    return out


def covered(box: Box, others: Sequence[Box], arrows: Sequence[tuple[Point, Point]]) -> float:
    """How much of a label is hidden: by others, by arrows, and by what is outside the picture."""
    left, top, right, bottom = box
    out = 100 * (max(0.0, LEFT - left) + max(0.0, right - WIDTH + RIGHT))
    out += 100 * (max(0.0, TOP - top) + max(0.0, bottom - HEIGHT + BOTTOM))
    for a, b, c, d in others:
        out += max(0.0, min(right, c) - max(left, a)) * max(0.0, min(bottom, d) - max(top, b))
    for (x1, y1), (x2, y2) in arrows:
        on_it = ((x1 + t / 100 * (x2 - x1), y1 + t / 100 * (y2 - y1)) for t in range(101))
        out += 60 * sum(left - 3 < x < right + 3 and top - 2 < y < bottom + 2 for x, y in on_it)
    return out


def place_labels(
    texts: Mapping[Point, Sequence[str]], arrows: Sequence[tuple[Point, Point]]
) -> dict[Point, tuple[str, Point, Box]]:
    """Every label where least of it is hidden; in two turns, as the later ones are in the way of the first."""
    out: dict[Point, tuple[str, Point, Box]] = {}
    dots = [(x - 7, y - 7, x + 7, y + 7) for x, y in texts]
    for at in [*texts, *texts]:
        others = [place[2] for other, place in out.items() if other != at] + dots
        out[at] = min(label_boxes(at, texts[at]), key=lambda place: covered(place[2], others, arrows))
    return out


class Axes:
    """From percent to the picture's coordinates; each axis begins and ends at a round number."""

    def __init__(self, dots: Iterable[Point]) -> None:
        (self.left, self.right), (self.low, self.high) = (
            (5 * math.floor((min(values) - 1.5) / 5), 5 * math.ceil((max(values) + 1.5) / 5))
            for values in zip(*dots, strict=True)
        )

    def at(self, dot: Point) -> Point:
        """Where a point lies."""
        x = LEFT + (dot[0] - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (dot[1] - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    def drawn(self, tone: Mapping[str, str]) -> list[str]:
        """Lines every five percent, with their numbers, and what the axes are."""
        out, muted = [], f'fill="{tone["muted"]}"'
        for v in range(self.left, self.right + 1, 5):
            x, _ = self.at((v, self.low))
            out.append(f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="{tone["faint"]}"/>')
            out.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" {muted}>{v}</text>')
        for v in range(self.low, self.high + 1, 5):
            _, y = self.at((self.left, v))
            out.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{tone["faint"]}"/>')
            out.append(f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end" {muted}>{v}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
        out.append(f'<text x="{middle[0]}" y="{HEIGHT - 12}" text-anchor="middle">on own digits</text>')
        turned = f'transform="translate(20 {middle[1]}) rotate(-90)" text-anchor="middle"'
        return [*out, f"<text {turned}>on digits of other clients</text>"]


def draw(data: Mapping[str, Any], theme: str) -> str:
    """The picture as SVG text."""
    tone, dots = THEMES[theme], points(data)
    axes, seeds = Axes(dots.values()), {r["seed"] for r in data["rows"]}
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="{FONT}" '
        f'font-family="system-ui, sans-serif" fill="{tone["text"]}">',
        "<title>Accuracy on own against other clients' examples</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="10" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{tone["muted"]}"/></marker></defs>',
        f'<text x="8" y="20">Accuracy, %, after {data["rounds"]} rounds; mean over clients and {len(seeds)} seeds.'
        "</text>",
        '<text x="8" y="40">An arrow is personalising or adapting.</text>',
        *axes.drawn(tone),
    ]
    starts = {key[0]: axes.at(dot) for key, dot in dots.items() if key[1:] == ("none", "none")}
    ends = {key: axes.at(dot) for key, dot in dots.items()}
    arrows = [(starts[key[0]], end) for key, end in ends.items() if key[0] in starts and end != starts[key[0]]]
    for (x1, y1), (x2, y2) in arrows:
        out.append(
            f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{tone["muted"]}" stroke-width="1.5" marker-end="url(#tip)"/>'
        )
    texts = {ends[key]: (name(key), f"{home:.1f} / {abroad:.1f}") for key, (home, abroad) in dots.items()}
    placed = place_labels(texts, arrows)
    for key, at in ends.items():
        colour = COLOURS.get(key[0], (tone["text"],) * 2)[theme == "dark"]
        anchor, (x, y), _ = placed[at]
        out.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="5.5" fill="{colour}"/>')
        first, second = map(escape, texts[at])
        below = f'<tspan x="{x:.1f}" dy="{LINE}" fill="{tone["muted"]}">{second}</tspan>'
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{first}{below}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    """Store the rows of runs, where some are named, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--data", type=Path, default=Path("results/benchmarks/first-run.json"))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    args = parser.parse_args()
    if args.runs:
        store.write(args.data, json.dumps(stored(args.runs), indent=1) + "\n")
    data = json.loads(args.data.read_text())
    for theme in THEMES:
        store.write(args.out / f"first-run-{theme}.svg", draw(data, theme))
        print(f"wrote {args.out / f'first-run-{theme}.svg'}")


if __name__ == "__main__":
    main()
