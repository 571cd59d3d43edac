"""The README's picture: accuracy on clients' own examples against that on other clients', with arrows for adaptation.

    acclimate run --seeds 3 -o runs/first3
    python benchmarks/picture.py --runs runs/first3 [--data results/benchmarks/first-run.json] [--out docs]

Without `--runs` it draws from the stored file alone. A point is the mean over seeds and clients at the last round. An
arrow leads from a method as it is trained to the same training with a personaliser or an adapter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from acclimate import store

HOME, ABROAD = "original", "out-of-client"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 62, 22, 40, 52
THEMES = {
    "light": {"text": "#1f2328", "faint": "#d0d7de", "muted": "#59636e"},
    "dark": {"text": "#e6edf3", "faint": "#30363d", "muted": "#9198a1"},
}
COLOURS = {"fedavg": ("#0b6bcb", "#58a6ff"), "fedthe": ("#1a7f37", "#3fb950"), "fedtta": ("#bc4c00", "#f0883e")}
"""Of a method in light and in dark."""

Point = tuple[float, float]


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


def draw(data: Mapping[str, Any], theme: str) -> str:
    """The picture as SVG text."""
    tone, dots = THEMES[theme], points(data)
    seeds = sorted({r["seed"] for r in data["rows"]})
    values = [v for dot in dots.values() for v in dot]
    low, high = 10 * int(min(values) // 10), 100

    def x(v: float) -> float:
        return LEFT + (v - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(v: float) -> float:
        return HEIGHT - BOTTOM - (v - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="13" '
        f'font-family="system-ui, sans-serif" fill="{tone["text"]}">',
        "<title>Accuracy on own against other clients' examples</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{tone["muted"]}"/></marker></defs>',
        f'<text x="{LEFT}" y="20">Accuracy, %, after {data["rounds"]} rounds; mean over clients, {len(seeds)} seeds. '
        "An arrow is personalising or adapting.</text>",
    ]
    for v in range(low, high + 1, 10):
        out += [
            f'<path d="M{x(v):.1f} {TOP}V{HEIGHT - BOTTOM}M{LEFT} {y(v):.1f}H{WIDTH - RIGHT}" '
            f'stroke="{tone["faint"]}"/>',
            f'<text x="{x(v):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{tone["muted"]}">{v}</text>',
            f'<text x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end" fill="{tone["muted"]}">{v}</text>',
        ]
    out += [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">on own digits</text>',
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        "on digits of other clients</text>",
    ]
    starts = {key[0]: dot for key, dot in dots.items() if key[1:] == ("none", "none")}
    for key, (home, abroad) in dots.items():
        start = starts.get(key[0])
        if start and key[1:] != ("none", "none"):
            out.append(
                f'<path d="M{x(start[0]):.1f} {y(start[1]):.1f}L{x(home):.1f} {y(abroad):.1f}" '
                f'stroke="{tone["muted"]}" stroke-width="1.5" marker-end="url(#tip)"/>'
            )
    placed: list[Point] = []
    for key, (home, abroad) in sorted(dots.items(), key=lambda dot: -dot[1][1]):
        colour = COLOURS.get(key[0], (tone["text"],) * 2)[theme == "dark"]
        px, py = x(home), y(abroad)
        begins = key[1:] == ("none", "none")  # its arrows go to the right, as a rule
        side, anchor = (-10, "end") if begins or px > WIDTH * 0.6 else (10, "start")
        line = py + 4 if begins or anchor == "start" else py - 10
        while any(abs(line - b) < 13 and abs(px - a) < 240 for a, b in placed):
            line += 30
        placed.append((px, line))
        label = f"{name(key)}  {home:.1f} / {abroad:.1f}"
        out += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5.5" fill="{colour}"/>',
            f'<text x="{px + side:.1f}" y="{line:.1f}" text-anchor="{anchor}">{escape(label)}</text>',
        ]
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
