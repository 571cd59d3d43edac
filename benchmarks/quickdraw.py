"""Why FedPCL's rows on digits differ: what its single backbone was trained on, and with which classifier it is used.

The paper's single backbone is a ResNet-18 that has seen QuickDraw's drawings, white on black as digits are; the recipes
have an EfficientNet-Lite0 that has seen ImageNet. Here the rows of `fedpcl/table2` and `fedpcl/table11` with one
backbone are trained on a ResNet-18 that has seen QuickDraw too, images being shown to it at its own side, in three
ways: all else as in the recipe (`paper`), with the released code's classifier besides (`classifier`), and with
everything as that code has it (`released`).

    python benchmarks/stand_ins.py drawings --quickdraw FOLDER --width 32 --epochs 3 0.1 --side 32 --out quickdraw
    python benchmarks/quickdraw.py --weights quickdraw/drawings.safetensors [--seeds 3] [--rows FedAvg Solo FedPCL]
        [--columns "feature Digit-5"] [--ways paper] [--out results/causes/quickdraw.json]

With several weights they are several backbones, side by side. Percent by way, column and row, of every seed; under
feature shift of each domain. The columns of Tables 12 and 13, with 40 and 80 clients, are run when they are named. The
last round counts. What is in the file already is not run again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import environment, kept, parser_of, write

import acclimate as ac
from acclimate import store
from acclimate.data import Features
from acclimate.eval.fairness import fairness
from acclimate.models import checkpoints
from acclimate.models.frozen import Frozen
from acclimate.recipes.fedpcl import ORDINARY, ROWS, First, TableVersion, released
from acclimate.recipes.fedpcl_tables import TEST
from acclimate.recipes.record import Training

DIGITS = ("mnist", "svhn", "usps", "mnistm")
"""Domains of Digit-5 that are here, as the paper's columns."""
COLUMNS = ("feature Digit-5", "label Digit-5", "both Digit-5", "label Office-10", "both Office-10")
MANY = {"label Digit-5, 40 clients": 40, "label Digit-5, 80 clients": 80}
"""Tables 12 and 13, with how many clients; there with three backbones."""
WAYS = ("paper", "classifier", "released")


def version(way: str, names: tuple[str, ...]) -> TableVersion:
    """The tables in one of the ways, on these backbones."""
    if way == "released":
        return released(names)
    head: Any = "released" if way == "classifier" else "linear"
    return replace(ORDINARY, setting=replace(ORDINARY.setting, weights=names, head=head, balanced=True))


def here(training: Training) -> Training:
    """The training without SynthDigits, which is not among our files."""
    data = training.data
    assert isinstance(data, Features)
    images = data.data
    digits = images.data if isinstance(images, First) else images
    if not isinstance(digits, ac.data.Digit5) or len(digits.domains) == 1:
        return training
    digits = replace(digits, domains=DIGITS)
    images = replace(images, data=digits) if isinstance(images, First) else digits
    return replace(training, data=replace(data, data=images, clients=len(DIGITS)))


def measured(made: TableVersion, row: str, column: str, seed: int, side: int) -> list[float]:
    """A row of a column: accuracy of every domain under feature shift, else the mean over clients; of many clients also
    the means of the worst 10, 20 and 40 %, and of the best 10 %."""
    shift, data = column.partition(",")[0].split()
    count = len(made.setting.weights)
    setting = made.at(data, shift, count, clients=MANY.get(column))  # type: ignore[arg-type]
    training = here(setting.training(made.rows[row], "paper"))
    assert isinstance(training.data, Features) and isinstance(training.data.encoder, Frozen)
    seen = replace(training.data, encoder=replace(training.data.encoder, size=side))
    training = replace(training, data=seen)
    fit = ac.train(training.experiment(seed, "cpu"))
    found = ac.evaluate(fit, (ac.adapters.NoAdapt(),), (TEST,))
    (own,) = [r["per_client"] for r in found.where(selection="last").rows]
    several = own if shift == "feature" else [found.accuracy()]
    if column in MANY:
        ranked = fairness(own)
        several += [ranked["worst10"], ranked["worst20"], ranked["worst40"], ranked["best10"]]
    return [round(100.0 * float(a), 2) for a in several]


def main() -> None:
    """Run what is not in the file, and write after each number."""
    parser = parser_of(__doc__)
    parser.add_argument("--weights", type=Path, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--columns", nargs="+", choices=(*COLUMNS, *MANY), default=list(COLUMNS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, default=Path("results/causes/quickdraw.json"))
    given = parser.parse_args()
    names = tuple(f"resnet18@{file}#{checkpoints.digest(file)}" for file in given.weights)
    cards = [store.read_json(file.with_suffix(".json")) for file in given.weights]
    told = [{k: c[k] for k in ("trained on", "images", "width", "side", "nearest means", "digest")} for c in cards]
    study: dict[str, Any] = {"backbone": told[0]} if len(told) == 1 else {"backbones": told}
    study["domains"] = list(DIGITS)
    found = kept(given.out, study, "accuracy")
    for way, column, row in [(w, c, r) for c in given.columns for w in given.ways for r in given.rows]:
        place = found.setdefault(way, {}).setdefault(column, {})
        for seed in range(given.seeds):
            if str(seed) not in place.setdefault(row, {}):
                place[row][str(seed)] = measured(version(way, names), row, column, seed, cards[0]["side"])
                print(way, column, row, seed, place[row][str(seed)], flush=True)
                body = {"study": study, "environment": environment(torch.device("cpu")), "accuracy": found}
                write(given.out, body)


if __name__ == "__main__":
    main()
