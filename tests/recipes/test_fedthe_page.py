"""docs/papers/fedthe.md tells Table 14 as it is stored."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS = ("original", "corrupted", "out-of-client", "mixture")


def test_a_tenth_of_the_clients_per_round_is_told_as_it_was_measured():
    page = (ROOT / "docs" / "papers" / "fedthe.md").read_text()
    section = page.split("### Table 14: a tenth of the clients per round\n")[1].split("\n### ")[0]
    stored = json.loads((ROOT / "results" / "fedthe" / "table14-paper.json").read_text())
    found = {(c["row"], c["column"]): c for c in stored["cells"] if c.get("ours")}
    assert stored["seeds"] == [0] and stored["environment"]["device"].startswith("cpu")
    told = {}
    for line in re.findall(r"^\| (?!row)(.+) \|$", section, re.MULTILINE):
        row, *cells = line.split(" | ")
        told |= {(row, column): cell for column, cell in zip(COLUMNS, cells, strict=True) if cell != "-"}
    published = {key: cell["published"]["mean"] for key, cell in found.items()}
    assert told == {key: f"{cell['ours'][0]:.1f} ({published[key]:.1f})" for key, cell in found.items()}
    near = [key for key, cell in found.items() if abs(cell["ours"][0] - published[key]) <= 3]
    gains = {
        column: [of["FedTHE", column] - of["FedAvg + FT", column] for of in (ours(found), published)]
        for column in ("out-of-client", "mixture")
    }
    said = [f"**{len(near)} of {len(found)} lie within 3 points.**"]
    abroad = "{:.1f} points more than fine-tuning on other clients' examples (paper {:.1f})"
    said += [f"FedTHE has {abroad}".format(*gains["out-of-client"])]
    said += ["and {:.1f} more on the mixture (paper {:.1f})".format(*gains["mixture"])]
    assert [text for text in said if text not in " ".join(section.split())] == []


def ours(found):
    return {key: cell["ours"][0] for key, cell in found.items()}
