"""Stored tables of the papers are of the trainings that their recipes make today: no default changes one unnoticed."""

import json
from pathlib import Path

import pytest

from acclimate import recipes
from acclimate.recipes import needs
from acclimate.recipes.record import Cell

ROOT = Path(__file__).parents[2]
FILES = [
    "fedicon/rate10",
    "fedicon/released-table1",
    "fedicon/released-table2",
    "fedicon/released-table5",
    "fedicon/released-table7",
    "fedicon/released-table8",
    "fedicon/released-table9",
    "fedicon/table1",
    "fedicon/table2",
    "fedicon/table5",
    "fedicon/table7",
    "fedicon/table8",
    "fedicon/table9",
    "fedpcl/bits",
    "fedpcl/figure2",
    "fedpcl/figure3",
    "fedpcl/norm",
    "fedpcl/released",
    "fedpcl/table1",
    "fedpcl/table2",
    "fedpcl/table3",
    "fedpcl/table4",
    "fedpcl/table5",
    "fedpcl/table6",
    "fedpcl/table11",
    "fedpcl/table12",
    "fedpcl/table13",
    "fedpcl/table14",
    "fedpcl/table15",
    "fedspl/pacs",
    "fedspl/table2",
    "fedspl/table4",
    "fedthe/table1",
    "fedthe/table3",
    "fedthe/table7",
    "fedthe/table8",
    "fedthe/table10",
    "fedthe/table11",
    "fedthe/table13",
    "fedthe/table14",
    "fedtta/fashion",
    "fedtta/figure3",
    "fedtta/figure4",
    "fedtta/steps",
    "fedtta/table1",
]
HAVE = (
    "OfficeCaltech10",
    "PACS",
    "CIFAR10",
    "MNIST",
    "FashionMNIST",
    *(f"Digit5 ({d})" for d in ("mnist", "mnistm", "svhn", "usps")),
)
"""Where they were run: recipes of Digit-5 take the domains that are there."""


@pytest.mark.parametrize("name", FILES)
def test_stored_numbers_are_of_the_trainings_that_the_recipe_makes(name):
    stored = json.loads((ROOT / f"results/{name}-paper.json").read_text())
    hashes = {record["training_hash"] for record in stored["records"]}
    places = {(cell["row"], cell["column"]) for cell in stored["cells"] if cell.get("ours")}
    made = [c for c in recipes.recipe(stored["recipe"]).make("paper") if isinstance(c, Cell)]
    cells = [c for c, _ in (needs.fitted(c, HAVE) for c in made) if c]
    trainings = {c.training: (c.row, c.column) for c in cells if (c.row, c.column) in places}
    assert trainings
    for training, place in trainings.items():
        runs = [training.experiment(seed, device) for seed in stored["seeds"] for device in ("cuda", "cpu", "auto")]
        assert any({run.training_hash(), run.former_hash(exact=True)} & hashes for run in runs), place
