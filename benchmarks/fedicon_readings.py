"""Why cells of FedICON's tables differ: other readings of what the paper does not say, one at a time.

Of training: `momentum 0.5`, which SGD has in the code that the first author released with FedPCL; `momentum 0.9`, which
it has in the FedICON of COALA, which the laboratory of the paper released later; `views`, on which all rows would
train if the loader of FedPCL's code, which gives two views of every training image, had the views of FedICON, since its
FedAvg trains on the first of the two; views with either momentum; of Office-10 `fifty per class`, as many training
images as that loader takes; and of Digit-5 `20 per class`, `30 per class` and `74 per class`, with more than the ten
that the loader takes of a file, up to all that the file has, with momentum 0.9 too. Of testing:
`own size`, in which test images of Digit-5 keep the pixels that their sets were released with (USPS 16, MNIST and
MNIST-M 28) in the middle of 32, where training images are enlarged to 32; `not scaled`, in which training images are
scaled to -1..1, as FedPCL's loader does, and corrupted ones to 0..1, where the corruptions that FedTHE released leave
them; and `wrapped`, which is those two as they are released: the corruptions get images that are scaled to -1..1
already, whose bytes wrap around, and leave them in 0..1; `own size, wrapped` is that of images that keep their pixels.
Rows are run by their recipes, which have none of these.

    python benchmarks/fedicon_readings.py [--seeds 3] [--tables fedicon/table1] [--rows Local FedAvg] [--domains USPS]
        [--readings "as it is" views] [--tests plain "not scaled"] [--device cuda] [--work FOLDER]
        [--out results/causes/fedicon-readings.json]

Percent, mean and deviation over seeds, by table, reading, row and domain (of Table 8 the `mean` of all), and the
`published` numbers. Trainings of
Digit-5 are tested as the recipe does (`MNIST`) and in the readings of testing (`MNIST, own size`), those of Table 1
without corruption too (`MNIST, plain`), those of Table 7 plain, at their own size and not scaled; `--tests` names what
is wanted. `--work` keeps trainings, so that the same command goes on where it was stopped. A file that has numbers
of as many seeds and rounds already is added to; `runs` has the commands that made it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment
from torch import Tensor

from acclimate import recipes, store
from acclimate.core import SGD, rng
from acclimate.data import PerClass, TrainTest
from acclimate.experiment.names import allow
from acclimate.ops.augment import Views
from acclimate.ops.devices import device_of
from acclimate.recipes.federations import Kit
from acclimate.recipes.fedicon import FIFTH, TEN
from acclimate.recipes.record import Cell, Derived, Recipe, Scale, Training
from acclimate.recipes.wrapped import NotScaled, WrappedBytes, unscaled, with_images
from acclimate.shifts import Corrupted, Original, Shift, UnseenDomain
from acclimate.shifts.base import Federation, Stream

TABLES = {f"fedicon/table{n}": TEN for n in (1, 7, 8)} | {f"fedicon/table{n}": FIFTH for n in (2, 5)}
OWN = {"mnist": 28, "mnistm": 28, "usps": 16}
"""Sides with which the sets were released; SVHN has 32."""


def at_own_size(x: Tensor, side: int) -> Tensor:
    """uint8 images made smaller, in the middle of black ones as large as they were."""
    small = F.interpolate(x.float(), (side, side), mode="bilinear", antialias=True).round().clamp(0, 255)
    before, after = (x.shape[-1] - side) // 2, (x.shape[-1] - side + 1) // 2
    return F.pad(small, (before, after, before, after)).to(x.dtype)


def resized(world: Federation) -> Federation:
    """The federation with images at the size that their sets were released with."""
    examples = world.examples
    x = examples.x.clone()
    for number, name in enumerate(examples.domains):
        if name in OWN:
            rows = (examples.domain == number).nonzero().squeeze(1)
            x[rows] = at_own_size(x[rows], OWN[name])
    return with_images(world, x)


@dataclass(frozen=True)
class OwnSize(Corrupted):
    """The client's own test images at the size that their set was released with, corrupted."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        return super().build(resized(world), key)


@dataclass(frozen=True)
class UnseenOwnSize(UnseenDomain):
    """The images of a domain that nobody trained on, at the size that their set was released with."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        return super().build(resized(world), key)


@dataclass(frozen=True)
class UnseenNotScaled(UnseenDomain):
    """The images of a domain that nobody trained on, in 0..1 where those of training are in -1..1."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        made = super().build(world, key)
        return replace(made, shards=replace(made.shards, x=unscaled(made.shards.x)))


@dataclass(frozen=True)
class WrappedOwnSize(WrappedBytes):
    """The same, of images at the size that their set was released with."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        return super().build(resized(world), key)


for stream in (OwnSize, UnseenOwnSize, UnseenNotScaled, WrappedOwnSize):
    allow(stream)


@dataclass(frozen=True)
class Fifty(TrainTest):
    """A fifth for testing, and of every class at most fifty images of the rest for training."""

    most: int = 50

    def cut(self, y: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        train, val, test = super().cut(y, key)
        kept = [train[y[train] == c][: self.most] for c in y.unique().tolist()]
        return torch.cat(kept), val, test


allow(Fifty)


def with_momentum(training: Training, momentum: float) -> Training:
    """SGD with this momentum where the method has SGD."""
    if not isinstance(getattr(training.method.record, "opt", None), SGD):
        return training
    return replace(training, method=training.method.but(opt=replace(training.method.record.opt, momentum=momentum)))


def with_fifty(training: Training, kit: Kit) -> Training:
    """Office-10 with at most fifty training images of a class."""
    return replace(training, data=replace(training.data, split=Fifty())) if kit is FIFTH else training


def with_more(training: Training, kit: Kit, images: int) -> Training:
    """Digit-5 with so many training images of a class."""
    return replace(training, data=replace(training.data, split=PerClass(train=images))) if kit is TEN else training


def with_views(training: Training, kit: Kit) -> Training:
    """FedICON's views for methods that have none of their own."""
    if hasattr(training.method.record, "views"):
        return training
    return replace(training, data=replace(training.data, augment=Views(flip=kit.mirrored)))


