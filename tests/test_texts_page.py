"""The guides to texts and tables tell what is stored: every cell of the embedded texts, and the study of windows; and
what shifts do at each severity."""

import json
import re
from pathlib import Path

import pytest

from acclimate.data import Phrases
from acclimate.shifts.covariate import SHARES
from acclimate.shifts.numbers import NUMBERS
from acclimate.shifts.text_shifts import SEVERITIES

ROOT = Path(__file__).parents[1]
STREAMS = ("original", "corrupted", "out-of-client", "mixture")


def test_the_table_of_texts_is_the_stored_cells():
    page = (ROOT / "docs" / "guides" / "texts.md").read_text()
    (part,) = json.loads((ROOT / "results" / "text" / "phrases.json").read_text()).values()
    stored = {(r["method"], r["adapter"], r["stream"]): r["accuracy"] for r in part["rows"]}
    told = re.findall(r"^\| `([\w+]+)` \| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    said = {(m, a, s): float(v) for m, a, *row in told for s, v in zip(STREAMS, row, strict=True)}
    assert said == pytest.approx(stored, abs=0.051) and len(said) == 72
    assert part["command"].partition(" -o ")[0] in page
    assert part["data"]["hash"] == Phrases().world().card()["hash"]


def test_windows_are_known_as_the_study_of_windows_has_it():
    page = " ".join((ROOT / "docs" / "guides" / "tables.md").read_text().split())
    rows = json.loads((ROOT / "results" / "tables" / "windows.json").read_text())["rows"]
    said = re.findall(r"(?:right on|before\) on) ([\d.]+) %, ([\d.]+) % and ([\d.]+) %", page)
    found = [rows[name]["accuracy"] for name in ("window-cnn-bn", "mlp-bn")]
    assert [list(map(float, row)) for row in said] == [pytest.approx(row, abs=0.051) for row in found]


@pytest.mark.parametrize(
    ("page", "sizes"),
    [("tables", {kind: sizes for kind, (_, sizes) in NUMBERS.items()}), ("texts", SEVERITIES)],
)
def test_the_sizes_of_all_severities_are_those_of_the_guide(page, sizes):
    text = (ROOT / "docs" / "guides" / f"{page}.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .+ \| ([^|]+) \|$", text.partition("## Shifts")[2].partition("\n## ")[0], re.M)
    assert {kind: tuple(map(float, re.findall(r"\d+\.?\d*", said))) for kind, said in rows} == sizes
    if page == "tables":
        assert (
            tuple(int(n) / 100 for n in re.findall(r"\d+", re.search(r"the highest (.+?)\s+per cent", text)[1]))
            == SHARES
        )
