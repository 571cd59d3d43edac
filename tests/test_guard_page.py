"""The tables of the guide to the guard are those of the stored cells, all of them."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "guard.md").read_text()


@pytest.fixture(scope="module")
def live():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("live")
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("name", ["no-harm", "no-harm-cifar10-seeds-6-8"])
def test_the_tables_are_those_of_the_stored_cells(live, name):
    cells = json.loads((ROOT / "results" / "live" / f"{name}.json").read_text())["cells"]
    for by in ("stream", "case"):
        lines = live.table(cells, lambda cell, by=by: cell[by]).splitlines()
        assert len(lines) > 8 and [line for line in lines if line.startswith("|") and line not in PAGE] == []
    said = next(part for part in PAGE.split("\n\n") if f"`results/live/{name}.json`" in part)
    assert [commit for commit in {c["commit"] for c in cells} if commit not in said] == []


def test_the_digits_have_every_cell_that_the_page_counts():
    cells = json.loads((ROOT / "results" / "live" / "no-harm.json").read_text())["cells"]
    cases, streams, seeds = ({c[key] for c in cells} for key in ("case", "stream", "seed"))
    assert len(cells) == len(cases) * len(streams) * len(seeds)
    assert f"{len(cases)} adapters and deployments: {len(cells)} cells" in PAGE and len(streams) == 8
