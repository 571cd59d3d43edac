"""What each point of FedPCL's published code does to its rows: the tables as that code has them, with one point undone.

`fedpcl/released-table11` cuts features to 0 and 1 and bounds the logits of classifiers. Here
rows with one backbone are run with features as they are, with an ordinary classifier, and with both; all else is as in
the recipe, whose own numbers are read from `results/fedpcl`.

    python benchmarks/released_parts.py --weights stand-ins [--seeds 1] [--rows FedAvg Solo FedPCL] [--device cpu]
        [--keep FOLDER] [--out results/causes/released-parts.json]

Percent, mean over seeds, by column and row: `released`, without the `cut`, without the bounded `classifier`, without
both (`neither`), and the `published` number. With `--keep` finished trainings are kept in that folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import environment, parser_of, write

from acclimate import recipes
from acclimate.data import Features
from acclimate.models.frozen import Frozen, Projection
from acclimate.ops.devices import device_of
from acclimate.recipes.fedpcl import ROWS
from acclimate.recipes.record import Cell, Derived, Scale, Training

TABLES = {"fedpcl/released-table11": "single"}
"""The recipe, and the words of the columns that are run."""
UNDONE = {"cut": (True, False), "classifier": (False, True), "neither": (True, True)}
"""What is undone: features cut to 0 and 1, the bounded classifier."""


def undone(training: Training, cut: bool, classifier: bool) -> Training:
    """A training without these points of the published code."""
    data, model = training.data, training.model
    assert isinstance(data, Features) and isinstance(data.encoder, Frozen) and isinstance(model, Projection)
    if cut:
        whole = Frozen(data.encoder.backbones, size=data.encoder.size, width=data.encoder.width)
        data = replace(data, encoder=whole)
    return replace(training, data=data, model=replace(model, head="linear") if classifier else model)


def made(table: str, points: tuple[bool, bool]) -> Callable[..., Iterator[Cell | Derived]]:
    """The cells of a recipe without some points."""

    def make(scale: Scale, backbones: tuple[str, ...] = ()) -> Iterator[Cell | Derived]:
        for cell in recipes.recipe(table).cells(scale, backbones):
            yield replace(cell, training=undone(cell.training, *points)) if isinstance(cell, Cell) else cell

    return make


def main() -> None:
    """Run the rows, and write them beside the recipe's and the published ones."""
    parser = parser_of(__doc__)
    parser.add_argument("--weights", required=True, help="the folder of benchmarks/stand_ins.py")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["FedAvg", "Solo", "FedPCL"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("results/causes/released-parts.json"))
    given = parser.parse_args()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for table, columns in TABLES.items():
        stored = json.loads((given.results / f"{table}-paper-resnet18.json").read_text())["cells"]
        own = {(c["row"], c["column"]): c for c in stored}
        for name, points in UNDONE.items():
            recipe = replace(recipes.recipe(table), make=made(table, points))
            plan = recipes.plan(recipe, "paper", given.rows, [columns], weights=given.weights)
            with tempfile.TemporaryDirectory() as scratch:
                out = given.keep / name if given.keep else Path(scratch)
                cells = recipes.run(plan, out, range(given.seeds), given.device)["cells"]
            for cell in (c for c in cells if c["percent"]):
                at = own[cell["row"], cell["column"]]
                place = found.setdefault(cell["column"], {}).setdefault(cell["row"], {"released": at["mean"]})
                place |= {name: cell["mean"], "published": (cell["published"] or {}).get("mean")}
            print(table, name, {f"{c['row']}, {c['column']}": c["mean"] for c in cells}, flush=True)
            study = {"seeds": given.seeds, "rows": given.rows}
            body = {"study": study, "environment": environment(device_of(given.device)), "accuracy": found}
            write(given.out, body)


if __name__ == "__main__":
    main()
