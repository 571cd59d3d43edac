"""Which adapter gains on which stream: a picture of what the other benchmarks measured.

    python benchmarks/heatmap.py [--out docs/adapters.svg]

A cell is the change of accuracy against not adapting, in points, mean over seeds and clients. Its columns come from
benchmarks/live.py (embedded digits, and CIFAR-10), benchmarks/adapters.py, and benchmarks/brfl.py where its file is
there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from acclimate import store

Panel = dict[str, dict[str, float]]
"""Of an adapter's name: the change of every stream, by the stream's name."""
LEFT, TOP, WIDE, HIGH, GAP, MOST = 190, 128, 44, 19, 22, 20.0
UP, DOWN = (27, 108, 168), (200, 80, 40)


DIGITS = ("no-harm-seeds-9-11", "no-harm-seeds-12-14", "no-harm")
CIFAR10 = ("no-harm-cifar10-seeds-0-2", "no-harm-cifar10-seeds-3-5", "no-harm-cifar10-seeds-6-8")
"""Files of benchmarks/live.py with other seeds and other guards each; how free adapting does is told by all of them."""

OTHER_MODEL = ("/note",)
"""Cases of benchmarks/brfl.py whose model has a norm of its own: `none` there is another model."""


def cells(live: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """All cells of these files of a folder."""
    return [cell for name in names for cell in json.loads((live / f"{name}.json").read_text())["cells"]]


def deployments(cells: Iterable[dict[str, Any]]) -> Panel:
    """Of cells of benchmarks/live.py: free adapting against the plain model of the same training."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
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
        if before is not None and not r["case"].endswith(("/none", *OTHER_MODEL)):
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
    """Every panel, by its title; those of benchmarks/brfl.py where its file is there."""
    live, adapters = results / "live", results / "adapters"
    found = {"Embedded digits, 10 clients, Dirichlet(0.05)": deployments(cells(live, DIGITS))}
    if (adapters / "brfl.json").exists():  # it has what the ten adapters have, and more
        found["CIFAR-10 Dirichlet(0.1)"] = federated(adapters / "brfl.json", 0.1)
        found["CIFAR-10 Dirichlet(1.0)"] = federated(adapters / "brfl.json", 1.0)
    else:
        found["CIFAR-10, 20 clients, Dirichlet(0.1)"] = deployments(cells(live, CIFAR10))
    found["ResNet-20, corruptions"] = known_source(adapters / "cifar10c.json")
    return found


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
