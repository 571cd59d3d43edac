"""`acclimate reproduce`: list, show, run, index; and errors that help."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.data import Digits
from acclimate.models import MLP
from acclimate.recipes import RECIPES, command, index
from acclimate.recipes.record import Cell, Recipe, Training, method
from acclimate.store import RunError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def apart(own_machine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


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
    assert re.match(r"fedthe/table1 +20 +~\d+ min +135 +CIFAR10!, CIFAR10_1! ", lines[1])
    rest = " ".join(" ".join(lines).split())  # prose goes on in the next line where the window ends
    assert "fedicon/table3 (the layers" in rest and "fedthe/figure9 (part of fedthe/figure8)" in rest
    assert "fedthe" not in call("list", "fedpcl") and "fedpcl/tuning" in call("list", "fedpcl")
    call("list", "fedavg", error="no paper 'fedavg'; allowed: fedthe, fedtta, fedicon, fedspl, fedpcl")


def test_show_has_rows_columns_and_numbers():
    text = call("show", "fedthe/table1")
    assert "head_opt.weight_decay=0.0005) + theplus" in text and "CIFAR10_1: not there" in text
    assert re.search(r"missing +CIFAR10: needs cifar-10-batches-bin.* \(170 cells\)\n", text)
    assert "runs now   0 of 170 cells at paper scale; all at smoke scale\n" in text
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
        trained = Training(method("fedavg").at("smoke"), Digits(clients=3, fraction=0.1), MLP((8,)), 1)
        yield Cell("with [square] brackets", "[new]", trained)

    monkeypatch.setitem(RECIPES, "fedthe/table99", Recipe("fedthe/table99", "brackets", make))
    text = call("fedthe/table99", "--out", "out[1]")
    assert "results: out[1]/fedthe/table99-smoke.json" in text
    assert "with [square] brackets" in text and "[new]" in text.partition("ours ±")[0]


def test_bad_options_say_what_is_allowed():
    call("fedthe/table1", "--seeds", "0", error="--seeds 0 must be at least 1")
    call("fedthe/table1", "--scale", "large", error="scale='large' must be one of smoke, paper")
    call("fedthe/table1", "--device", "gpu", error="device='gpu' must be auto, cpu, cuda or cuda:N")
    call("fedthe/table1", "--seeds", "one", error="--seeds one must be a number of seeds, or seeds with commas")
    call("fedthe/table1", "--rows", "FedTHI", error="no row 'FedTHI'; did you mean 'FedTHE'")
    call("fedthe/table1", "--columns", "mixtures", error=r"no column 'mixtures'; allowed: dir\(0\.1\) original")
    call("fedthe/table1", "--rounds", "0", error="rounds=0 must be at least 1")
    call("fedthe/table1", "--fraction", "1.5", error=r"fraction=1\.5 must be above 0 and at most 1")


def test_seeds_are_a_number_or_a_list():
    assert [command.seeds_of(text) for text in ("3", "0,2", "3,")] == [[0, 1, 2], [0, 2], [3]]


def result(folder, name, **more):
    cell = {"row": "FedAvg", "column": "Photo", "percent": True, "ours": [90.77], "mean": 90.77, "std": None}
    cell |= {"published": {"mean": 92.77, "std": None, "doubt": ""}, "difference": None if more else -2.0}
    env = {"device": "cuda (card)", "commit": "abc"}
    body = {"schema": "acclimate.reproduction/1", "recipe": "fedspl/pacs", "scale": "paper", "seeds": [0]}
    (folder / name).write_text(json.dumps({**body, "environment": env, "cells": [cell], **more}))


def test_the_index_reads_one_schema_and_compares_what_is_of_the_recipes_own_size(tmp_path):
    result(tmp_path, "own.json")
    result(tmp_path, "short.json", rounds=15, fraction=0.1)
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "old.json").write_text(json.dumps({"schema": "acclimate.fedspl/1", "records": []}))
    page = index(tmp_path)
    assert "| fedspl/pacs | paper | 1 | 0 | cuda (card) | abc | 1 of 1 numbers have a published one: 1 lie" in page
    assert "the median difference is 2.0" in page
    short = "1 numbers; after 15 rounds, with 0.1 of the data they are not to be compared with the paper's."
    assert (
        f"| paper, after 15 rounds, with 0.1 of the data | 1 | 0 | cuda (card) | abc | {short} | short.json |" in page
    )
    assert "Other files: `old.json`, `other.json`." in page
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RunError, match="holds no results"):
        index(empty)
    with pytest.raises(RunError, match="is not a folder"):
        index(tmp_path / "nowhere")


def test_the_index_of_the_repository_is_that_of_its_results():
    assert (ROOT / "results" / "index.md").read_text() == index(ROOT / "results")


REFUSING = """
import runpy, sys
ABSENT = "typer rich click scipy PIL pandas h5py flwr ray dp_accounting".split()
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT or name.startswith("sklearn."):
            return None
        return self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
for words in %r:
    sys.argv[1:] = words
    runpy.run_module("acclimate.recipes", run_name="__main__", alter_sys=True)
"""
"""`sklearn` may be found, for its file of digits, but none of its code is imported."""


def test_recipes_run_with_torch_numpy_and_safetensors_alone(tmp_path):
    words = ("run", "fedpcl/table5", "--rows", "FedPCL", "--seeds", "0,1", "--rounds", "2", "--out", "out")
    more = ("list", "fedpcl"), ("show", "fedpcl/table5"), ("index", "out"), ("run", "fedpcl/table55")
    code = REFUSING % ((words, *more),)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, cwd=tmp_path)
    text, log = done.stdout, done.stderr
    assert done.returncode == 1 and "error" not in text  # of the last command alone
    said = "error: no recipe 'fedpcl/table55'; did you mean 'fedpcl/table5'?"
    assert log.splitlines()[-1].startswith(said), log
    assert re.search(r"FedPCL +\d+\.\d ± \d+\.\d \(45\.2\)\n", text) and "after 2 rounds" in text
    _, told = text.split("results: out/fedpcl/table5-smoke-2-rounds.json and .md")
    assert "100 %: test fedpcl (seed 1)" in log
    body = json.loads((tmp_path / "out" / "fedpcl" / "table5-smoke-2-rounds.json").read_text())
    assert body["command"] == f"python -m acclimate.recipes {shlex.join(words)}"
    assert "fedpcl/table5" in told and "FedPCL: fedpcl" in told
    assert "| fedpcl/table5 | smoke, after 2 rounds | 1 | 0, 1 |" in told