READINGS: dict[str, Callable[[Training, Kit], Training]] = {
    "as it is": lambda training, kit: training,
    "momentum 0.5": lambda training, kit: with_momentum(training, 0.5),
    "momentum 0.9": lambda training, kit: with_momentum(training, 0.9),
    "views": with_views,
    "views and momentum 0.5": lambda training, kit: with_views(with_momentum(training, 0.5), kit),
    "views and momentum 0.9": lambda training, kit: with_views(with_momentum(training, 0.9), kit),
    "fifty per class": with_fifty,
}
for count in (20, 30, 74):  # FedPCL's loader takes ten out of a file of 743 images
    READINGS[f"{count} per class"] = lambda training, kit, count=count: with_more(training, kit, count)
    READINGS[f"{count} per class and momentum 0.9"] = lambda training, kit, count=count: with_more(
        with_momentum(training, 0.9), kit, count
    )
TESTS: dict[Shift, dict[str, Shift]] = {
    Corrupted(): {
        "": Corrupted(),
        ", plain": Original(),
        ", own size": OwnSize(),
        ", not scaled": NotScaled(),
        ", wrapped": WrappedBytes(),
        ", own size, wrapped": WrappedOwnSize(),
    },
    UnseenDomain(): {"": UnseenDomain(), ", own size": UnseenOwnSize(), ", not scaled": UnseenNotScaled()},
}
"""For a table's own test: what a column's name has behind it, and how its trainings are tested."""


NAMES = tuple(dict.fromkeys(name[2:] for tests in TESTS.values() for name in tests if name))
"""The tests beside a table's own."""


def tests_of(cell: Cell, kit: Kit, names: Collection[str]) -> dict[str, Shift]:
    """The cell's own test, and with digits those of these names."""
    every = TESTS[cell.stream] if kit is TEN else {"": cell.stream}
    return {name: test for name, test in every.items() if not name or name[2:] in names}


def read_so(table: str, reading: str, tests: Collection[str] = NAMES) -> Recipe:
    """A table's recipe with a reading of training, and with these tests beside its own."""
    recipe, kit = recipes.recipe(table), TABLES[table]

    def make(scale: Scale) -> Iterator[Cell | Derived]:
        for cell in recipe.make(scale):
            if isinstance(cell, Cell):
                trained = READINGS[reading](cell.training, kit)
                for name, stream in tests_of(cell, kit, tests).items():
                    yield replace(cell, training=trained, column=cell.column + name, stream=stream)

    return replace(recipe, make=make)


def ran(table: str, reading: str, given: argparse.Namespace, work: Path) -> tuple[dict[str, Any], set[str]]:
    """The numbers of a table in one reading, by row and column, and the commits at which their models were trained."""
    recipe = read_so(table, reading, given.tests)
    columns = [c.column for c in recipe.make("paper") if c.column.split(", ")[0] in (*given.domains, "mean")]
    plan = recipes.plan(recipe, "paper", given.rows, list(dict.fromkeys(columns)), rounds=given.rounds)
    results = recipes.run(plan, work / reading.replace(" ", "-"), range(given.seeds), given.device)
    found: dict[str, Any] = {}
    for cell in results["cells"]:
        if cell["row"] in given.rows and cell["mean"] is not None:
            published = (cell["published"] or {}).get("mean")
            row = {"mean": cell["mean"], "std": cell["std"], "published": published}
            found.setdefault(cell["row"], {})[cell["column"]] = row
    return found, {record["environment"]["commit"] for record in results["records"]}


def kept(out: Path, study: dict[str, Any]) -> dict[str, Any]:
    """What the file has of the same study already, to which this run adds."""
    if not out.exists():
        return {"study": study, "runs": [], "accuracy": {}}
    body: dict[str, Any] = json.loads(out.read_text())
    if body["study"] != study:
        raise SystemExit(f"{out} has study={body['study']}, and this is {study}; name another --out")
    return body


def main() -> None:
    """Run the rows in every reading, and write them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=["fedicon/table1"])
    parser.add_argument("--rows", nargs="+", default=["Local", "FedAvg"])
    parser.add_argument("--readings", nargs="+", choices=list(READINGS), default=list(READINGS))
    parser.add_argument("--domains", nargs="+", default=[*TEN.domains, *FIFTH.domains], metavar="DOMAIN")
    parser.add_argument("--tests", nargs="*", choices=NAMES, default=NAMES, metavar="TEST")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/causes/fedicon-readings.json"))
    given = parser.parse_args()
    body = kept(given.out, {"seeds": given.seeds, "rounds": given.rounds or 100, "severity": 5, "own sizes": OWN})
    made = {**environment(device_of(given.device)), "trained at": list[str]()}
    body["runs"].append(made)
    with tempfile.TemporaryDirectory() as scratch:
        for table in given.tables:
            for reading in given.readings:
                rows, commits = ran(table, reading, given, given.work or Path(scratch))
                made["trained at"] = sorted({*made["trained at"], *commits})
                print(table, reading, json.dumps(rows), flush=True)
                for row, columns in rows.items():
                    places = body["accuracy"].setdefault(table, {}).setdefault(reading, {})
                    places.setdefault(row, {}).update(columns)
                given.out.parent.mkdir(parents=True, exist_ok=True)
                store.write(given.out, json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
