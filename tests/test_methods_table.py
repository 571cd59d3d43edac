"""The table of methods: rows of stored runs are those that training gives, and other worlds are left out."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest

import acclimate as ac
from acclimate.experiment import catalogue, dumps

ASKED = ["--data", "digits", "--methods", "fedprox,local", "--seeds", "0", "--clients", "2", "--rounds", "1"]


@pytest.fixture
def methods(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import methods

    tiny = ac.models.MLP(hidden=(4,))
    for name in ("cnn", "cnn-small"):
        monkeypatch.setitem(catalogue.MODELS, name, tiny)
    return methods


def asked(monkeypatch, methods, *more):
    monkeypatch.setattr(sys, "argv", ["methods.py", *ASKED, "--streams", "original", *map(str, more)])
    methods.main()


def test_stored_runs_give_the_rows_that_training_gives(methods, monkeypatch, tmp_path, capsys):
    asked(monkeypatch, methods, "--methods", "local", "--out", tmp_path / "trained.json")
    given = methods.argparse.Namespace(data="digits", clients=2, rounds=1, device="auto")
    world = dataclasses.replace(
        methods.experiment("local", given, 0),
        streams=(catalogue.STREAMS["original"],),
        adapters=(ac.adapters.NoAdapt(),),
    )
    ac.run(world, tmp_path / "runs" / "here")
    longer = shutil.copytree(tmp_path / "runs" / "here", tmp_path / "runs" / "longer")
    (longer / "config.json").write_text(dumps(dataclasses.replace(world, rounds=2)))
    asked(monkeypatch, methods, "--from", tmp_path / "runs", "--out", tmp_path / "read.json")
    trained, read = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("trained", "read"))
    assert trained["study"] == read["study"] and list(read["rows"]) == ["local 0"]
    timed = {"seconds", "digest"}
    mine, theirs = ({k: v for k, v in f["rows"]["local 0"].items() if k not in timed} for f in (trained, read))
    assert mine == theirs and set(mine["accuracy"]) == {"last", "validation"}
    assert f"{tmp_path / 'runs' / 'longer'} is not of this study: local, seed 0" in capsys.readouterr().out


def test_a_round_that_no_run_looked_for_is_no_figure(methods):
    last = {"accuracy": {"last": {"original": 40.0}}}
    both = {"accuracy": {"last": {"original": 50.0}, "validation": {"original": 60.0}}}
    assert methods._both([last, both], "original") == "45.0" and methods._both([both], "original") == "50.0 (60.0)"


def test_a_table_names_seeds_and_settings_and_has_the_best_first(methods):
    def row(method, seed, value=None):
        found = {"failed": "not finite"} if value is None else {"accuracy": {"last": {"mixture": value}}}
        return {"method": method, "seed": seed, **found, "up_bytes": 1e6, "seconds": 10.0 + seed}

    rows = [row("a", 0, 40.0), row("b", 1, 50.0), row("b", 0), row("b", 2, 60.0), row("c", 3)]
    lines = methods.table(dict(enumerate(rows)), ["mixture"]).splitlines()
    assert lines[2:] == [
        "| b | 55.0 | 1.00 | 12 | 1, 2 (0 diverged) |",
        "| a | 40.0 | 1.00 | 10 | 0 |",
        "| c | diverges |  |  | 3 |",
    ]
    given = methods.argparse.Namespace(data="digits", clients=2, rounds=1, device="auto")
    changed = methods.experiment("fedrep+finetune/work.clip=none/opt.lr=0.01", given, 0)
    assert (changed.method.work.clip, changed.method.opt.lr) == (None, 0.01)
    assert changed.personal == catalogue.PERSONALS["finetune"]
    assert methods.experiment("fedrep", given, 0).method == ac.methods.FedRep()


def test_a_method_that_diverges_has_a_row_that_says_so_and_others_go_on(methods, monkeypatch, tmp_path, capsys):
    measured, seen = methods.measured_together, []

    def of(runs, given):
        (run,) = runs
        seen.append(getattr(run.backend, "precision", "fp32"))
        if isinstance(run.method, ac.methods.FedProx):
            raise ArithmeticError("round 1: client 0 is not finite")
        return measured(runs, given)

    monkeypatch.setattr(methods, "measured_together", of)
    asked(monkeypatch, methods, "--out", tmp_path / "rows.json")
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found["rows"]["fedprox 0"] == {"method": "fedprox", "seed": 0, "failed": "round 1: client 0 is not finite"}
    assert "accuracy" in found["rows"]["local 0"] and found["study"]["precision"] == "fp32"
    text = capsys.readouterr().out
    assert "fedprox          0 round 1: client 0 is not finite" in text
    assert "| fedprox | diverges |  |  | 0 |" in text and text.count("diverges") == 1
    with pytest.raises(SystemExit, match="rows are of"):
        asked(monkeypatch, methods, "--precision", "bf16", "--out", tmp_path / "rows.json")
    monkeypatch.setattr(methods, "measured_together", lambda runs, given: seen.append(runs[0].backend.precision))
    methods.trained(
        "local", methods.argparse.Namespace(data="digits", clients=2, rounds=1, device="cpu", precision="bf16"), [0]
    )
    assert seen == ["fp32", "fp32", "bf16"]


def test_the_digits_are_the_default_world_and_a_part_of_cifar10_is_named(methods, monkeypatch, tmp_path):
    given = methods.argparse.Namespace(data="digits", clients=10, rounds=10, fraction=0.5, device="auto")
    assert methods.experiment("fedavg", given, 0) == dataclasses.replace(ac.Experiment(), model=ac.models.MLP((4,)))
    given.data = "cifar10"
    part = methods.experiment("fedavg", given, 0).data
    assert part == ac.data.CIFAR10(ac.data.Dirichlet(0.1, sizes="brfl"), 10, fraction=0.5)
    asked(monkeypatch, methods, "--methods", "local", "--out", tmp_path / "rows.json")
    study = json.loads((tmp_path / "rows.json").read_text())["study"]
    assert (study["alpha"], study["sizes"], study["model"]) == (0.05, "equal", "cnn-small") and "fraction" not in study
