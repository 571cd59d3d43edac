"""Recipes: complete, with the published numbers, runnable at smoke scale, resumable, and frank about missing data."""

import itertools
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from acclimate import store, tuning
from acclimate.core import SGD
from acclimate.data import ByDomain, Digit5, Digits
from acclimate.experiment import ConfigError
from acclimate.models import MLP
from acclimate.recipes import OMITTED, RECIPES, index, measures, needs, plan, published, recipe, run, runner
from acclimate.recipes.pages import apart, remarks
from acclimate.recipes.record import SCALES, Cell, Derived, Recipe, Training, adapter, key, method, trainings
from acclimate.recipes.show import details
from acclimate.running import run as api
from acclimate.running import train
from acclimate.running.watch import Watch
from acclimate.shifts import Corrupted, Mixture, Natural, Original

ASKED = {
    "fedthe": ([f"table{i}" for i in range(1, 16)], [f"figure{i}" for i in range(1, 20)]),
    "fedtta": (["table1", "table2"], [f"figure{i}" for i in range(2, 6)]),
    "fedicon": ([f"table{i}" for i in range(1, 10)], ["figure1b", "figure3"]),
    "fedspl": ([f"table{i}" for i in range(1, 5)], ["figure3", "figure4"]),
    "fedpcl": ([f"table{i}" for i in (*range(1, 7), *range(11, 16))], ["figure2", "figure3", "figure6"]),
}
"""The tables and figures with numbers of the five papers."""
UNREACHED = {"fedthe/table3": 6, "fedthe/table13": 6, "fedpcl/table2": 2, "fedtta/figure3": 22, "fedtta/figure4": 24}
"""Published numbers of a file that its recipe does not show: a row that is left out, cells that are empty, other
figures' numbers in the text."""
OURS = {"fedspl/pacs": 35, "fedspl/tenfold": 35, "fedpcl/released": 28, "fedpcl/bits": 28, "fedpcl/norm": 28}
OURS |= {"fedpcl/released-table2": 96, "fedpcl/released-table3": 7, "fedpcl/released-table5": 4}
OURS |= {"fedpcl/released-table6": 9, "fedpcl/released-table11": 56, "fedpcl/released-table12": 12}
OURS |= {"fedpcl/released-table13": 12, "fedpcl/released-table14": 9, "fedpcl/released-table15": 10}
OURS |= {"fedicon/released-table1": 55, "fedicon/released-table7": 55}
OURS |= {"fedicon/released-table2": 44, "fedicon/released-table5": 44}
OURS |= {"fedicon/released-table8": 8, "fedicon/released-table9": 10}
"""How many published numbers the recipes show that are not tables of a paper themselves."""


pytestmark = pytest.mark.usefixtures("no_data")


def test_every_table_and_figure_has_a_recipe_or_a_reason():
    asked = {f"{paper}/{word}" for paper, words in ASKED.items() for part in words for word in part}
    assert not asked - set(RECIPES) - set(OMITTED)
    assert not set(RECIPES) & set(OMITTED)
    drawn = {"fedicon/table3", *(f"fedthe/figure{i}" for i in (1, 3, 4, 18))}
    parts = {f"fedthe/figure{i}" for i in (2, 5, 7, 9, 10, 11, 12, 13, 15, 19)} | {"fedpcl/figure6"}
    assert asked & set(OMITTED) == drawn | parts
    for name in parts:  # what is part of another names it
        other = re.search(r"fed\w+/(table|figure)\d+", OMITTED[name])
        assert other is not None and other[0] in RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_knows_its_numbers_its_methods_and_its_measures(name):
    found = RECIPES[name]
    for scale in SCALES:
        cells = found.cells(scale)
        assert all(measures.known(c.measure) for c in cells if isinstance(c, Cell))
        curves = [c for c in cells if isinstance(c, Cell) and c.measure.partition(":")[0] in measures.CURVES]
        assert all(c.training.every for c in curves)
        places = [(c.row, c.column) for c in cells]
        assert len(set(places)) == len(places)
        for c in cells:
            if isinstance(c, Derived):
                assert set(c.of) <= {column for row, column in places if row == c.row}
    if found.published is None:
        assert any("number" in note.lower() or "figure" in note.lower() for note in found.notes)
        assert all(c.key is None for c in found.cells("paper"))
    else:
        keyed = [c for c in found.cells("paper") if c.key is not None]
        reached = sum(published.find(c.table or found.published, c.key) is not None for c in keyed)
        total = len(published.table(found.published)["rows"])
        in_paper = found.place != "not in the paper"
        assert reached == total - UNREACHED.get(name, 0) if in_paper else reached == OURS[name]


