"""`acclimate reproduce`: list, show, run, index; and errors that help."""

import json
import re

import pytest
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.data import Digits
from acclimate.models import MLP
from acclimate.recipes import RECIPES, index
from acclimate.recipes.record import Cell, Recipe, Training, method
from acclimate.store import RunError

pytestmark = pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    monkeypatch.delenv("ACCLIMATE_DATA", raising=False)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def call(*words, error=None):
    done = CliRunner().invoke(app, ["reproduce", *words])
    if error is not None:
        assert done.exit_code and re.search(error, str(done.exception)), done.exception
    elif done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_list_names_every_recipe_and_its_data():
    lines = call("list").splitlines()
    assert [line.split()[0] for line in lines[1 : len(RECIPES) + 1]] == list(RECIPES)
    assert re.match(r"fedthe/table1 +16 +~\d+ min +135 +CIFAR10!, CIFAR10_1! ", lines[1])
    assert "fedicon/table3 (the layers" in lines[-1]
    assert "fedthe" not in call("list", "fedpcl") and "fedpcl/figure6" in call("list", "fedpcl")
    call("list", "fedavg", error="no paper 'fedavg'; allowed: fedthe, fedtta, fedicon, fedspl, fedpcl")


def test_show_has_rows_columns_and_numbers():
    text = call("show", "fedthe/table1")
    assert "FedTHE+: fedthe + theplus" in text and "CIFAR10_1: not there" in text
    assert re.search(r"missing +CIFAR10: needs cifar-10-batches-bin.* \(140 cells\)\n", text)
    assert "runs now   0 of 140 cells at paper scale; all at smoke scale\n" in text
    assert re.search(r"APFL: .*dir\(1\.0\) natural 31\.5\?", text)
    assert "published  none" in call("show", "fedthe/figure8")
    call("show", "fedthe/table0", error="no recipe 'fedthe/table0'; did you mean")


def test_a_table_from_the_command_line(tmp_path):
    words = ("fedpcl/table5", "--rows", "FedPCL; cross entropy", "--out", "out", "--quiet")
    text = call(*words)
    assert re.search(r"FedPCL +\d+\.\d \(45\.2, ", text) and "Supervised" not in text
    assert "out/fedpcl/table5-smoke.json" in text
    body = json.loads((tmp_path / "out" / "fedpcl" / "table5-smoke.json").read_text())
    assert body["scale"] == "smoke" and body["seeds"] == [0] and len(body["trainings"]) == 2
    assert call(*words) == text  # read, not run
    page = call("index", "out")
    assert re.search(r"\| fedpcl/table5 \| smoke \| 2 \| 0 \| cpu .* \| fedpcl/table5-smoke.json \|", page)
    assert "trainings/" not in page


def test_missing_data_is_said_before_anything_runs():
    text = call("fedthe/table4", "--scale", "paper", error="nothing can run at paper scale")
    assert "missing: CIFAR10: needs " in text


def test_square_brackets_are_printed_as_they_are(monkeypatch):
    def make(scale):
        for row, name in {"with [square] brackets": "fedavg", "missing": "fed[future]"}.items():
            yield Cell(row, "[new]", Training(method(name).at("smoke"), Digits(clients=3, fraction=0.1), MLP((8,)), 1))

    monkeypatch.setitem(RECIPES, "fedthe/table99", Recipe("fedthe/table99", "brackets", make))
    text = call("fedthe/table99", "--out", "out[1]")
    assert "missing: no method 'fed[future]'; " in text and "results: out[1]/fedthe/table99-smoke.json" in text
    assert "with [square] brackets" in text and "[new]" in text.partition("ours ±")[0].rpartition("running")[2]


def test_bad_options_say_what_is_allowed():
    call("fedthe/table1", "--seeds", "0", error="--seeds 0 must be at least 1")
    call("fedthe/table1", "--scale", "large", error="scale='large' must be one of smoke, paper")
    call("fedthe/table1", "--device", "gpu", error="device='gpu' must be auto, cpu, cuda or cuda:N")
    call("fedthe/table1", "--rows", "FedTHI", error="no row 'FedTHI'; did you mean 'FedTHE'")


def test_the_index_also_reads_the_benchmarks(tmp_path):
    env = {"device": "cuda (card)", "commit": "abc"}
    rows = [{"row": "fedavg", "streams": {"original": {"accuracy": 0.6525}}}, {"row": "tsa", "streams": {}}]
    record = {"alpha": 0.1, "seed": 1, "rounds": 100, "fraction": 1.0, "environment": env, "rows": rows}
    (tmp_path / "table1.json").write_text(json.dumps({"schema": "acclimate.fedthe/1", "records": [record]}))
    (tmp_path / "other.json").write_text("[]")
    held = [{"row": "FedAvg", "accuracy": {"Photo": 0.9077}}, {"row": "FMR", "accuracy": {"Photo": 0.5}}]
    spl = {"held": "Photo", "seed": 0, "rounds": 40, "fraction": 1.0, "environment": env, "rows": held}
    (tmp_path / "pacs.json").write_text(json.dumps({"schema": "acclimate.fedspl/1", "records": [spl]}))
    page = index(tmp_path)
    assert "| FedSPL, benchmark | 40 rounds | 2 | 0 |" in page
    assert "the median difference is 2.0" in page  # 90.77 against 92.77
    assert "| FedTHE, benchmark | 100 rounds | 2 | 1 | cuda (card) | abc | 1 of 1 numbers have a published one" in page
    assert "the median difference is 1.0" in page  # 65.25 against 64.25
    assert "Other files: `other.json`." in page
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RunError, match="holds no results"):
        index(empty)
    with pytest.raises(RunError, match="is not a folder"):
        index(tmp_path / "nowhere")
