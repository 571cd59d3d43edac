"""FedTHE's tables in Markdown, ours beside the published ones, from what benchmarks/fedthe_cifar10.py wrote.

    python benchmarks/fedthe_table.py table1.json
    python benchmarks/fedthe_table.py --table ablations table1.json ablations.json

Accuracy in %, with the standard deviation over seeds where there are several; the published mean stands in brackets.
Where a row was run twice on the same seed, the later result counts. A * marks rows that differ from the paper by more
than --apart points somewhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from acclimate.recipes import brfl as recipes
from acclimate.recipes import published

TABLES = {"1": ("fedthe/table1", "fedthe/table4"), "ablations": ("fedthe/table13",)}
"""Where the published numbers lie; Table 4 is Table 1 at Dir(10)."""
OWN = {"local": "Local training", "fedavg+lp": "FedAvg + LP", "fedavg+lp-ft": "FedAvg + LP-FT"}
OWN |= {"ttt-episodic": "TTT, reset per sample", "tsa": "TSA on FedTHE's two heads"}
"""Rows that are not in the paper's Table 1."""
STREAMS = ("original", "corrupted", "natural", "out-of-client", "mixture")


def layout(table: str) -> dict[str, Any]:
    """The rows of a table with their published numbers by alpha and stream."""
    bodies = [published.table(name) for name in TABLES[table]]
    names = recipes.PRINTED if table == "1" else recipes.ABLATIONS
    lines = {row: {"row": row, "name": OWN.get(row, row), "published": {}} for row in recipes.TABLE1 if table == "1"}
    for row in names.values():
        lines.setdefault(row, {"row": row, "name": row, "published": {}})
    for number in (row for body in bodies for row in body["rows"]):
        row = names.get(number["method"] if table == "1" else number["design_choice"])
        if row is not None and number["stream"] in STREAMS:
            lines[row]["name"] = number["method"]
            alpha = number["partition"].removeprefix("dir(").removesuffix(")")
            cells = lines[row]["published"].setdefault(alpha, {})
            cells[number["stream"]] = [number["mean"], number["std"]]
    places = " and ".join(body["place"] for body in bodies)
    return {"source": f"{bodies[0]['paper']}, {places}", "rows": list(lines.values())}


class Setting(NamedTuple):
    """What rows must have in common to stand in one table."""

    alpha: float
    rounds: int
    fraction: float

    def __str__(self) -> str:
        part = "" if self.fraction == 1 else f", {self.fraction:g} of the data"
        return f"Dir({self.alpha}), {self.rounds} rounds{part}"


Seeds = dict[int, dict[str, float]]
"""Seed -> stream -> accuracy in %."""
Found = dict[Setting, dict[str, Seeds]]
"""By setting and row."""


def collected(files: Iterable[Path]) -> Found:
    """All results of these files; later ones replace earlier ones of the same row and seed."""
    found: Found = {}
    for file in files:
        for record in json.loads(file.read_text())["records"]:
            rows = found.setdefault(Setting(record["alpha"], record["rounds"], record["fraction"]), {})
            for row in record["rows"]:
                accuracy = {stream: 100 * m["accuracy"] for stream, m in row["streams"].items()}
                rows.setdefault(row["row"], {})[record["seed"]] = accuracy
    return found


def over_seeds(seeds: Seeds, stream: str) -> list[float]:
    """The accuracies on a stream, of the seeds that have it."""
    return [accuracy[stream] for accuracy in seeds.values() if stream in accuracy]


def cell(ours: list[float], published: list[float] | None) -> str:
    """Ours, and theirs in brackets."""
    spread = f" ± {statistics.stdev(ours):.1f}" if len(ours) > 1 else ""
    mean = f"{statistics.fmean(ours):.1f}{spread}" if ours else "-"
    return f"{mean} ({published[0]:.1f})" if published else f"{mean} (-)"


def far(seeds: Seeds, published: dict[str, list[float]], apart: float) -> bool:
    """Whether our mean and theirs differ by more than `apart` points on some stream."""
    both = [(over_seeds(seeds, stream), theirs[0]) for stream, theirs in published.items()]
    return any(abs(statistics.fmean(ours) - theirs) > apart for ours, theirs in both if ours)


def rendered(layout: dict[str, Any], setting: Setting, rows: dict[str, Seeds], apart: float) -> str:
    """One Markdown table: the rows of the layout that were run."""
    streams = [s for s in STREAMS if any(over_seeds(seeds, s) for seeds in rows.values())]
    lines = [f"| row | seeds | {' | '.join(streams)} |", f"|---|---|{'---|' * len(streams)}"]
    for line in layout["rows"]:
        if seeds := rows.get(line["row"]):
            theirs = line["published"].get(str(setting.alpha), {})
            cells = " | ".join(cell(over_seeds(seeds, s), theirs.get(s)) for s in streams)
            mark = " *" if far(seeds, theirs, apart) else ""
            lines.append(f"| {line['name']}{mark} | {len(seeds)} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table for every setting found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--table", choices=list(TABLES), default="1")
    parser.add_argument("--apart", type=float, default=3.0)
    args = parser.parse_args()
    lines = layout(args.table)
    for setting, rows in sorted(collected(args.files).items()):
        print(f"{setting}; in brackets: {lines['source']}\n\n{rendered(lines, setting, rows, args.apart)}\n")


if __name__ == "__main__":
    main()
