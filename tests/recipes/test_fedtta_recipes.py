"""FedTTA's recipes: what the paper states holds for every row."""

import pytest

from acclimate.adapters import Tent
from acclimate.core import SGD, Mean, Protocol, Shards
from acclimate.methods import FedAvg
from acclimate.recipes import fedtta
from acclimate.recipes.once import TentOnce
from support import SMALL, fitted, shards


def test_clients_count_as_one_in_every_row():
    for row, line in fedtta.lines(fedtta.SMOKE_RATES).items():
        means = [rule.by for rule in line.method.record.uplink.values() if isinstance(rule, Mean)]
        assert set(means) == ({"share"} if row == "AFL" else {None}), row


@pytest.mark.parametrize("recipe", fedtta.RECIPES, ids=lambda r: r.name)
def test_every_training_is_bounded_as_released_and_says_so(recipe):
    works = {cell.training.method.record.work for cell in recipe.cells("paper")}
    assert {work.clip for work in works} == {10.0}
    assert any("clipped at 10" in note for note in recipe.notes)


def test_tents_one_step_on_the_whole_set_counts_every_sample_once():
    opt, sizes = SGD(lr=0.5), (5, 9, 7)
    worker, engine, state = fitted(FedAvg(work=SMALL), "vmap", "cnn-plain")
    data, models = shards(sizes, seed=2), engine.join(worker.method.download(worker.task, state.server), 3)

    def losses(data, adapter):
        return engine.serve(models, data, adapter, Protocol(batch=data.largest))["loss"].tolist()

    ours, wrapped = losses(data, TentOnce(opt)), losses(data, Tent("all", opt, steps=2))
    for c, n in enumerate(sizes):  # Tent answers with what it had before its last step: of two, after the first
        alone = losses(Shards.of(data.x, data.y, [data.own(c)] * 3), Tent("all", opt, steps=2))[0]
        assert ours[c] == pytest.approx(alone, abs=1e-6)
        assert (abs(wrapped[c] - alone) > 1e-5) == (n < max(sizes))
