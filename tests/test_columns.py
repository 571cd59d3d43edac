"""Tables of all commands at 80 columns, and whole where nothing limits them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from acclimate.cli.describe import results_table
from acclimate.cli.main import app
from acclimate.cli.tune import selection_text
from acclimate.eval import Table
from acclimate.eval.ranking import RankedRow, rank
from acclimate.eval.selection_table import Selection
from acclimate.ops import layout
from acclimate.recipes.pages import plain

RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture(autouse=True)
def _eighty(no_data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def widest(text):
    return max(len(line) for line in text.splitlines())


@pytest.mark.parametrize(
    "words",
    [["list"], ["data", "list"], ["doctor"], ["tune", "--grids"], ["reproduce", "list"], ["reproduce", "coverage"]],
    ids=" ".join,
)
def test_listings_fit_and_lose_no_word(words, monkeypatch):
    narrow = CliRunner().invoke(app, words).stdout
    assert widest(narrow.partition("Orders of the papers")[0]) <= 80
    monkeypatch.delenv("COLUMNS")
    wide = CliRunner().invoke(app, words).stdout
    assert sorted(narrow.replace(";", " ").split()) == sorted(wide.replace(";", " ").split())


def test_results_fit(tmp_path, capsys):
    row = {"personal": "none", "settings": [], "seed": 0, "clients": 3, "accuracy": 0.812, "std": 0.04}
    row |= {"selection": "last", "round": 1, "up_bytes": 4600, "per_client": []}
    streams = ("original", "corrupted", "out-of-client", "mixture", "label-drift", "newcomers", "recurring-domains")
    names = ("fedavg+finetune", "a-method-with-a-name-of-forty-characters")
    rows = [row | {"method": m, "adapter": "guarded-tent", "stream": s} for m in names for s in streams]
    results_table(Table(tuple(rows)), tmp_path)
    printed = capsys.readouterr().out.partition("run folder")[0]
    assert widest(printed) <= 80 and printed.count("81.2") == 14


def test_a_comparison_fits(monkeypatch):
    names = [f"fedavg(method.opt.lr=0.{i}, method.work.epochs=20)+finetune/guarded-tent" for i in (1, 2)]
    cells = [("out-of-client", "validation", "81.2", "80.1", "+1.1", "-10.2 to +12.0", "3 x 100")]
    two = SimpleNamespace(first=names[0], second=names[1], cells=lambda: cells, choices=[])
    two.sentences, two.caveat = list, str
    monkeypatch.setattr("acclimate.running.compare.compare", lambda *a, **k: two)
    monkeypatch.setattr("acclimate.store.find_runs", lambda path: iter(()))
    printed = CliRunner().invoke(app, ["compare", "x"]).stdout
    assert widest(printed) <= 80 and all(cell in printed for cell in cells[0])


def test_a_ranking_fits(capsys):
    from acclimate.cli import ranking

    cells = {"original": {0: [0.5, 0.6], 1: [0.5, 0.7]}}
    names = [f"fedavg(method.opt.lr=0.{i}, method.work.epochs=20)+finetune/guarded-tent" for i in range(9)]
    ranking.show(rank([RankedRow(name, cells) for name in names]), None)
    assert widest(capsys.readouterr().out.partition("mean: ")[0]) <= 80


def test_reproduced_tables_and_choices_of_strategies_fit(monkeypatch):
    result = json.loads(next((RESULTS / "fedthe").glob("table1-*.json")).read_text())
    narrow = plain(result).partition("ours ± std")[0]
    monkeypatch.delenv("COLUMNS")
    wide = plain(result).partition("ours ± std")[0]
    assert widest(narrow) <= 80 < widest(wide)
    assert all(cell in narrow for cell in wide.split("\n")[2].split("  ") if cell.strip())
    monkeypatch.setenv("COLUMNS", "80")
    chosen = "tent(opt.lr=0.001, steps=2, params='all')"
    pick = {"stream": "out-of-client", "by": "stream", "chosen": {chosen: 2}, "accuracy": 0.5, "gap": 0.1}
    picks = [pick | {"strategy": s, "per_client": []} for s in ("entropy", "consistency")]
    text = selection_text(Selection(rows=tuple(picks), candidates=()))
    assert widest(text) <= 80 and text.count(chosen) == 2 and "10.0" in text


def test_room_is_that_of_columns_or_of_the_window(monkeypatch):
    assert layout.room() == 80
    for odd in ("", "wide", "0"):
        monkeypatch.setenv("COLUMNS", odd)
        monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
        assert layout.room() == 0
    rows = [("a", "bb", "a long last cell")]
    assert layout.lined(rows) == ["a  bb  a long last cell"]
    assert layout.lined(rows, 22) == ["a  bb", "    a long last cell"]
    assert layout.cut(["r", "aaaa", "bbbb"], [["1", "2", "3"]], 8) == [
        [["r", "aaaa"], ["1", "2"]],
        [["r", "bbbb"], ["1", "3"]],
    ]
