"""FedTTA's recipes: what the paper states holds for every row."""

import pytest
import torch

import acclimate as ac
from acclimate.adapters import NoAdapt, Tent
from acclimate.core import SGD, Constant, Mean, Protocol, Shards, StepDecay, Work, rng
from acclimate.data import Digits, Dirichlet, Pathological
from acclimate.methods import FedAvg
from acclimate.models import CNN, MLP, Mixed
from acclimate.recipes import RECIPES, Redealt, TentOnce, fedtta, fedtta_fashion, fedtta_tables, measures, plan, run
from acclimate.shifts import NewClients
from support import SMALL, fitted, shards

KEY = rng.key(7)


def test_clients_count_as_one_in_every_row():
    for row, line in fedtta.lines(fedtta.SMOKE_RATES).items():
        means = [rule.by for rule in line.method.record.uplink.values() if isinstance(rule, Mean)]
        assert set(means) == ({"share"} if row == "AFL" else {None}), row


@pytest.mark.parametrize("recipe", fedtta_tables.RECIPES, ids=lambda r: r.name)
def test_every_training_is_bounded_as_released_and_says_so(recipe):
    works = {cell.training.method.record.work for cell in recipe.cells("paper")}
    assert {work.clip for work in works} == {10.0}
    assert any("clipped at 10" in note for note in recipe.notes)


def test_table_4_is_in_the_rows():
    cifar, mnist = (fedtta.lines(fedtta.rates(name)) for name in ("CIFAR-10", "MNIST"))
    tta, prox = (cifar[row].method.record for row in ("FedTTA", "FedTTA-Prox"))
    assert (tta.inner_lr, tta.opt.lr, tta.net_opt.lr, tta.mu) == (0.5, 0.05, 0.005, 0.0)
    assert (prox.inner_lr, prox.opt.lr, prox.net_opt.lr, prox.mu) == (0.3, 0.1, 0.003, 0.001)
    gma, afl, scaffold = (cifar[row].method.record for row in ("FedGMA", "AFL", "SCAFFOLD"))
    assert (gma.server_lr, afl.lambda_lr, scaffold.server_lr) == (1.5, 0.3, 1.5)
    assert mnist["FedTTA++"].adapter.record.patience == 1
    assert tta.work == Work(iterations=20, batch=64, clip=10.0)


def test_clients_of_several_architectures_have_the_papers_models_or_mnists():
    cifar, mnist = (RECIPES[name].cells("paper") for name in ("fedtta/figure5", "fedtta/hetero-mnist"))
    assert {c.training.model for c in cifar} == {Mixed()} and {c.training.rounds for c in cifar} == {1000}
    assert {c.training.data.share for c in (*cifar, *mnist)} == {0.1}
    assert {c.training.data.clients for c in (*cifar, *mnist)} == {50}
    widths = tuple(MLP((h, h)) for h in (100, 200, 400))
    assert {c.training.model for c in mnist} == {Mixed(widths)} and widths[1] == fedtta.PERCEPTRON


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


def test_networks_rates_and_bounds_are_as_released():
    """LeNet pads; inner, outer and adaptation rate fall by 1% every ten rounds, in clients of several models too."""
    for name in ("CIFAR-10", "FEMNIST", "CIFAR-100", "Fashion-MNIST"):
        assert fedtta.COLUMNS[name].model == CNN(hidden=512, padding=2)
    decay = StepDecay(every=10, gamma=0.99)
    several = fedtta.Several().lines()["lambda 0.8"].method.record
    for record in (fedtta.lines(fedtta.rates("MNIST"))["FedTTA"].method.record, several):
        assert {record.opt.schedule, record.net_opt.schedule, record.inner_schedule} == {decay}
    assert fedtta.lines(fedtta.rates("MNIST"))["FedTTA++"].adapter.record.clip == 10.0
    assert {column.data.partition for n, column in fedtta.COLUMNS.items() if n not in ("FEMNIST", "CIFAR-100")} == {
        Pathological(shards="random")
    }


