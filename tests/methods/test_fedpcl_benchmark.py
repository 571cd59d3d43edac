"""The benchmark of FedPCL's tables: it has every published figure, makes a world once, goes on where it was cut."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from torch import nn

import acclimate as ac

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fedpcl.py"


@pytest.fixture
def bench():
    spec = importlib.util.spec_from_file_location("fedpcl_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks its module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def places(bench, *tables):
    return {(c.row, f"{c.data}/{c.setting}/{c.backbones}") for t in tables for c in bench.cells(t)}


def test_every_published_figure_has_its_cell(bench):
    published = bench._published()
    figures = {k for k in published if len(k) == 2}
    assert figures <= places(bench, "accuracy", "ablations", "noise") and len(figures) == 88
    assert {(r, s) for r, s, _ in (k for k in published if len(k) == 3)} <= {
        (c.row, c.setting) for c in bench.cells("fairness")
    }


def test_every_row_is_tuned_over_the_same_rates(bench):
    rates = {}
    for cell in bench.cells("tuning"):
        rates.setdefault(cell.row.split(",")[0], set()).add(cell.method.opt.lr)
    assert list(rates) == list(bench.METHODS) and all(r == set(bench.RATES) for r in rates.values())


def test_jobs_share_a_world_and_lose_nothing(bench):
    wanted = [(c, seed) for c in bench.cells("noise") for seed in (0, 1)]
    found = bench.jobs("noise", wanted, 3)
    assert sorted((c.row, j.seed) for j in found for c in j.cells) == sorted((c.row, seed) for c, seed in wanted)
    assert len(found) == 2 * 5  # clean images, and four kinds of noise on them
    assert all(len({repr(c.features()) for c in j.cells}) == 1 for j in found)
    sizes = [len(bench.KINDS[j.cells[0].backbones]) for j in bench.jobs("accuracy", _all(bench), 3)]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 12


def _all(bench):
    return [(c, 0) for c in bench.cells("accuracy")]


def test_it_adds_what_is_missing_and_shows_it(bench, tmp_path, monkeypatch, capsys):
    images = ac.data.Digits(domains=("plain", "inverted"))
    encoder = ac.models.Frozen((nn.Flatten(),), width=16)
    small = bench.Kept(ac.data.ByDomain(alpha=1.0), 2, data=images, encoder=encoder)
    monkeypatch.setattr(bench.Cell, "features", lambda self: small)
    monkeypatch.setenv("ACCLIMATE_COMMIT", "abc")
    monkeypatch.setattr(bench.store, "environment", lambda device: {"commit": None})
    out = tmp_path / "out.json"

    def run(*args):
        monkeypatch.setattr("sys.argv", ["x", "--processes", "1", "--rounds", "2", *args])
        bench.main()
        return capsys.readouterr().out

    some = ["--data", "office", "--setting", "both", "--seeds", "0", "1", "--out", str(out), "--row"]
    run(*some, "fedavg")
    first = json.loads(out.read_text())
    assert run(*some, "fedavg") == "" and json.loads(out.read_text()) == first
    run(*some, "fedpcl", "fedavg")
    text = json.loads(out.read_text())
    assert [(r["row"], r["backbones"], r["seed"]) for r in text["records"]] == [
        (row, kind, seed) for kind in ("m", "s") for row in ("fedavg", "fedpcl") for seed in (0, 1)
    ]
    assert text["environment"]["commit"] == "abc" and text["took"]["cells"] == 4
    assert {r["parameters_sent"] for r in text["records"]} == {16 * 256 + 2560, 2560}
    with pytest.raises(SystemExit, match="holds results of 2 rounds, not 3"):
        run(*some, "fedavg", "--rounds", "3")
    run("--seeds", "5", *some[:4], "--out", str(out), "--row", "fedavg")  # a seed that not every cell has
    shown = run("--show", str(out))
    assert (
        "seeds 0, 1, 2 rounds" in shown
        and "(33.8)" in shown
        and "(37.6)" in shown
        and "| fedpcl |" in shown
        and "| 2,560 |" in shown
    )

    tuning, before = tmp_path / "tuning.json", bench._world.cache_info().hits
    run(
        "--table",
        "tuning",
        *some[:4],
        "--seeds",
        "0",
        "--out",
        str(tuning),
        "--row",
        "local, lr 0.01",
        "fedpcl, lr 0.001",
    )
    assert bench._world.cache_info().hits == before + 1  # one world for both rows
    shown = run("--show", str(tuning))
    assert "| local, lr 0.01 |" in shown and "accuracy" not in json.loads(tuning.read_text())["records"][0]
