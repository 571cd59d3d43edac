"""Why FedPCL's rows under both shifts differ: on which classes clients are tested, and with which classifier.

The released loader deals training images of every class by Dirichlet shares, and tests every client on up to a hundred
images of each class of its domain, whatever it has trained on. On Digit-5 the recipes do so; on Office-10 their clients
are tested on a class mix of their own, as they are trained. Here rows of `fedpcl/table11` are run on Office-10 with
the released loader's test images, and on Digit-5 with the released classifier (`fedpcl/released`) besides; those of the
recipe are read from `results/fedpcl`.

    python benchmarks/tested_classes.py [--seeds 3] [--rows FedAvg Solo] [--columns "both shift multi Digit-5"]
        [--device cuda] [--keep FOLDER] [--out results/causes/tested-classes.json]

Percent, mean and deviation over seeds, by case and row: `released`, as the `recipe` has it, and the `published` number.
Rows that the file has already stay. With `--keep` finished trainings are kept in that folder, and what is there is not
trained again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import environment, parser_of, write

from acclimate import recipes
from acclimate.ops.devices import device_of
from acclimate.recipes.fedpcl import ROWS, FrozenFederation
from acclimate.recipes.record import Cell, Scale

TABLE = "fedpcl/table11"
CASES = {
    "both shift single Office-10": FrozenFederation("Office-10", "both", (0,), balanced=True),
    "both shift single Digit-5": FrozenFederation("Digit-5", "both", (0,), balanced=True, head="released"),
    "both shift multi Digit-5": FrozenFederation("Digit-5", "both", balanced=True, head="released"),
}
"""Columns of the table, and their setting by the released code."""


def released(rows: Sequence[str], columns: Sequence[str]) -> Callable[[Scale], Iterator[Cell]]:
    """Rows of the columns as the released code has them."""

    def make(scale: Scale) -> Iterator[Cell]:
        for cell in recipes.recipe(TABLE).cells(scale):
            if isinstance(cell, Cell) and cell.column in columns and cell.row in rows:
                yield replace(cell, training=CASES[cell.column].training(ROWS[cell.row], scale))

    return make


def main() -> None:
    """Run the rows, and write them beside the recipe's and the published ones."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["FedAvg", "Solo", "FedPCL"])
    parser.add_argument("--columns", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/causes/tested-classes.json"))
    given = parser.parse_args()
    stored = json.loads(Path(f"results/{TABLE}-paper.json").read_text())["cells"]
    own = {(c["row"], c["column"]): c for c in stored}
    plan = recipes.plan(replace(recipes.recipe(TABLE), make=released(given.rows, given.columns)), "paper")
    with tempfile.TemporaryDirectory() as scratch:
        cells = recipes.run(plan, given.keep or Path(scratch), range(given.seeds), given.device)["cells"]
    earlier = json.loads(given.out.read_text())["accuracy"] if given.out.exists() else {}
    found: dict[str, Any] = {column: earlier.get(column, {}) for column in CASES}
    for cell in cells:
        both = {"released": cell, "recipe": own[cell["row"], cell["column"]]}
        row = {name: {k: c[k] for k in ("mean", "std")} for name, c in both.items()}
        found[cell["column"]][cell["row"]] = {**row, "published": cell["published"]["mean"]}
        print(cell["column"], cell["row"], found[cell["column"]][cell["row"]], flush=True)
    body = {"study": {"seeds": given.seeds}, "environment": environment(device_of(given.device)), "accuracy": found}
    write(given.out, body)


if __name__ == "__main__":
    main()
