"""The benchmark of FedTTA's Table 1: it has every published row, adds what is missing, goes on where it was cut."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fedtta.py"


@pytest.fixture
def bench():
    spec = importlib.util.spec_from_file_location("fedtta_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_every_row_and_column_of_the_published_table(bench):
    layout = json.loads(bench.PUBLISHED.read_text())["rows"]
    assert [r["row"] for r in layout] == list(bench.TABLE)
    for name, preset in bench.PRESETS.items():
        lines = bench.rows(preset)
        assert set(bench.TABLE) <= set(lines) == set(bench.ROWS)
        assert {r.training for r in lines.values()} == set(bench.trainings(preset))
        if name != "digits":
            assert all(0 < m < 100 for r in layout for m, _ in r["published"][name].values())
            assert bench.experiment(preset, "fedtta", 0, 1, 1, 1.0).method.work == bench.WORK


def test_table_4_is_in_the_presets(bench):
    cifar = bench.trainings(bench.PRESETS["cifar10"])
    tta, prox = cifar["fedtta"], cifar["fedtta-prox"]
    assert (tta.inner_lr, tta.opt.lr, tta.net_opt.lr, tta.mu) == (0.5, 0.05, 0.005, 0.0)
    assert (prox.inner_lr, prox.opt.lr, prox.net_opt.lr, prox.mu) == (0.3, 0.1, 0.003, 0.001)
    assert (cifar["fedgma"].server_lr, cifar["afl"].lambda_lr, cifar["scaffold"].server_lr) == (1.5, 0.3, 1.5)
    assert bench.rows(bench.PRESETS["mnist"])["fedtta++"].adapter.patience == 1


def test_it_adds_what_is_missing_and_shows_it(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACCLIMATE_COMMIT", "abc")
    monkeypatch.setattr(bench.store, "environment", lambda device: {"commit": None})
    out = tmp_path / "out.json"

    def run(*args):
        monkeypatch.setattr("sys.argv", ["x", "--data", "digits", *args])
        bench.main()
        return capsys.readouterr().out

    some = ["--rounds", "4", "--every", "2", "--out", str(out), "--rows"]
    run(*some, "fedavg", "tent")
    assert run(*some, "tent").strip() == "digits, fedavg, seed 0: there already"
    run(*some, "fedavg", "fedtta")
    records = json.loads(out.read_text())["records"]
    assert [[r["row"] for r in record["rows"]] for record in records] == [["fedavg", "tent"], ["fedtta"]]
    first = records[0]["rows"][0]
    assert [c[0] for c in first["curve"]] == [2, 4] and first["last"]["round"] == 4
    assert first["best"]["validation"] == max(c[1] for c in first["curve"])
    assert records[0]["environment"]["commit"] == "abc"
    assert list(tmp_path.iterdir()) == [out]  # no checkpoint is left
    shown = run("--show", str(out)).splitlines()
    assert shown[2].startswith(f"| digits | fedavg | 1 | {100 * first['best']['validation']:.1f} |")
    assert [line.split(" | ")[1] for line in shown[2:]] == ["fedavg", "tent", "fedtta"]


def test_a_training_that_was_cut_goes_on_to_the_same_result(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "CHECKPOINT", 2)
    preset = bench.PRESETS["digits"]
    e = bench.experiment(preset, "fedavg", 0, 5, 2, 1.0)
    asked = {"fedavg": bench.rows(preset)["fedavg"]}
    whole = bench.train(e, asked, tmp_path / "a.json")[1]
    rounds = bench.loop.rounds

    def cut(*args):
        for state in rounds(*args):
            if state.round > 3:
                raise KeyboardInterrupt
            yield state

    monkeypatch.setattr(bench.loop, "rounds", cut)
    with pytest.raises(KeyboardInterrupt):
        bench.train(e, asked, tmp_path / "b.json")
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(bench.loop, "rounds", rounds)
    assert bench.train(e, asked, tmp_path / "b.json")[1] == whole
    assert not list(tmp_path.iterdir())
