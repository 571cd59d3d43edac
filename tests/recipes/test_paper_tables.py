"""The tables of FedTTA's, FedTHE's and FedICON's pages are those of the stored results, cell by cell."""

import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import pytest

ROOT = Path(__file__).parents[2]
NEWCOMERS = ("validation", "test", "last round")
FIRST = "first partition\n.*?\n"
STREAMS = ("original", "corrupted", "out-of-client", "mixture")


DIGITS, OFFICE = ("MNIST", "MNIST-M", "SVHN", "USPS"), ("Amazon", "Caltech", "DSLR", "Webcam")


def columns(of, names):
    return [f"{of} {name}" for name in names]


def before(name, names):
    """The place before the table with this head and a mean of its columns."""
    head = "| " + " | ".join((name, *names, "mean")) + " |"
    return rf"\n(?=\n{re.escape(head)})"


def with_means(cells):
    """The cells, and the mean of every row over its columns, by seed; of the published numbers where all are there."""
    rows = defaultdict(list)
    for cell in cells:
        rows[cell["row"]].append(cell)
    out = list(cells)
    for row, own in rows.items():
        ours = [fmean(values) for values in zip(*(c["ours"] for c in own), strict=False)]
        theirs = [c["published"]["mean"] for c in own if c["published"]]
        mean = {"row": row, "column": "mean", "ours": ours, "mean": fmean(ours)}
        mean["std"] = stdev(ours) if len(ours) > 1 else None
        out.append(mean | {"published": {"mean": fmean(theirs)} if len(theirs) == len(own) else None})
    return out


TABLES = {
    "MNIST": ("fedtta", "fedtta/table1-mnist", "MNIST, 200 rounds", columns("MNIST", NEWCOMERS)),
    "any two": ("fedtta", "fedtta/table1-mnist-random", "The same with shards of any two", columns("MNIST", NEWCOMERS)),
    "released": ("fedtta", "fedtta/table1-paper", "CIFAR-10 with everything as in", columns("CIFAR-10", NEWCOMERS)),
    "in order": ("fedtta", "fedtta/table1-cifar10", "as it was measured before that", columns("CIFAR-10", NEWCOMERS)),
    "MNIST now": ("fedtta", "fedtta/table1-paper", "As the recipe has it now", columns("MNIST", NEWCOMERS)),
    "figure 4": ("fedtta", "fedtta/figure4-paper", "### Rotated MNIST", ["validation", "test"]),
    "0.1": ("fedthe", "fedthe/table1-paper", "as BRFL deals, so far.*?\nDir\\(0.1\\):", columns("dir(0.1)", STREAMS)),
    "1.0": ("fedthe", "fedthe/table1-paper", "as BRFL deals, so far.*?\nDir\\(1.0\\):", columns("dir(1.0)", STREAMS)),
    "13": ("fedthe", "fedthe/table13-paper", "### Tables 3 and 13", list(STREAMS)),
    "14": ("fedthe", "fedthe/table14-paper", "### Table 14", list(STREAMS)),
    "0.1, first": (
        "fedthe",
        "fedthe/table1-converted",
        f"{FIRST}Dir\\(0.1\\):",
        columns("dir(0.1)", STREAMS),
    ),
    "1.0, first": (
        "fedthe",
        "fedthe/table1-converted",
        f"{FIRST}Dir\\(1.0\\):",
        columns("dir(1.0)", STREAMS),
    ),
    "icon 1": ("fedicon", "fedicon/table1-paper", before("Digit-5, covariate shift", DIGITS), [*DIGITS, "mean"]),
    "icon 2": ("fedicon", "fedicon/table2-paper", before("Office-10, domain left out", OFFICE), [*OFFICE, "mean"]),
    "icon 5": ("fedicon", "fedicon/table5-paper", before("Office-10, covariate shift", OFFICE), [*OFFICE, "mean"]),
    "0.1, seed 0": ("fedthe", "fedthe/table1-cifar10-dir0.1-seed0", "More rows at Dir", columns("dir(0.1)", STREAMS)),
}


