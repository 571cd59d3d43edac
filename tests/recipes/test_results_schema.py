"""The results of the repository have the one schema, whether recipes wrote them or benchmarks before there were any."""

import json
from pathlib import Path

import pytest

from acclimate.recipes import RECIPES
from acclimate.recipes.results import RESULT_SCHEMA

ROOT = Path(__file__).parents[2]
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
