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


def test_short_streams_were_measured_again_and_meet_every_goal(live):
    """All of them with the guard as it is: 99 % of cells and clients, never 3 points, three quarters of the gain."""
    cells = json.loads((ROOT / "results" / "live" / "no-harm-short.json").read_text())["cells"]
    lines = live.table(cells, lambda cell: cell["stream"]).splitlines()
    assert len(lines) == 8 and [line for line in lines if line not in PAGE] == []
    assert (
        len({c["case"] for c in cells}) == 36
        and len(cells) == 36 * 5 * 3
        and {c["commit"] for c in cells} == {"d321def1"}
    )
    found = live.summary(cells)
    guarded = found["guarded"]
    assert min(guarded["cells_within_1"], guarded["clients_within_1"]) >= 0.99 and guarded["worst_cell"] > -3
    shares = [f"{100 * guarded[f'{what}_within_1']:.1f} %" for what in ("cells", "clients")]
    said = f"{shares[0]} of {len(cells)} cells and for {shares[1]}"
    assert said in PAGE and f"no cell loses more than {-guarded['worst_cell']:.1f} points (`fedtta`" in PAGE
    assert found["gain_kept"] >= 0.75 and f"{100 * found['gain_kept']:.0f} % of the gain are kept" in PAGE
    assert guarded["worst_cell_is"].startswith("fedtta/fedtta out-of-client")