def test_published_numbers_are_all_there_and_carry_their_doubts():
    tables = [published.table(name) for name in published.tables()]
    assert sum(len(t["rows"]) for t in tables) == 2238
    assert all(t["paper"] and t["place"] and t["what"] for t in tables)
    doubtful = published.find("fedthe/table1", key(method="APFL", partition="dir(1.0)", stream="natural"))
    assert doubtful is not None and doubtful.mean == 31.46 and "37.68" in doubtful.doubt
    sure = published.find("fedthe/table1", key(method="FedTHE", partition="dir(0.1)", stream="original"))
    assert sure == published.Number(89.58, 0.45)
    assert published.find("fedthe/table1", key(method="GMA", partition="dir(0.1)", stream="original")) is None
    with pytest.raises(LookupError, match="published numbers for"):
        published.find("fedthe/table1", key(method="GMA"))


def test_smoke_and_paper_run_the_same_methods_and_adapters():
    for found in RECIPES.values():
        used = [{c.training.method.name for c in found.cells(s) if isinstance(c, Cell)} for s in SCALES]
        assert used[0] == used[1], found.name
        used = [{c.adapter.name for c in found.cells(s) if isinstance(c, Cell)} for s in SCALES]
        assert used[0] == used[1], found.name


@pytest.mark.parametrize(("table", "row"), [("table10", "FedTHE"), ("table11", "FedTHE"), ("table11", "MEMO (P)")])
def test_whole_sets_of_fedthes_cut_tables_are_trained_as_in_table_1(table, row):
    whole = {c.training for c in recipe("fedthe/table1").cells("paper") if c.row == row}
    cut = {c.column: c.training for c in recipe(f"fedthe/{table}").cells("paper") if c.row == row}
    assert {t for column, t in cut.items() if " size 1 " in column} == whole
    sizes = {column.split(" size ")[1].split()[0]: t.data.split for column, t in cut.items()}
    kept = {"table10": ((0.6, 0.25, 0.15), (0.6, 0.3, 0.1)), "table11": ((0.45, 0.35, 0.2), (0.3, 0.5, 0.2))}[table]
    assert sizes == {"1": (0.6, 0.2, 0.2), "0.75": kept[0], "0.5": kept[1]}


