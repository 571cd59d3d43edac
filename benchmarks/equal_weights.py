"""Why FedICON's Office-10 differs, domain by domain: what it changes that all clients count alike.

Where Amazon and Caltech are involved ours are mostly above the paper, on DSLR and Webcam mostly below it. Clients of
Office-10 have 766, 898, 125 and 236 training images, and the recipes weigh them by these, as Eq. 4 does. The code that
the first author released with FedPCL averages without weights: then the two small domains, which show the same objects,
count half instead of a sixth. Rows of `fedicon/table2` and `fedicon/table5` are run with equal weights, by the
recipes `fedicon/released-table2` and `fedicon/released-table5`; those with weights are read from `results/fedicon`.

    python benchmarks/equal_weights.py [--seeds 3] [--rows FedAvg T3A] [--columns Amazon] [--rounds 100]
        [--device cuda] [--out results/causes/equal-weights.json]

Percent, mean and deviation over seeds, by table, row and domain: `alike`, by `samples`, and the `published` number.
With `--rounds` rows by samples are run as well.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from harness import environment, parser_of, write

from acclimate import recipes
from acclimate.ops.devices import device_of
from acclimate.recipes.record import Recipe

TABLES = ("fedicon/table2", "fedicon/table5")
ROWS = ("FedAvg", "FedAvg-FT", "FedProx", "FedBN", "Tent", "T3A", "FedICON")
DOMAINS = ("Amazon", "Caltech", "DSLR", "Webcam")


def ran(recipe: Recipe, given: argparse.Namespace) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of a recipe by row and column."""
    plan = recipes.plan(recipe, "paper", given.rows, given.columns, rounds=given.rounds)
    with tempfile.TemporaryDirectory() as out:
        cells = recipes.run(plan, Path(out), range(given.seeds), given.device)["cells"]
    return {(c["row"], c["column"]): c for c in cells}


def compared(table: str, given: argparse.Namespace) -> dict[str, Any]:
    """Rows of a table with equal weights, with weights by samples, and as published."""
    recipe, found = recipes.recipe(table), dict[str, Any]()
    own = json.loads(Path(f"results/{table}-paper.json").read_text())["cells"]
    stored = {(c["row"], c["column"]): c for c in own}
    weighed = ran(recipe, given) if given.rounds else stored
    same = ran(recipes.recipe(table.replace("/", "/released-")), given)
    for place, cell in same.items():
        both = {"alike": cell, "samples": weighed[place]}
        row = {name: {k: c[k] for k in ("mean", "std")} for name, c in both.items()}
        found[", ".join(place)] = {**row, "published": (cell["published"] or {}).get("mean")}
        print(table, *place, found[", ".join(place)], flush=True)
    return found


def main() -> None:
    """Run the rows with equal weights, and write them beside those with weights."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--columns", nargs="+", choices=DOMAINS, default=list(DOMAINS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/causes/equal-weights.json"))
    given = parser.parse_args()
    study, found = {"seeds": given.seeds, "rounds": given.rounds or 100}, dict[str, Any]()
    for table in given.tables:
        found[table] = compared(table, given)
        body = {"study": study, "environment": environment(device_of(given.device)), "accuracy": found}
        write(given.out, body)


if __name__ == "__main__":
    main()