def table(page, start):
    """Rows of the first table after a place, without its head."""
    text = (ROOT / "docs" / "papers" / f"{page}.md").read_text()
    place = re.search(start, text, re.DOTALL)
    rows = re.search(r"\n\|.*?\n(?!\|)", text[place.end() :], re.DOTALL)[0].split("\n")[3:-1]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def numbers(text):
    """Mean, deviation and published number of a cell; None where there is none."""
    found = re.fullmatch(r"([\d.]+)(?: ± ([\d.]+))?(?: \((.+)\))?", text)
    return [None if part in (None, "-") else float(part) for part in found.groups()]


def same(row, stored):
    """Whether a row of a page is this one of a file: it has the same name, or the same number before its colon."""
    number = re.match(r"\d+: ", row)
    return stored.startswith(number[0]) if number else stored == row or (row, stored[:6]) == ("TSA", "TSA on")


def wrong(rows, cells, columns):
    """Cells that say something else than the file does, to the digits that they have."""
    out = []
    for row in rows:
        for column, text in zip(columns, row[-len(columns) :], strict=True):
            (stored,) = (c for c in cells if c["column"] == column and same(row[0], c["row"]))
            published = (stored["published"] or {}).get("mean")
            deviation = stored["std"] if len(stored["ours"]) > 1 else None
            for said, held in zip(numbers(text), (stored["mean"], deviation, published), strict=True):
                # a page says nothing of what nobody published
                if (said is None) != (held is None) or (held is not None and abs(said - held) > 0.0501):
                    out.append((row[0], column, text, held))
    return out


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_its_file_holds(name):
    page, file, start, columns = TABLES[name]
    rows, cells = table(page, start), json.loads((ROOT / "results" / f"{file}.json").read_text())["cells"]
    cells = with_means(cells) if columns[-1] == "mean" else cells
    assert len(rows) >= 4 and wrong(rows, cells, columns) == []


def test_what_more_steps_do_is_what_its_file_holds():
    """FedTTA's table of steps, rates and patience on the embedded digits, and the sentence on FedTTA++."""
    cells = json.loads((ROOT / "results" / "fedtta" / "steps-paper.json").read_text())["cells"]
    last = {c["row"]: c for c in cells if c["column"] == "last round"}
    text = (ROOT / "docs" / "papers" / "fedtta.md").read_text()
    rows = {"FedTTA, not adapted": "| 0 | - | - |", "FedTTA": "| 1 | 0.1 | - |", "FedTTA, 5 steps": "| 5 | 0.1 | - |"}
    for rate, speed in (("0.1", "50 steps"), ("0.01", "50 slow steps")):
        rows[f"FedTTA, {speed}"] = f"| 50 | {rate} | - |"
        rows |= {f"FedTTA, {speed}, patience {n}": f"| 50 | {rate} | {n} |" for n in (1, 5)}
    said = [f"{at} {last[row]['mean']:.1f} ± {last[row]['std']:.1f} |" for row, at in rows.items()]
    said += [f"{row} {last[row]['mean']:.1f} ± {last[row]['std']:.1f}" for row in ("FedAvg", "FedTTA-Prox")]
    assert [line for line in said if line not in text] == []
    gains = [a - b for a, b in zip(last["FedTTA, 50 steps, patience 1"]["ours"], last["FedTTA"]["ours"], strict=True)]
    assert min(gains) > 0 and f"fifty steps are {sum(gains) / 3:.1f} points above one" in text
    assert f"lose {last['FedTTA']['mean'] - last['FedTTA, 50 steps']['mean']:.0f} points" in text


def test_a_wrong_cell_is_found():
    cells = [
        {"row": "5: a", "column": "c", "ours": [1.0, 3.0], "mean": 2.0, "std": 1.4, "published": {"mean": 4.0}},
        {"row": "5: a", "column": "d", "ours": [1.0], "mean": 1.0, "std": None, "published": None},
    ]
    assert wrong([["5: b", "2.0 ± 1.4 (4.0)", "1.0 (-)"]], cells, ["c", "d"]) == []
    for c, d in (
        ("2.1 ± 1.4 (4.0)", "1.0"),
        ("2.0 (4.0)", "1.0"),
        ("2.0 ± 1.4 (4.1)", "1.0"),
        ("2.0 ± 1.4 (4.0)", "1.1"),
    ):
        assert len(wrong([["5: b", c, d]], cells, ["c", "d"])) == 1
