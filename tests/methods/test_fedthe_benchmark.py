"""The benchmark of FedTHE's tables: it has every published row, adds what is missing, and its table shows it."""

import importlib.util
import json
from pathlib import Path

import pytest

import acclimate as ac
from acclimate.core import Work
from support import small


@pytest.fixture
def script(monkeypatch):
    """Loads a script by name; it imports its neighbours as it does where it is run."""
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_the_benchmark_has_every_row_of_the_published_tables(script):
    bench, tables = script("fedthe_cifar10"), script("fedthe_table")
    for name in tables.TABLES:
        layout = tables.layout(name)
        assert [r["row"] for r in layout["rows"]] == list(bench.TABLES[name])
        assert all(0 < m < 100 for r in layout["rows"] for c in r["published"].values() for m, _ in c.values())
    shared = set(bench.TABLES["1"]) & set(bench.TABLES["ablations"])
    assert all(bench.TABLES["1"][n] == bench.TABLES["ablations"][n] for n in shared)  # one name, one meaning
    assert {r.training for r in bench.ROWS.values()} == set(bench.TRAININGS)


def test_the_benchmark_adds_what_is_missing_and_its_table_shows_it(script, tmp_path, monkeypatch, capsys):
    bench, tables = script("fedthe_cifar10"), script("fedthe_table")

    def tiny(training, alpha, seed, rounds, fraction):
        data = ac.data.Digits(clients=3, partition=ac.data.Dirichlet(alpha), fraction=fraction)
        method, streams = small(bench.TRAININGS[training], Work(iterations=2, batch=4)), (ac.shifts.Original(),)
        model = ac.models.CNN(widths=(2, 2), hidden=4, kernel=3)
        return ac.Experiment(data, model, method, streams=streams, rounds=rounds, seed=seed)

    monkeypatch.setattr(bench, "experiment", tiny)
    monkeypatch.setenv("ACCLIMATE_COMMIT", "abc")
    monkeypatch.setattr("acclimate.store.environment", lambda device: {"commit": None})
    out = tmp_path / "out.json"

    def run(*args):
        words = ["x", "--rounds", "1", "--fraction", "0.1", "--out", str(out), "--rows", *args]
        monkeypatch.setattr("sys.argv", words)
        bench.main()
        return capsys.readouterr().out

    run("fedavg", "knn-per", "--seeds", "0", "1")
    assert run("fedavg").strip() == "fedavg: there already"
    assert "knn-per" not in run("knn-per", "t3a")
    records = json.loads(out.read_text())["records"]
    assert [[r["row"] for r in record["rows"]] for record in records] == [["fedavg", "knn-per"]] * 2 + [["t3a"]]
    assert records[0]["environment"]["commit"] == "abc" and set(records[0]["stream_hashes"]) == {"original"}
    monkeypatch.setattr("sys.argv", ["x", str(out)])
    tables.main()
    lines = capsys.readouterr().out.splitlines()
    means = [100 * r["rows"][0]["streams"]["original"]["accuracy"] for r in records[:2]]
    assert lines[0].startswith("Dir(0.1), 1 rounds, 0.1 of the data")
    assert f"| FedAvg * | 2 | {sum(means) / 2:.1f} ± {abs(means[0] - means[1]) / 2**0.5:.1f} (64.2) |" in lines
    assert [line.split(" |")[0] for line in lines[4:]] == ["| FedAvg *", "| kNN-Per *", "| T3A *", ""]
