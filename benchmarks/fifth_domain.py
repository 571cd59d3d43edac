"""Why FedICON's digits differ: what a fifth domain changes, since SynthDigits is not among our files.

The paper's clients are five, ours four, so that no client of ours has printed digits in colours. Here a fifth one has:
strokes in colours over clutter (`acclimate.data.drawing`) stand in for SynthDigits. Rows of `fedicon/table1` and
`fedicon/table7` are run by their recipes with it; those without it are read from `results/fedicon`.

    python benchmarks/fifth_domain.py [--seeds 3] [--device cuda] [--out results/causes/fifth-domain.json]

Percent, mean over seeds, by table, row and domain: `four` and `five` domains, and the `published` number.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import environment, parser_of, write

from acclimate import recipes
from acclimate.core import rng
from acclimate.data import drawing
from acclimate.ops.devices import device_of

TABLES = {"fedicon/table7": ("FedAvg", "FedICON, not adapted"), "fedicon/table1": ("Local", "FedAvg", "FedRep")}
DOMAINS = ("MNIST", "SVHN", "USPS", "MNIST-M")
PER_CLASS = {"train": 500, "test": 100}


def drawn(folder: Path) -> None:
    """Write the stand-in: coloured strokes over clutter, in the layout of Digit-5."""
    folder.mkdir(parents=True)
    for part, count in PER_CLASS.items():
        y = torch.arange(10).repeat(count)
        keys = rng.rows(rng.fold(rng.key(0), part), len(y))
        x = drawing.STYLES["clutter"](drawing.font(y, keys, 32), keys)
        np.savez(folder / f"{part}.npz", x=x.permute(0, 2, 3, 1).numpy(), y=y.numpy())


def root(here: Path) -> str:
    """A data root with the four domains that are here, and the stand-in."""
    own = Path(os.environ["ACCLIMATE_DATA"]).resolve()
    (here / "digit5").mkdir()
    for domain in ("mnist", "svhn", "usps", "mnistm"):
        (here / "digit5" / domain).symlink_to(own / "digit5" / domain)
    drawn(here / "digit5" / "syn")
    return str(here)


def by_place(cells: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Means, deviations over seeds and published numbers by row and domain."""
    kept = ("mean", "std", "published")
    return {f"{c['row']}, {c['column']}": {k: c[k] for k in kept} for c in cells if c["column"] in DOMAINS}


def compared(table: str, seeds: int, rounds: int | None, device: str) -> dict[str, Any]:
    """A table's rows with five domains, with four, and as published."""
    stored = json.loads(Path(f"results/{table}-paper.json").read_text())
    plan = recipes.plan(recipes.recipe(table), "paper", TABLES[table], DOMAINS, rounds=rounds)
    with tempfile.TemporaryDirectory() as out:
        five = by_place(recipes.run(plan, Path(out), range(seeds), device)["cells"])
    four = by_place(stored["cells"])
    rows: dict[str, dict[str, Any]] = {}
    for place, found in five.items():
        rows[place] = {n: {"mean": f["mean"], "std": f["std"]} for n, f in (("five", found), ("four", four[place]))}
        rows[place]["published"] = (found["published"] or {}).get("mean")
        print(table, place, rows[place], flush=True)
    return rows


def main() -> None:
    """Run the rows with the stand-in, and write them beside those without."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/causes/fifth-domain.json"))
    given = parser.parse_args()
    if "ACCLIMATE_DATA" not in os.environ:
        raise SystemExit("ACCLIMATE_DATA must name the folder that holds digit5")
    study = {"seeds": given.seeds, "rounds": given.rounds or 100, "stand-in": "strokes in colours over clutter"}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as here:
        os.environ["ACCLIMATE_DATA"] = root(Path(here))
        for table in TABLES:
            found[table] = compared(table, given.seeds, given.rounds, given.device)
            body = {"study": study, "environment": environment(device_of(given.device)), "accuracy": found}
            write(given.out, body)


if __name__ == "__main__":
    main()
