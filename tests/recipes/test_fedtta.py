"""FedTTA's recipes: what the paper states holds for every row."""

import pytest

from acclimate.core.message import Mean
from acclimate.recipes import fedtta


def test_clients_count_as_one_in_every_row():
    for row, line in fedtta.lines(fedtta.SMOKE_RATES).items():
        means = [rule.by for rule in line.method.record.uplink.values() if isinstance(rule, Mean)]
        assert set(means) == ({"share"} if row == "AFL" else {None}), row


@pytest.mark.parametrize("recipe", fedtta.RECIPES, ids=lambda r: r.name)
def test_every_training_is_bounded_as_released_and_says_so(recipe):
    works = {cell.training.method.record.work for cell in recipe.cells("paper")}
    assert {work.clip for work in works} == {10.0}
    assert any("clipped at 10" in note for note in recipe.notes)
