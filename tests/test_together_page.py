"""The guide to clients that adapt together says what is stored."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "together.md").read_text()
STORED = json.loads((ROOT / "results" / "adapters" / "together.json").read_text())
HOW = ("own", "uniform", "similarity", "similarity, every 5 batches", "similarity, not centred", "FedCTTA")
HOW = (*HOW, "FedCTTA, temperature 0.01")
INSIDE = {"`tent` (0.001)": "Tent", "`bn-running` (speed 3)": "running statistics"}


def entry(name):
    return {row["variant"]: row for row in STORED[name]["rows"]}


def tables():
    """Rows of all tables by variants of an exchange: the entry of CIFAR-10 (None: the digits'), adapter, numbers."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) in (8, 9) and {*cells[:2]} & {*INSIDE, "bytes per client"}:
            who, *rest = cells if len(cells) == 9 else (None, *cells)
            name = who and "cifar10, {} clients, batch {}".format(*re.fullmatch(r"(\d+) \((\d+)\)", who).groups())
            yield name, rest[0], [cell.split(" ±")[0].strip("*").replace(",", "") for cell in rest[1:]]


def test_every_table_is_a_stored_entry():
    seen = []
    for name, inside, numbers in tables():
        rows = entry(name or "digits, 20 clients, batch 16")
        if inside == "bytes per client":
            assert [int(n) for n in numbers] == [rows[f"Tent: {how}"]["exchanged_bytes"] for how in HOW]
        else:
            expected = [100 * rows[f"{INSIDE[inside]}: {how}"]["accuracy"] for how in HOW]
            assert [float(n) for n in numbers] == pytest.approx(expected, abs=0.0051)
        seen.append(name)
    assert seen == [None] * 3 + [name for name in STORED if name.startswith("cifar10") for _ in range(3)]


def test_sentences_about_cifar10():
    rows = entry("cifar10, 20 clients, batch 16")
    own, similar, even = (rows[f"running statistics: {how}"] for how in ("own", "similarity", "uniform"))
    apart = [round(100 * (a - b), 2) for a, b in zip(similar["each"], own["each"], strict=True)]
    assert "by {}, {} and {} points".format(*apart) in PAGE and min(apart) > 0
    assert f"{100 * (similar['accuracy'] - even['accuracy']):.1f} points above uniform" in PAGE
    for variant in ("not adapted", "statistics of each batch", "prototypes: own", "prototypes: exchanged"):
        assert f"{100 * rows[variant]['accuracy']:.2f}" in PAGE
    tent = [100 * rows[f"Tent: {how}"]["accuracy"] for how in HOW]
    assert max(tent) - min(tent) < 0.1


ARRIVED = ("", ": uniform", ": similarity", ": similarity, every 5 batches", ": FedTSA", ": group known")


@pytest.mark.parametrize("batch", [16, 4])
def test_statistics_of_arrived_batches_are_as_stored(batch):
    (line,) = re.findall(rf"^\| {batch} \| (.*) \|$", PAGE, re.MULTILINE)
    rows = entry(f"digits, 20 clients, batch {batch}")
    for cell, how in zip(line.split(" | "), ARRIVED, strict=True):
        told, spread = cell.replace("*", "").split(" ±")
        row = rows[f"statistics of each batch{how}"]
        assert float(told) == pytest.approx(100 * row["accuracy"], abs=0.0051)
        assert float(spread) == pytest.approx(100 * row["std_over_seeds"], abs=0.051)
    own, similar, far, even = (
        rows[f"statistics of each batch{how}"] for how in (*ARRIVED[:1], *ARRIVED[2:4], ARRIVED[1])
    )
    above = [100 * (a - b) for a, b in zip(similar["each"], own["each"], strict=True)]
    assert "by {:.1f}, {:.1f} and {:.1f}".format(*above) in PAGE and min(above) > 0
    assert min(a - b for a, b in zip(similar["each"], even["each"], strict=True)) > 0.05, "far above uniform"
    assert f"{similar['exchanged_bytes']:,}" in PAGE and f"{far['exchanged_bytes']:,}" in PAGE


KNOWN = json.loads((ROOT / "results" / "adapters" / "groups.json").read_text())["rows"]
COLUMNS = ("bn", "bn-together, uniform", "bn-together", "fedtsa", "bn-together, group known")


@pytest.mark.parametrize("cell", KNOWN)
def test_the_known_network_is_as_stored(cell):
    clients, batch = re.fullmatch(r"(\d+) clients, batch (\d+)", cell).groups()
    (line,) = re.findall(rf"^\| {clients} \({batch}\) \| ([^`\n]*) \|$", PAGE.split("### CIFAR-10")[0], re.MULTILINE)
    seeds, *told, sent = line.replace("*", "").split(" | ")
    own = [[KNOWN[cell][name][seed]["accuracy"] for seed in seeds.split(", ")] for name in COLUMNS]
    assert [float(t) for t in told] == pytest.approx([sum(each) / len(each) for each in own], abs=0.0051)
    assert all(similar > alone for alone, similar in zip(own[0], own[2], strict=True))
    assert int(sent.replace(",", "")) == KNOWN[cell]["bn-together"]["0"]["bytes"]
