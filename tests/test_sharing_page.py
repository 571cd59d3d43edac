"""The guide's study of when sharing by similarity helps says what is stored."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "together.md").read_text()
CELLS = json.loads((ROOT / "results" / "adapters" / "sharing.json").read_text())["cells"]
WAYS = ("own", "uniform", "similarity", "group known")


def told():
    """The study's rows: names of cells, and what is said of them."""
    begin = PAGE.index("### When similarity is worth it")
    rows = [line.strip("| ").split(" | ") for line in PAGE[begin:].split("\n##")[0].splitlines() if "|" in line]
    return {cells[0]: cells[1:] for cells in rows[2:]}


def test_every_cell_of_the_study_is_told_as_it_is_stored():
    rows = told()
    assert list(rows) and set(rows) == set(CELLS)
    for name, cell in CELLS.items():
        mean = cell["mean"]
        weights = (f"{mean[n]:.2f}" for n in ("weight of itself", "weight of others of its group"))
        above = ", ".join(f"{points:+.2f}" for points in cell["similarity_above"]["own"])
        expected = [", ".join(cell["each"]), *(f"{100 * mean[way]:.2f}" for way in WAYS), above, " + ".join(weights)]
        assert rows[name] == expected


def test_means_and_differences_are_those_of_the_seeds():
    for cell in CELLS.values():
        each = list(cell["each"].values())
        for way in WAYS:
            assert abs(cell["mean"][way] - sum(one[way] for one in each) / len(each)) < 1e-6
            if way in cell["similarity_above"]:
                apart = [round(100 * (one["similarity"] - one[way]), 2) for one in each]
                assert cell["similarity_above"][way] == apart


def test_sentences_of_the_study():
    mean = {name: cell["mean"] for name, cell in CELLS.items()}
    above = {name: cell["similarity_above"]["own"] for name, cell in CELLS.items()}
    # a middling batch gains, one that is large for its stream does not; the groups are nearly never wrong
    assert min(above["batch 4"] + above["batch 8"]) > 0.4 > max(above["batch 16"])
    assert all(
        m["weight of itself"] + m["weight of others of its group"] > 0.98 for n, m in mean.items() if "batch" in n[:5]
    )
    # the own weight is what keeps similarity from the yardstick: a softer temperature does not help, the rival does
    assert all(max(above[f"temperature {t}"]) < -6 for t in (0.4, 0.8))
    assert min(above["itself nearest"]) > max(above["batch 4"])
    assert all(m["group known"] - m["similarity"] < 0.006 for n, m in mean.items() if n == "itself nearest")
    for noisy in ("batch 2", "classes unevenly"):
        lost, won = sorted(above[f"itself nearest, {noisy}"])[:2]
        assert lost < 0 < won
    gains = {n: m["group known"] - m["own"] for n, m in mean.items() if n.startswith("batch")}
    assert max(gains, key=gains.get) == "batch 2"
    for n in ("length 8", "length 16"):
        assert not any(above[n]) and mean[n]["group known"] < mean[n]["own"]
    # a single group is for the uniform mean, and uneven classes leave most to gain
    assert (
        mean["group size 20"]["uniform"] == mean["group size 20"]["group known"] > mean["group size 20"]["similarity"]
    )
    gap = {n: m["group known"] - m["own"] for n, m in mean.items()}
    assert max(gap, key=gap.get).endswith("classes unevenly")
    # the speed of the statistics matters more than whom they are shared with
    for seed, found in CELLS["speed 6.0"]["each"].items():
        assert found["own"] > CELLS["batch 4"]["each"][seed]["group known"]
    assert all({"1", "2"} == set(cell["each"]) for cell in CELLS.values())
    assert mean["inside tent"]["group known"] <= mean["inside tent"]["own"]