def test_table_2_trains_once_per_row_and_deals_newcomers_anew():
    cells = RECIPES["fedtta/table2"].cells("paper")
    by_row = {row: {c.training for c in cells if c.row == row} for row in {c.row for c in cells}}
    assert {row: len(trained) for row, trained in by_row.items()} == dict.fromkeys(by_row, 1)
    assert {c.stream.partition.alpha for c in cells if c.row == "FedTTA"} == set(fedtta_tables.ALPHAS)


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_newcomers_dealt_anew_hold_what_they_would_in_a_world_of_that_alpha(alpha):
    def world(a):
        return Digits(Dirichlet(0.1), 4, new_clients=4, new_partition=Dirichlet(a), fraction=0.3).world(2)

    other = world(alpha)
    anew = Redealt(partition=Dirichlet(alpha)).build(world(0.1), KEY).shards
    asked = NewClients().build(other, KEY).shards
    for c in range(4):
        assert torch.equal(anew.own(c), asked.own(c))
    assert all(torch.equal(a, b) for a, b in zip(world(0.1).train, other.train, strict=True))


def test_newcomers_before_adapting_and_both_ensembles_are_reported():
    cells = RECIPES["fedtta/hetero-mnist"].cells("paper")
    rows = {row: {c.column: c for c in cells if c.row == row} for row in {c.row for c in cells}}
    assert set(rows) == {"FedMD", "TENT", *(f"lambda {x:g}" for x in (0, 0.2, 0.4, 0.6, 0.8, 1))}
    for row, columns in rows.items():
        before = [c for name, c in columns.items() if "not adapted" in name]
        assert len(before) == (4 if row.startswith("lambda") else 0)
        assert all(
            isinstance(c.adapter.record, NoAdapt) and c.training == columns["round 100 test"].training for c in before
        )
        assert ("ensemble, base" in columns) == (row.startswith("lambda") and row != "lambda 0")
    assert {c.training.data.partition for c in cells} == {Pathological(shards="random")}


def test_an_ensemble_is_right_where_its_mean_logits_are(tmp_path):
    """Read from the server's last state by hand: the labels of the public set are nobody's but the score's."""
    todo = plan(RECIPES["fedtta/hetero-mnist"], "smoke", ["lambda 0.8"], ["ensemble"], rounds=1)
    cells = {c["column"]: c["ours"] for c in run(todo, tmp_path)["cells"]}
    e = next(iter(todo.trainings)).experiment()
    fit = ac.train(e)
    y = fit.world.examples.y[fit.world.public]
    for name in ("base", "personalised"):
        hits = (fit.state.server["logits"][name].argmax(-1) == y).double().mean()
        assert cells[f"ensemble, {name}"] == [pytest.approx(100 * float(hits), abs=1e-3)]


def test_the_highest_look_is_chosen_by_the_stream_and_the_best_one_by_validation():
    test = {"curve": [[10, 0.5, 0.9], [20, 0.7, 0.6], [30, 0.6, 0.8]]}
    assert [measures.value(m, {}, test, None) for m in ("highest", "best", "validation")] == [90.0, 60.0, 70.0]


def test_a_hypothesis_changes_one_thing_of_table_1():
    cells = RECIPES["fedtta/fashion"].cells("paper")
    by_row = {row: {c.column: c for c in cells if c.row == row} for row in fedtta_fashion.HYPOTHESES}
    table = {c.row: c for c in RECIPES["fedtta/table1"].cells("paper") if c.column == "Fashion-MNIST test"}
    for name in fedtta_fashion.ROWS:
        ours = by_row["as in Table 1"][f"{name} test"]
        assert (ours.training, ours.adapter, ours.measure) == (table[name].training, table[name].adapter, "best")

    def record(row, name="FedTTA"):
        return by_row[row][f"{name} test"].training.method.record

    base, same = record("as in Table 1"), record("norm over the set")
    assert same == base and by_row["norm over the set"]["FedTTA test"].adapter.record.norm == "set"
    both = record("weight decay and momentum")
    assert (both.opt.weight_decay, both.net_opt.weight_decay, both.opt.momentum, both.net_opt.momentum) == (
        1e-4,
        1e-4,
        0.0,
        0.9,
    )
    assert record("constant rates").inner_schedule == record("constant rates", "FedAvg").opt.schedule == Constant()
    assert record("10 iterations of batch 25").work == Work(iterations=10, batch=25, clip=10.0)
    assert by_row["no padding"]["TENT test"].training.model == CNN(hidden=512)
    assert by_row["twice the rounds"]["TENT test"].training.rounds == 600