def test_fedthes_figure_16_has_the_grid_that_can_be_tuned():
    searched = dict(tuning.grid("fedthe").settings)
    ran = {(c.adapter.record.alpha, c.adapter.record.beta) for c in RECIPES["fedthe/figure16"].cells("paper")}
    assert ran == set(itertools.product(searched["adapters.the.alpha"], searched["adapters.the.beta"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_at_smoke_scale(name, tmp_path):
    found = RECIPES[name]
    todo = plan(found, "smoke")
    result = run(todo, tmp_path)
    assert not todo.left_out
    assert [(c["row"], c["column"]) for c in result["cells"]] == [(c.row, c.column) for c in found.cells("smoke")]
    assert all(math.isfinite(v) for c in result["cells"] for v in c["ours"])


# --- running --------------------------------------------------------------------------------------------------------


def tiny(rows=("fedavg", "scaffold"), every=None, rounds=2):
    """A recipe of its own: two methods, two streams, and their mean."""

    def make(scale):
        data = Digits(clients=3, fraction=0.1)
        for row in rows:
            trained = Training(method(row).at("smoke"), data, MLP((8,)), rounds, every=every)
            place = key(method="FedAvg", partition="dir(0.1)", stream="original")
            yield Cell(row, "original", trained, key=place)
            measure = "best" if every else "accuracy"
            yield Cell(row, "corrupted", trained, adapter=adapter("tent-all"), stream=Corrupted(), measure=measure)
            yield Derived(row, "mean", ("original", "corrupted"))

    return Recipe("fedthe/table99", "tiny", make, "fedthe/table1")


class Count(Watch):
    """Counts trained rounds."""

    def __init__(self):
        self.rounds = 0

    def round(self, state):
        self.rounds += 1


class Stop(Count):
    """Is stopped in a round, before its checkpoint."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def round(self, state):
        super().round(state)
        if self.rounds == self.at:
            raise KeyboardInterrupt


def stopped(made, out, at, rows=()):
    with pytest.raises(KeyboardInterrupt):
        run(plan(made, "smoke", rows), out, watch=Stop(at))


def pair(every=1, more=()):
    """A recipe of two rows that share a training of three rounds, and are read from its curves where it has looks."""

    def make(scale):
        trained = Training(method("fedavg").at("smoke"), Digits(clients=3, fraction=0.1), MLP((8,)), 3, every=every)
        for row, served in {"plain": "none", "adapted": "tent-all", **dict(more)}.items():
            yield Cell(row, "best", trained, adapter=adapter(served), measure="best" if every else "accuracy")

    return Recipe("fedthe/table98", "pair", make)


def kept_tests(out):
    """The tests of the only training, and where its record lies."""
    (path,) = (out / "trainings").glob("*.json")
    return json.loads(path.read_text())["tests"], path


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """What `pair` gives where nothing is stopped, with a checkpoint after every round."""
    monkeypatch.setattr(runner, "CHECKPOINT", 1)
    cells = run(plan(pair(), "smoke"), tmp_path / "whole")["cells"]
    return cells, kept_tests(tmp_path / "whole")[0]


def test_a_recipe_runs_once_and_is_then_read(tmp_path):
    watch = Count()
    first = run(plan(tiny(), "smoke"), tmp_path, (0, 1), watch=watch)
    assert watch.rounds == 2 * 2 * 2
    cell = first["cells"][0]
    assert cell["published"] == {"mean": 64.25, "std": 1.42, "doubt": cell["published"]["doubt"]}
    assert cell["difference"] == pytest.approx(cell["mean"] - 64.25, abs=1e-3) and len(cell["ours"]) == 2
    a, b, mean = first["cells"][:3]
    assert mean["mean"] == pytest.approx((a["mean"] + b["mean"]) / 2, abs=1e-3)
    assert first["environment"]["device"] and first["command"]
    again = Count()
    second = run(plan(tiny(), "smoke"), tmp_path, (0, 1), watch=again)
    assert again.rounds == 0 and second["cells"] == first["cells"]
    table = (tmp_path / "fedthe" / "table99-smoke.md").read_text()
    assert f"| fedavg | {cell['mean']:.1f} ± {cell['std']:.1f} (64.2?" in table
    more = Count()
    run(plan(tiny(("fedavg", "fedprox")), "smoke"), tmp_path, watch=more)
    assert more.rounds == 2  # fedavg is there


def test_a_narrower_run_takes_nothing_from_the_table(tmp_path):
    whole = run(plan(tiny(), "smoke"), tmp_path, (0, 1))
    narrow, watch = plan(tiny(), "smoke", ["scaffold"]), Count()
    assert run(narrow, tmp_path, (0,), watch=watch)["cells"] == whole["cells"]
    assert watch.rounds == 0
    assert run(narrow, tmp_path, (0, 1), device="cpu")["cells"] == whole["cells"]  # as it was, with "auto"
    more = run(narrow, tmp_path, (0, 1, 2))
    assert more["seeds"] == [0, 1, 2] and len(more["trainings"]) == 5
    assert [len(c["ours"]) for c in more["cells"]] == [2] * 3 + [3] * 3
    assert [c.get("seeds") for c in more["cells"]] == [[0, 1]] * 3 + [None] * 3
    assert more["cells"][0] == {**whole["cells"][0], "seeds": [0, 1]}
    assert "- Fewer seeds: fedavg has seeds 0, 1 alone\n" in (tmp_path / "fedthe" / "table99-smoke.md").read_text()
    other = run(plan(tiny(("fedavg", "scaffold"), rounds=1), "smoke", ["fedavg"]), tmp_path)  # other settings now
    assert {c["row"] for c in other["cells"]} == {"fedavg"} and other["seeds"] == [0]


def test_a_run_takes_nothing_from_the_table_where_data_is_gone(tmp_path, monkeypatch):
    """Numbers that were measured where their data was stay in a table that is added to where it is not."""
    whole, fitted = run(plan(tiny(), "smoke"), tmp_path), needs.fitted
    gone = lambda c, *a: (None, ("Gone: needs files",)) if c.row == "fedavg" else fitted(c, *a)  # noqa: E731
    monkeypatch.setattr(needs, "fitted", gone)
    assert plan(tiny(), "smoke").left_out == {"Gone: needs files": ["fedavg, original", "fedavg, corrupted"]}
    for rows in (["scaffold"], []):
        again = run(plan(tiny(), "smoke", rows), tmp_path)
        assert again["cells"] == whole["cells"] and again["left_out"] == []
    fresh = run(plan(tiny(), "smoke"), tmp_path / "other")
    assert {c["row"] for c in fresh["cells"]} == {"scaffold"} and fresh["left_out"]


def test_notes_about_paper_scale_say_so_at_smoke_scale():
    result = {"notes": ["50 rounds."], "left_out": [], "cells": []}
    assert remarks({**result, "scale": "paper"}) == ["50 rounds."]
    assert remarks({**result, "scale": "smoke"})[0] == "At paper scale: 50 rounds."


def test_the_numbers_are_those_of_an_experiment(tmp_path):
    result = run(plan(tiny(("scaffold",)), "smoke"), tmp_path)
    cell = next(c for c in tiny(("scaffold",)).cells("smoke") if isinstance(c, Cell))
    table = api.evaluate(api.train(cell.training.experiment()), [cell.adapter.record], [Original()])
    assert result["cells"][0]["mean"] == pytest.approx(100 * table.accuracy(), abs=1e-3)


@pytest.mark.parametrize("every", [None, 1])
def test_a_stopped_training_goes_on_from_its_checkpoint(tmp_path, monkeypatch, every):
    monkeypatch.setattr(runner, "CHECKPOINT", 1)
    made, out = tiny(("fedavg",), every, rounds=4), tmp_path / "stopped"
    wanted = run(plan(made, "smoke"), tmp_path / "whole")
    stopped(made, out, at=3)
    watch = Count()
    assert run(plan(made, "smoke"), out, watch=watch)["cells"] == wanted["cells"]
    assert watch.rounds == 1  # the round in which it was stopped was saved


def test_a_row_that_a_stopped_run_left_is_not_finished_with_another(tmp_path, whole):
    stopped(pair(), tmp_path, at=3)
    alone = run(plan(pair(), "smoke", ["plain"]), tmp_path)
    assert alone["cells"] == whole[0][:1] and len(kept_tests(tmp_path)[0]) == 1
    assert run(plan(pair(), "smoke", ["adapted"]), tmp_path)["cells"] == whole[0]
    assert kept_tests(tmp_path)[0] == whole[1]


@pytest.mark.parametrize("damage", ["a part of the curve alone", "a look is lost"])
def test_a_record_that_is_not_whole_is_not_shown_and_heals(tmp_path, whole, damage):
    run(plan(pair(), "smoke"), tmp_path)
    tests, path = kept_tests(tmp_path)
    name = next(n for n in tests if "tent" in n)
    curve = tests[name]["curve"]
    broken = {"curve": curve[:2]} if damage == "a part of the curve alone" else {**tests[name], "curve": curve[1:]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "tests": {**tests, name: broken}}))
    assert run(plan(pair(), "smoke", ["plain"]), tmp_path)["cells"] == whole[0][:1]
    assert run(plan(pair(), "smoke", ["adapted"]), tmp_path)["cells"] == whole[0]
    assert kept_tests(tmp_path)[0] == whole[1]


@pytest.mark.parametrize(("before", "writes"), [(None, 7), ("plain", 4)])
def test_a_run_that_dies_between_any_two_writes_ends_as_if_it_had_not(tmp_path, monkeypatch, whole, before, writes):
    real = store.write
    for last in range(writes):  # a record and a state after each of three rounds, and the finished record
        out, left = tmp_path / str(last), itertools.count(last, -1)
        if before is not None:  # it then begins anew, for the other row's curve, where a finished state lies
            run(plan(pair(), "smoke", [before]), out)

        def dying(*given, left=left):
            if next(left) == 0:
                raise SystemExit
            real(*given)

        monkeypatch.setattr(store, "write", dying)
        with pytest.raises(SystemExit):
            run(plan(pair(), "smoke"), out)
        monkeypatch.setattr(store, "write", real)
        watch = Count()
        assert run(plan(pair(), "smoke"), out, watch=watch)["cells"] == whole[0], last
        assert kept_tests(out)[0] == whole[1], last
        assert watch.rounds == 3 - last // 2, last  # from the last state that was written


def test_a_recipe_without_looks_takes_none_from_one_with_them(tmp_path, whole):
    stopped(pair(), tmp_path, at=2)
    stopped(pair(every=None), tmp_path, at=1)  # its checkpoint is ahead of the curves
    assert run(plan(pair(), "smoke"), tmp_path)["cells"] == whole[0]
    run(plan(pair(every=None, more={"another": "t3a"}), "smoke"), tmp_path)  # tests the same two again
    watch = Count()
    assert run(plan(pair(), "smoke"), tmp_path, watch=watch)["cells"] == whole[0]
    assert watch.rounds == 0


def test_a_table_of_several_runs_names_all_their_devices_and_commits(tmp_path, monkeypatch):
    def at(device, commit, row):
        where = {"torch": "2", "device": device, "commit": commit}
        monkeypatch.setattr(store, "environment", lambda device: dict(where))
        return run(plan(tiny(), "smoke", [row]), tmp_path)["environment"]

    monkeypatch.delenv("ACCLIMATE_COMMIT", raising=False)
    assert at("cuda (card)", None, "fedavg") == {"torch": "2", "device": "cuda (card)", "commit": None}
    both = {"torch": "2", "device": "cpu (core), cuda (card)", "commit": "abc, unknown"}
    assert at("cpu (core)", "abc", "scaffold") == both
    page = (tmp_path / "fedthe" / "table99-smoke.md").read_text()
    assert "- smoke scale, seeds 0, cpu (core), cuda (card), commit abc, unknown: `" in page
    assert "| cpu (core), cuda (card) | abc, unknown |" in index(tmp_path)


def test_the_seconds_of_a_round_are_their_median(tmp_path, monkeypatch):
    ticks = (n**2 for n in itertools.count())  # rounds of 1 and 5 seconds
    monkeypatch.setattr(train, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    run(plan(tiny(("fedavg",)), "smoke"), tmp_path)
    (record,) = (tmp_path / "trainings").glob("*.json")
    assert json.loads(record.read_text())["seconds"] == 3


def test_the_median_of_an_even_count_lies_between_the_middle_two():
    assert "the median difference is 2.5, the largest 6.0" in apart([6, -1, 2, -3], 5)
    assert "the median difference is 2.0, the largest 6.0" in apart([6, -1, 2], 5)


def test_an_adapter_that_diverges_is_named_and_not_scored(tmp_path):
    wild = adapter("memo", views=2, steps=2, opt=SGD(lr=1e30))
    trained = Training(method("fedavg").at("smoke"), Digits(clients=3, fraction=0.1), MLP((8,)), 1)
    made = Recipe("fedthe/table99", "wild", lambda scale: [Cell("a", "original", trained, adapter=wild)])
    with pytest.raises(ArithmeticError, match=r"memo.* produced values that are not finite on client\(s\) 0, 1, 2"):
        run(plan(made, "smoke"), tmp_path)
    assert not (tmp_path / "fedthe").exists()


def test_a_file_of_another_kind_is_refused(tmp_path):
    run(plan(tiny(("fedavg",)), "smoke"), tmp_path)
    (record,) = (tmp_path / "trainings").glob("*.json")
    record.write_text(json.dumps({"schema": "other/1"}))
    with pytest.raises(api.store.RunError, match=r"schema='other/1' must be 'acclimate\.training/1'"):
        run(plan(tiny(("fedavg",)), "smoke"), tmp_path)


def test_unknown_names_say_what_is_allowed():
    with pytest.raises(ConfigError, match=r"did you mean 'fedthe/table1'\?"):
        recipe("fedthe/tabel1")
    with pytest.raises(ConfigError, match="figure3 has no recipe: a drawing"):
        recipe("fedthe/figure3")
    with pytest.raises(ConfigError, match="no row 'FedAvgg'; did you mean 'FedAvg'"):
        plan(RECIPES["fedthe/table1"], "smoke", ["FedAvgg"])
    with pytest.raises(ConfigError, match="scale='big' must be one of smoke, paper"):
        plan(RECIPES["fedthe/table1"], "big")
    assert {c.row for c in plan(RECIPES["fedthe/table1"], "smoke", ["fedavg", "fedTHE+"]).cells} == {
        "FedAvg",
        "FedTHE+",
    }


def test_a_method_that_is_not_there_is_named_when_a_recipe_is_defined():
    with pytest.raises(ConfigError, match="no method 'fedporx'; did you mean 'fedprox'"):
        method("fedporx")
    with pytest.raises(TypeError, match="muu"):
        method("fedprox", muu=1)


# --- data -----------------------------------------------------------------------------------------------------------


def test_missing_data_is_named(tmp_path, monkeypatch):
    todo = plan(RECIPES["fedicon/table4"], "paper")
    assert not trainings(todo.cells) and set(needs.wanted(RECIPES["fedicon/table4"].cells("paper"))) == {
        "CIFAR10",
        "CIFAR10_1",
    }
    assert any(reason.startswith("CIFAR10: needs ") for reason in todo.left_out)
    assert plan(RECIPES["fedicon/table4"], "smoke").left_out == {}


def digit5(root, *domains):
    for domain in domains:
        (root / "digit5" / domain).mkdir(parents=True)
        for part in ("train", "test"):
            x, y = np.zeros((20, 8, 8, 3), np.uint8), np.arange(20) % 10
            np.savez(root / "digit5" / domain / f"{part}.npz", x=x, y=y)


def test_what_is_there_of_a_set_runs_without_the_rest(tmp_path, monkeypatch):
    digit5(tmp_path, "mnist", "usps", "svhn", "mnistm")
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))
    todo = plan(RECIPES["fedicon/table1"], "paper", ["FedAvg"])
    assert [c.column for c in todo.cells] == ["MNIST", "SVHN", "USPS", "MNIST-M"]
    (trained,) = todo.trainings
    assert trained.data.domains == ("mnist", "svhn", "usps", "mnistm") and trained.data.clients == 4
    assert list(todo.left_out) == ["Digit5 lacks syn: run with mnist, svhn, usps, mnistm"]
    text = details(RECIPES["fedicon/table1"])
    assert "missing    Digit5 lacks syn: run with mnist, svhn, usps, mnistm (" in text
    assert re.search(
        r"runs now +\d+ of \d+ cells at paper scale: MNIST, SVHN, USPS, MNIST-M; all at smoke scale\n", text
    )
    left = plan(RECIPES["fedicon/table7"], "paper", ["FedAvg"])
    assert [c.column for c in left.cells] == ["MNIST", "SVHN", "USPS", "MNIST-M"]
    assert {t.data.clients for t in left.trainings} == {3}


def test_a_mixture_runs_without_the_part_that_is_missing():
    lacking = Natural(source=Digit5(partition=ByDomain(), clients=5))
    base = next(c for c in tiny().cells("smoke") if isinstance(c, Cell))
    found, lacks = needs.fitted(replace(base, stream=Mixture(parts=(Original(), lacking))))
    assert found is not None and found.stream == Mixture(parts=(Original(),))
    assert len(lacks) == 1 and lacks[0].endswith("the mixture runs without it")
    assert needs.fitted(replace(base, stream=lacking))[0] is None


# --- measures -------------------------------------------------------------------------------------------------------


def test_measures_read_what_they_say():
    record = {"client_domains": ["a", "b", "a"], "sent": 7, "seconds": 0.5}
    test = {
        "accuracy": 0.5,
        "per_client": [0.2, 0.6, 0.4],
        "curve": [[1, 0.5, 0.1], [2, 0.9, 0.2], [3, 0.9, 0.3]],
        "traces": {"entropy": 1.5},
    }

    def value(measure):
        return measures.value(measure, record, test, None)

    assert value("accuracy") == 50 and value("domain:a") == pytest.approx(30)
    assert value("validation") == 90 and value("best") == 20  # of equals the first
    assert value("round:1") == 10 and value("round:3") == 30
    assert value("worst10") == pytest.approx(20) and value("sent") == 7 and value("trace:entropy") == 1.5
    test |= {"per_client": [0.6, 0.4], "clients": [1, 2]}  # client 0 has no examples in the stream
    assert value("domain:a") == pytest.approx(40) and value("domain:b") == pytest.approx(60)


@pytest.mark.parametrize("word", ["accuraccy", "round:", "round", "round:last", "domian:a", "accuracy:a", "sent:1", ""])
def test_an_unknown_measure_is_refused_before_anything_is_trained(word):
    cell = next(iter(tiny().cells("smoke")))
    assert not measures.known(word)
    with pytest.raises(ConfigError, match=f"no measure '{word}'; .*allowed: accuracy, .*domain:NAME"):
        replace(cell, measure=word)
    with pytest.raises(ConfigError, match=f"no measure '{word}'; "):
        measures.value(word, {"sent": 7}, {"accuracy": 0.5}, None)


def test_similarity_compares_two_trainings():
    own = {"prototypes": {"sets": [[[1.0, 0.0], [0.0, 1.0]]], "counts": [[3, 0]]}, "client_domains": ["a"]}
    other = {"prototypes": {"sets": [[[1.0, 0.0], [1.0, 0.0]]], "counts": [[3, 3]]}}
    assert measures.value("similarity:a", own, {}, other) == pytest.approx(
        1.0
    )  # the class it does not hold is left out
