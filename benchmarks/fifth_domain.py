"""Why FedICON's digits differ: what a fifth domain changes, since SynthDigits is not among our files.

The paper's clients are five, ours four, so that no client of ours has printed digits in colours. Here a fifth one has:
strokes in colours over clutter (`acclimate.data.drawing`) stand in for SynthDigits. Rows of `fedicon/table1` and
`fedicon/table7` are run by their recipes with and without it; all else is the same.

    python benchmarks/fifth_domain.py [--seeds 3] [--device cuda] [--out results/causes/fifth-domain.json]

Percent, mean over seeds, by table, row and domain: `four` and `five` domains, and the `published` number.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from harness import environment

from acclimate import recipes, store
from acclimate.core import rng
from acclimate.data import drawing
from acclimate.running.build import device_of

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


def root(here: Path, fifth: bool) -> str:
    """A data root with the four domains that are here, and with the stand-in where it is asked for."""
    own = Path(os.environ["ACCLIMATE_DATA"]).resolve()
    for domain in ("mnist", "svhn", "usps", "mnistm"):
        (here / "digit5").mkdir(parents=True, exist_ok=True)
        (here / "digit5" / domain).symlink_to(own / "digit5" / domain)
    if fifth:
        drawn(here / "digit5" / "syn")
    return str(here)


def measured(table: str, seeds: int, rounds: int | None, device: str) -> dict[str, Any]:
    """Cells of a recipe by row and domain: ours by seed, and the published mean."""
    plan = recipes.plan(recipes.recipe(table), "paper", TABLES[table], DOMAINS, rounds=rounds)
    with tempfile.TemporaryDirectory() as out:
        cells = recipes.run(plan, Path(out), range(seeds), device)["cells"]
    return {f"{c['row']}, {c['column']}": (c["ours"], (c["published"] or {}).get("mean")) for c in cells}


def main() -> None:
    """Run the rows in both worlds, and write them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/causes/fifth-domain.json"))
    given = parser.parse_args()
    own, found = os.environ.get("ACCLIMATE_DATA"), dict[str, dict[str, dict[str, Any]]]()
    if own is None:
        raise SystemExit("ACCLIMATE_DATA must name the folder that holds digit5")
    for name in ("four", "five"):
        with tempfile.TemporaryDirectory() as here:
            os.environ["ACCLIMATE_DATA"] = own
            os.environ["ACCLIMATE_DATA"] = root(Path(here), name == "five")
            for table in TABLES:
                for place, (ours, theirs) in measured(table, given.seeds, given.rounds, given.device).items():
                    at = found.setdefault(table, {}).setdefault(place, {"published": theirs})
                    spread = round(stdev(ours), 2) if len(ours) > 1 else None
                    at[name] = {"mean": round(fmean(ours), 2), "std": spread}
                    print(table, place, name, at[name], "published", theirs, flush=True)
    study = {"seeds": given.seeds, "rounds": given.rounds or 100, "stand-in": "strokes in colours over clutter"}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    body = {"study": study, "environment": environment(device_of(given.device)), "accuracy": found}
    store.write(given.out, json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
