"""`--json`: every command that prints a table has it, and its document says what the guide says it does."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from acclimate import tuning
from acclimate.cli.main import app
from acclimate.experiment.catalogue_data import DATASETS
from acclimate.leaderboard.folder import Rerun
from acclimate.recipes import RECIPES

pytestmark = pytest.mark.usefixtures("no_data")
ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "guides" / "json.md").read_text()
SOURCES = [p.read_text() for p in (ROOT / "src" / "acclimate" / "cli").glob("*.py")]
SMALL = [
    "method=fedavg",
    "data.clients=2",
    "data.fraction=0.2",
    "model=mlp",
    "model.hidden=8",
    "rounds=1",
    "streams=original",
    "-q",
]


def told(*words, code=0):
    """What a command prints with --json, which must be one document and nothing else."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, done.output
    body = json.loads(done.stdout)
    assert f"`{body['schema']}`" in GUIDE
    fields = next(line for line in GUIDE.splitlines() if f"`{body['schema']}`" in line)
    assert all(f"`{key}`" in fields for key in body if key != "schema")
    return body


def test_every_schema_is_in_the_guide_and_the_guide_has_no_other():
    used = {name for text in SOURCES for name in re.findall(r'document\(\s*"([\w-]+)"', text)}
    assert used == set(re.findall(r"acclimate\.cli\.([\w-]+)/1", GUIDE)) and len(used) > 12


def test_doctor_and_data(tmp_path):
    findings = told("doctor")["findings"]
    assert {"acclimate", "torch", "extra"} <= {f["what"] for f in findings}
    assert not next(f for f in findings if f["what"] == "data root")["ok"]
    sets = told("data", "list")["datasets"]
    assert [s["name"] for s in sets] == list(DATASETS)
    assert next(s for s in sets if s["name"] == "cifar10")["examples"] == "50,000 + 10,000"
    found = told("data", "check", "digits")["findings"]
    assert {"kind": "ok", "text": "classes 10"} in found
    gone = told("data", "check", "cifar10", f"root={tmp_path}", code=2)["findings"]
    assert [f["kind"] for f in gone] == ["missing"]


def test_tune_tells_of_its_trials_and_of_the_grids(tmp_path):
    out = str(tmp_path / "t")
    body = told("tune", *SMALL, "method.opt.lr=0.001,0.5", "-o", out)
    card = json.loads((tmp_path / "t" / "tune.json").read_text())
    assert body["folder"] == out and [t["score"] for t in body["trials"]] == [t["score"] for t in card["trials"]]
    assert body["best"]["score"] == max(t["score"] for t in body["trials"])
    grids = told("tune", "--grids")["grids"]
    assert [g["name"] for g in grids] == [g.name for g in tuning.GRIDS] and grids[0]["points"] == 9
    chosen = told("tune", *SMALL, "adapters=t3a", "adapters.t3a.keep=5,9", "--select", "entropy", "-o", out + "s")
    assert chosen["chosen"]["strategy"] == "entropy" and chosen["chosen"]["selection"]["rows"]


def test_reproduce_tells_what_is_listed_and_stored(monkeypatch):
    body = told("reproduce", "list")
    assert [r["name"] for r in body["recipes"]] == list(RECIPES)
    first = next(r for r in body["recipes"] if r["name"] == "fedthe/table1")
    assert first["printed"] == 135 and first["trainings"] == 20 and set(first["data"]) == {"CIFAR10", "CIFAR10_1"}
    assert told("reproduce", "show", "fedthe/table1")["text"].startswith("fedthe/table1: ")
    stored = {"recipe": "fedthe/table1", "cells": [{"row": "a", "mean": 81.5}]}
    monkeypatch.setattr("acclimate.recipes.table", lambda *a: stored)
    assert told("reproduce", "table", "fedthe/table1")["result"] == stored


def test_a_leaderboard_tells_ranks_and_whether_a_rerun_matches(tmp_path, monkeypatch):
    board = tmp_path / "board" / "small"
    board.mkdir(parents=True)
    for name in ("fedper.v1.json", "local.v1.json"):
        (board / name).write_bytes((ROOT / "results" / "leaderboard" / "brfl-v1" / "small" / name).read_bytes())
    body = told("leaderboard", "--folder", str(board.parent), "-o", str(tmp_path / "x.html"))
    places = body["tracks"]["small"]["places"]
    assert [p["rank"] for p in places] == list(range(1, 11)) and places[0]["mean"] > places[-1]["mean"]
    assert body["wrote"] == [str(tmp_path / "x.html"), str(board.parent / "small.md")]
    monkeypatch.setattr("acclimate.leaderboard.folder.rerun", lambda *a: Rerun(False, {"mixture": 0.03}))
    body = told("leaderboard", "--rerun", str(board / "local.v1.json"), code=1)
    assert body["gaps"] == {"mixture": 0.03} and not body["matches"]


def test_a_fleet_tells_which_processes_run(tmp_path, monkeypatch):
    fleet = SimpleNamespace(folder=tmp_path, port=9092, nodes=1, running=False)
    fleet.status = lambda: [("link", 12, True), ("node-0", 13, False)]
    monkeypatch.setattr("acclimate.fleet.loopback.Fleet.load", lambda folder: fleet)
    body = told("fleet", "status", str(tmp_path), code=1)
    assert body["processes"][1] == {"name": "node-0", "pid": 13, "up": False} and body["port"] == 9092
    deployed = {
        "clients": [0, 1],
        "label": "fedavg",
        "round": 3,
        "adapter": "tent",
        "accuracy": {"original": [0.5]},
    }
    monkeypatch.setattr("acclimate.fleet.launch.deploy", lambda *a, watch: deployed)
    assert told("fleet", "deploy", str(tmp_path))["deployed"] == deployed
