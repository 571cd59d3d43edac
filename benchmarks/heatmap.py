"""Which adapter gains on which stream: a picture of what the other benchmarks measured.

    python benchmarks/heatmap.py [--out docs/adapters.svg]

A cell is the change of accuracy against not adapting, in points, mean over seeds and clients. Its columns come from
benchmarks/live.py (embedded digits, and CIFAR-10), benchmarks/brfl.py and benchmarks/adapters.py, as far as their files
are there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from acclimate import store

Panel = dict[str, dict[str, float]]
"""Of an adapter's name: the change of every stream, by the stream's name."""
LEFT, TOP, WIDE, HIGH, GAP, MOST = 190, 128, 44, 19, 22, 20.0
UP, DOWN = (27, 108, 168), (200, 80, 40)


def deployments(path: Path) -> Panel:
    """Of a file of benchmarks/live.py: free adapting against the plain model of the same training."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in json.loads(path.read_text())["cells"]:
        found[_short(cell["case"])][cell["stream"]].append(cell["adapted"] - cell["plain"])
    return _means(found)


def federated(path: Path, alpha: float) -> Panel:
    """Of a file of benchmarks/brfl.py: each row against `none` on the same deployment, stream and seed."""
    rows = [r for r in json.loads(path.read_text())["rows"] if r["alpha"] == alpha and "accuracy" in r]
    plain = {
        (r["case"].split("/")[0], r["stream"], r["seed"]): r["accuracy"] for r in rows if r["case"].endswith("/none")
    }
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        method = r["case"].split("/")[0]
        base = method if "finetune" in method else method.split("+")[0]
        before = plain.get((base, r["stream"], r["seed"]))
        if before is not None and not r["case"].endswith("/none"):
            found[_short(r["case"])][r["stream"]].append(r["accuracy"] - before)
    return _means(found)


def known_source(path: Path) -> Panel:
    """Of a file of benchmarks/adapters.py: each adapter against the source model."""
    rows = [r for r in json.loads(path.read_text())["rows"].values() if "mean" in r]
    plain = {r["stream"]: r["mean"] for r in rows if r["adapter"] == "none"}
    out: Panel = defaultdict(dict)
    for r in rows:
        if r["adapter"] != "none":
            out[r["adapter"]][r["stream"]] = r["mean"] - plain[r["stream"]]
    return dict(out)


def _short(case: str) -> str:
    """`tent`, or `tent after FT`: what is asked is the adapter, and whether models are fine-tuned."""
    method, adapter = case.split("/")
    return f"{adapter} after FT" if method.endswith("+finetune") else adapter


def _means(found: Mapping[str, Mapping[str, list[float]]]) -> Panel:
    return {name: {s: statistics.mean(v) for s, v in streams.items()} for name, streams in found.items()}


def draw(panels: Mapping[str, Panel]) -> str:
    """An SVG with a column per stream, a row per adapter, and a number in every cell."""
    columns = {title: list(dict.fromkeys(s for row in p.values() for s in row)) for title, p in panels.items()}
    names = sorted({name for panel in panels.values() for name in panel}, key=lambda n: ("after" in n, n))
    width = LEFT + sum(WIDE * len(c) + GAP for c in columns.values())
    height = TOP + HIGH * len(names) + 14
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11" role="img">',
        "<title>Change of accuracy against not adapting, in points, by adapter and stream</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    out += [
        f'<text x="{LEFT - 10}" y="{TOP + HIGH * i + 13}" text-anchor="end" fill="#223">{escape(name)}</text>'
        for i, name in enumerate(names)
    ]
    x = LEFT
    for title, panel in panels.items():
        out.append(f'<text x="{x}" y="18" font-weight="bold" fill="#223">{escape(title)}</text>')
        for j, stream in enumerate(columns[title]):
            at = x + WIDE * j
            place = f'transform="translate({at + WIDE / 2 + 4},{TOP - 8}) rotate(-55)"'
            out.append(f'<text {place} fill="#223">{escape(stream)}</text>')
            out += [_cell(at, TOP + HIGH * i, panel.get(name, {}).get(stream)) for i, name in enumerate(names)]
        x += WIDE * len(columns[title]) + GAP
    return "\n".join([*out, "</svg>", ""])


def _cell(x: float, y: float, change: float | None) -> str:
    if change is None:
        return f'<rect x="{x}" y="{y}" width="{WIDE - 1}" height="{HIGH - 1}" fill="#f2f3f5"/>'
    strength = min(abs(change) / MOST, 1.0)
    fill = "#" + "".join(f"{round(255 + (c - 255) * strength):02x}" for c in (UP if change > 0 else DOWN))
    ink = "#ffffff" if strength > 0.55 else "#223322"
    box = f'<rect x="{x}" y="{y}" width="{WIDE - 1}" height="{HIGH - 1}" fill="{fill}"/>'
    return f'{box}<text x="{x + WIDE / 2}" y="{y + 13}" text-anchor="middle" fill="{ink}">{change:+.1f}</text>'


def panels(results: Path) -> dict[str, Panel]:
    """Every panel whose file is there, by its title."""
    live, adapters = results / "live", results / "adapters"
    makers: dict[str, tuple[Path, Any]] = {
        "Embedded digits, 10 clients, Dirichlet(0.05)": (live / "no-harm-seeds-9-11.json", deployments),
        "CIFAR-10, 20 clients, Dirichlet(0.1)": (live / "no-harm-cifar10-seeds-0-2.json", deployments),
        "CIFAR-10 Dirichlet(0.1), all adapters": (adapters / "brfl.json", lambda p: federated(p, 0.1)),
        "CIFAR-10 Dirichlet(1.0)": (adapters / "brfl.json", lambda p: federated(p, 1.0)),
        "ResNet-20, corruptions": (adapters / "cifar10c.json", known_source),
    }
    if (adapters / "brfl.json").exists():  # it has what the ten adapters have, and more
        del makers["CIFAR-10, 20 clients, Dirichlet(0.1)"]
    return {title: make(path) for title, (path, make) in makers.items() if path.exists()}


def main() -> None:
    """Draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("docs/adapters.svg"))
    given = parser.parse_args()
    found = panels(given.results)
    store.write(given.out, draw(found))
    print(f"{given.out}: {', '.join(found)}")


if __name__ == "__main__":
    main()
