"""Results of earlier versions become results of recipes, and nothing of them is lost."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from acclimate.recipes import RECIPES, index
from acclimate.recipes.results import RESULT_SCHEMA

ROOT = Path(__file__).parents[2]
ENV = {"device": "cuda (card)", "commit": "abc", "torch": "2"}
THE = {
    "training": "fedavg",
    "alpha": 0.1,
    "seed": 1,
    "rounds": 100,
    "fraction": 1.0,
    "method": "FedAvg()",
    "training_hash": "f00",
    "data_hashes": {"train": "1"},
    "command": "python benchmarks/fedthe_cifar10.py",
    "environment": ENV,
    "rows": [{"row": "fedavg", "adapter": "NoAdapt()", "streams": {"original": {"accuracy": 0.6525, "ece": 0.1}}}],
}
PCL = {"data": "office", "setting": "both", "backbones": "m", "row": "fedpcl", "seed": 0, "rounds": 20}
PCL |= {"accuracy": 0.917, "per_client": [0.9, 0.934], "train_sizes": [120, 35]}


@pytest.fixture
def folder(tmp_path):
    """A folder as earlier versions wrote it."""
    later = {**THE, "rows": [{**THE["rows"][0], "streams": {"original": {"accuracy": 0.66}}}]}
    old = {
        "fedthe/table1.json": {"schema": "acclimate.fedthe/1", "records": [THE, {**THE, "seed": 2}, later]},
        "fedpcl/accuracy.json": {
            "schema": "acclimate.fedpcl/2",
            "command": ["benchmarks/fedpcl.py", "--out", "x y"],
            "took": {"seconds": 3},
            "environment": ENV,
            "records": [PCL],
        },
        "benchmarks/gpu.json": {"device": "card"},
    }
    for name, body in old.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(body))
    return tmp_path


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("convert_results")


@pytest.fixture
def convert(script, monkeypatch, capsys):
    """The script, on a folder; what it prints."""

    def convert(folder):
        monkeypatch.setattr(sys, "argv", ["convert_results.py", str(folder)])
        script.main()
        return capsys.readouterr().out

    return convert


def test_old_records_become_cells_beside_the_published_numbers(folder, convert):
    text = convert(folder)
    assert "fedthe/table1.json -> fedthe/table1-converted.json: 1 cells, 3 records" in text
    kept = {p.relative_to(folder).as_posix() for p in folder.rglob("*.json")}
    assert kept == {"fedthe/table1-converted.json", "fedpcl/table11-accuracy.json", "benchmarks/gpu.json"}
    the = json.loads((folder / "fedthe" / "table1-converted.json").read_text())
    (cell,) = the["cells"]
    assert (cell["row"], cell["column"]) == ("FedAvg", "dir(0.1) original")
    assert cell["ours"] == [66.0, 65.25]  # of seed 1 the later one
    assert cell["difference"] == pytest.approx(65.625 - 64.25) and the["seeds"] == [1, 2]
    assert the["converted"]["note"] == "Converted from benchmark records; measured with commit abc."
    pcl = json.loads((folder / "fedpcl" / "table11-accuracy.json").read_text())
    (cell,) = pcl["cells"]
    assert cell["published"]["mean"] == 41.4 and cell["difference"] is None and cell["rounds"] == pcl["rounds"] == 20
    assert pcl["converted"]["took"] == {"seconds": 3} and pcl["command"] == "python benchmarks/fedpcl.py --out 'x y'"
    page = index(folder)
    assert "| fedpcl/table11 | paper, after 20 rounds | 1 | 0 | cuda (card) | abc | 1 numbers; after 20 rounds" in page
    assert convert(folder) == ""  # once is enough


def test_every_field_of_an_old_record_is_kept(folder, convert):
    convert(folder)
    the = json.loads((folder / "fedthe" / "table1-converted.json").read_text())["records"][0]
    row = {k: v for k, v in THE["rows"][0].items() if k != "row"}
    assert the["tests"] == {"fedavg": row}
    assert {k: the.get(k, the["more"].get(k)) for k in THE if k != "rows"} == {
        k: v for k, v in THE.items() if k != "rows"
    }
    pcl = json.loads((folder / "fedpcl" / "table11-accuracy.json").read_text())["records"][0]
    assert {k: pcl.get(k, pcl["more"].get(k)) for k in PCL} == PCL and pcl["environment"] == ENV


def test_moved_classes_get_their_names_in_one_place(tmp_path, monkeypatch, script, convert):
    monkeypatch.setattr(script, "renamed", lambda body: {**body, "experiment": "methods:FedAvg"})
    (tmp_path / "a.json").write_text(
        json.dumps({"schema": "acclimate.training/1", "experiment": "methods.fedavg:FedAvg"})
    )
    convert(tmp_path)
    assert json.loads((tmp_path / "a.json").read_text())["experiment"] == "methods:FedAvg"


FILES = [
    p
    for paper in ("fedthe", "fedtta", "fedicon", "fedspl", "fedpcl")
    for p in (ROOT / "results" / paper).glob("*.json")
]


@pytest.mark.parametrize("file", sorted(FILES), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_results_of_the_repository_have_the_one_schema(file):
    body = json.loads(file.read_text())
    assert body["schema"] == RESULT_SCHEMA and body["recipe"] in RECIPES
    known = {(c.row, c.column) for c in RECIPES[body["recipe"]].cells("paper")}
    ours = {("FedICON, tuned at 1e-3", c["column"]) for c in body["cells"]}
    assert {(c["row"], c["column"]) for c in body["cells"]} <= known | ours
    assert all(c["difference"] is None for c in body["cells"] if body["rounds"] or body["fraction"])
    if "converted" in body:
        where = file.parents[1] / body["converted"].get("records_in", "none")
        assert body["records"] or json.loads(where.read_text())["records"]
    else:  # written by the recipe itself
        assert body["records"] and len(body["trainings"]) == len(body["records"])
    assert file.with_suffix(".md").exists()
