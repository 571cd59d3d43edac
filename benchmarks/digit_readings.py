"""Why cells of FedICON's Digit-5 tables differ: other readings of what the paper does not say, one at a time.

Of training: `momentum 0.5`, which SGD has in the code that the first author released with FedPCL; `views`, on which all
rows would train if the loader of that code, which gives two views of every training image, had the views of FedICON,
since its FedAvg trains on the first of the two. Of testing: `own size`, in which test images keep the pixels that
their sets were released with (USPS 16, MNIST and MNIST-M 28) in the middle of 32, where training images are enlarged
to 32. Rows of `fedicon/table1` and `fedicon/table7` are run by their recipes, which have neither.

    python benchmarks/digit_readings.py [--seeds 3] [--tables fedicon/table1] [--rows Local FedAvg]
        [--readings "as it is" views] [--device cuda] [--work FOLDER] [--out results/causes/digit-readings.json]

Percent, mean and deviation over seeds, by table, reading, row, test and domain, and the `published` numbers. Every
training of Table 1 is tested as the recipe does (`corrupted`), without corruption (`plain`) and at its `own size`.
`--work` keeps trainings, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment
from torch import Tensor

from acclimate import recipes, store
from acclimate.core import SGD, rng
from acclimate.experiment.names import allow
from acclimate.ops.augment import Views
from acclimate.recipes.record import Cell, Derived, Recipe, Scale, Training
from acclimate.running.build import device_of
from acclimate.shifts import Corrupted, Original, Shift
from acclimate.shifts.base import Federation, Stream

TABLES = ("fedicon/table1", "fedicon/table7")
DOMAINS = ("MNIST", "SVHN", "USPS", "MNIST-M")
OWN = {"mnist": 28, "mnistm": 28, "usps": 16}
"""Sides with which the sets were released; SVHN has 32."""


def at_own_size(x: Tensor, side: int) -> Tensor:
    """uint8 images made smaller, in the middle of black ones as large as they were."""
    small = F.interpolate(x.float(), (side, side), mode="bilinear", antialias=True).round().clamp(0, 255)
    before, after = (x.shape[-1] - side) // 2, (x.shape[-1] - side + 1) // 2
    return F.pad(small, (before, after, before, after)).to(x.dtype)


@dataclass(frozen=True)
class _Resized:
    """A federation with other images."""

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    new: tuple[Tensor, ...]
    held: Tensor
    examples: Any


@dataclass(frozen=True)
class OwnSize(Corrupted):
    """The client's own test images at the size that their set was released with, corrupted."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        examples = world.examples
        x = examples.x.clone()
        for number, name in enumerate(examples.domains):
            if name in OWN:
                rows = (examples.domain == number).nonzero().squeeze(1)
                x[rows] = at_own_size(x[rows], OWN[name])
        resized = replace(examples, x=x)
        return super().build(_Resized(world.train, world.test, world.new, world.held, resized), key)


allow(OwnSize)


def with_momentum(training: Training) -> Training:
    """SGD with momentum 0.5 where the method has SGD."""
    if not isinstance(getattr(training.method.record, "opt", None), SGD):
        return training
    return replace(training, method=training.method.but(opt=replace(training.method.record.opt, momentum=0.5)))


def with_views(training: Training) -> Training:
    """FedICON's views for methods that have none of their own."""
    if hasattr(training.method.record, "views"):
        return training
    return replace(training, data=replace(training.data, augment=Views(flip=False)))


READINGS: dict[str, Callable[[Training], Training]] = {
    "as it is": lambda training: training,
    "momentum 0.5": with_momentum,
    "views": with_views,
    "views and momentum 0.5": lambda training: with_views(with_momentum(training)),
}
TESTS: dict[str, Shift] = {"corrupted": Corrupted(), "plain": Original(), "own size": OwnSize()}


def read_so(recipe: Recipe, reading: str) -> Recipe:
    """The recipe with a reading of training, and with all tests where its own is a corrupted stream."""

    def make(scale: Scale) -> Iterator[Cell | Derived]:
        for cell in recipe.make(scale):
            if isinstance(cell, Derived):
                continue
            cell = replace(cell, training=READINGS[reading](cell.training))
            if cell.stream != TESTS["corrupted"]:
                yield cell
                continue
            for test, stream in TESTS.items():
                yield replace(
                    cell, column=cell.column if test == "corrupted" else f"{cell.column}, {test}", stream=stream
                )

    return replace(recipe, make=make)


def ran(table: str, reading: str, given: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The numbers of a table in one reading, by row and column."""
    recipe = read_so(recipes.recipe(table), reading)
    columns = [c.column for c in recipe.make("paper") if c.column.split(", ")[0] in DOMAINS]
    plan = recipes.plan(recipe, "paper", given.rows, list(dict.fromkeys(columns)), rounds=given.rounds)
    folder = work / reading.replace(" ", "-")
    found: dict[str, Any] = {}
    for cell in recipes.run(plan, folder, range(given.seeds), given.device)["cells"]:
        if cell["row"] in given.rows and cell["mean"] is not None:
            published = (cell["published"] or {}).get("mean")
            row = {"mean": cell["mean"], "std": cell["std"], "published": published}
            found.setdefault(cell["row"], {})[cell["column"]] = row
    return found


def main() -> None:
    """Run the rows in every reading, and write them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--rows", nargs="+", default=["Local", "FedAvg"])
    parser.add_argument("--readings", nargs="+", choices=list(READINGS), default=list(READINGS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/causes/digit-readings.json"))
    given = parser.parse_args()
    torch.set_flush_denormal(True)
    study = {"seeds": given.seeds, "rounds": given.rounds or 100, "severity": 5, "own sizes": OWN}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for table in given.tables:
            for reading in given.readings:
                rows = ran(table, reading, given, given.work or Path(scratch))
                found.setdefault(table, {})[reading] = rows
                print(table, reading, json.dumps(rows), flush=True)
                body = {"study": study, "environment": environment(device_of(given.device)), "accuracy": found}
                given.out.parent.mkdir(parents=True, exist_ok=True)
                store.write(given.out, json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
