"""Whether FedTHE's Table 1 at Dir(1.0) has trained on its test samples, as the released code does.

There clients draw their training, validation and test samples anew in every phase of every round, so that after 100
rounds every test sample has been trained on. Ours are fixed; at Dir(1.0) rows of personal models are 2 to 5 points
lower than the paper's on the clients' own samples, and rows of the global model are not. Here clients train on all of
their samples, those of the test streams included, for as many steps as on three fifths of them: 3 epochs instead
of 5, and 56 steps, the mean of one epoch, in personal phases. All else is as in the recipe, whose numbers are read from
`results/fedthe`.

    python benchmarks/fedthe_redrawn.py [--rows FedAvg "FedAvg + FT" FedTHE] [--alphas 1.0] [--seeds 1] [--rounds 100]
        [--device cuda] [--keep FOLDER] [--out results/causes/fedthe-redrawn.json]

Percent, mean and deviation over seeds, by row and column: `redrawn`, `fixed`, and the `published` number.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from harness import environment, parser_of, write

from acclimate import recipes
from acclimate.core import Work
from acclimate.data import CIFAR10
from acclimate.data.world import World
from acclimate.experiment.names import allow
from acclimate.ops.devices import device_of
from acclimate.recipes.record import Cell, Derived, Named, Scale, Training

TABLE = "fedthe/table1"
ROWS = ("FedAvg", "FedAvg + FT", "FedTHE", "Ditto, not tied", "Local training")
WHOLE, PHASE = Work(epochs=3), Work(iterations=56)
"""As many steps as 5 epochs, and one, of three fifths of 3,000 samples in batches of 32."""
STEPS = {"work": WHOLE, "head_work": PHASE, "personal_work": PHASE}


@dataclass(frozen=True)
class Redrawn(CIFAR10):
    """Clients train on copies of their validation and test samples, too."""

    def world(self, seed: int = 0) -> World:
        world = super().world(seed)
        examples, train, first = world.examples, [], len(world.examples.y)
        held = [torch.cat(parts) for parts in zip(world.val, world.test, strict=True)]
        for own, rows in zip(world.train, held, strict=True):
            train.append(torch.cat([own, torch.arange(first, first + len(rows))]))
            first += len(rows)
        copied = torch.cat([torch.arange(len(examples.y)), *held])
        examples = replace(examples, x=examples.x[copied], y=examples.y[copied], domain=examples.domain[copied])
        return replace(world, examples=examples, train=tuple(train))


allow(Redrawn)


def shorter(named: Named, steps: dict[str, Work]) -> Named:
    """A record with as many steps as it had on three fifths of the samples."""
    return named.but(**{f.name: steps[f.name] for f in fields(named.record) if f.name in steps})


def redrawn(training: Training) -> Training:
    """The training on all samples of its clients."""
    data = Redrawn(**{f.name: getattr(training.data, f.name) for f in fields(training.data)})
    return replace(training, data=data, method=shorter(training.method, STEPS))


def made(scale: Scale) -> Iterator[Cell | Derived]:
    """The cells of the recipe, on clients that train on all they have."""
    for cell in recipes.recipe(TABLE).cells(scale):
        if isinstance(cell, Cell) and isinstance(cell.training.data, CIFAR10):
            personal = shorter(cell.personal, {"work": PHASE})
            cell = replace(cell, training=redrawn(cell.training), personal=personal)
        yield cell


def main() -> None:
    """Run the rows, and write them beside the recipe's and the published ones."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS[:3]))
    parser.add_argument("--alphas", nargs="+", default=["1.0"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--fraction", type=float)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/causes/fedthe-redrawn.json"))
    given = parser.parse_args()
    recipe = replace(recipes.recipe(TABLE), make=made)
    columns = [f"dir({alpha})" for alpha in given.alphas]
    plan = recipes.plan(recipe, "paper", given.rows, columns, rounds=given.rounds, fraction=given.fraction)
    with tempfile.TemporaryDirectory() as scratch:
        cells = recipes.run(plan, given.keep or Path(scratch), range(given.seeds), given.device)["cells"]
    stored = json.loads(Path(f"results/{TABLE}-paper.json").read_text())["cells"]
    fixed = {(c["row"], c["column"]): c for c in stored}
    found: dict[str, Any] = {}
    for cell in cells:
        at = (cell["row"], cell["column"])
        both = {"redrawn": cell, "fixed": fixed.get(at, {})}
        found[", ".join(at)] = {name: {k: c.get(k) for k in ("mean", "std")} for name, c in both.items()}
        found[", ".join(at)]["published"] = (cell["published"] or {}).get("mean")
        print(*at, found[", ".join(at)], flush=True)
    study = {"seeds": given.seeds, "rounds": given.rounds or 100, "fraction": given.fraction or 1.0}
    write(given.out, {"study": study, "environment": environment(device_of(given.device)), "accuracy": found})


if __name__ == "__main__":
    main()
