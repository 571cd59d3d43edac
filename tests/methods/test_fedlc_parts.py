"""What docs/methods.md says of FedLC's parts (benchmarks/fedlc.py) is in its file, and the parts are FedLC's own."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("fedlc")


def test_the_page_has_the_numbers_of_the_file():
    found = json.loads((ROOT / "results/causes/fedlc.json").read_text())
    page, rows = (ROOT / "docs/methods.md").read_text(), found["accuracy"]
    assert found["study"] == {"seeds": [0, 1, 2], "rounds": 10}
    test = {name: row["test"] for name, row in rows.items()}
    assert f"FedAvg has {test['fedavg']} % on `original` and FedLC {test['tau 1.0']} %" in page
    assert f"that part of it alone gives {test['absent']} %" in page
    assert f"margins between the classes that a client has {test['present']} % alone" in page
    assert f"it has {test['tau 0.5']}, {test['tau 0.25']} and {test['tau 0.1']} %" in page
    others = [rows[f"tau {tau}"]["validation"] for tau in (0.5, 0.25, 0.1)]
    assert rows["tau 1.0"]["validation"] > max(others)


def test_a_part_has_the_margins_of_its_classes_alone(parts):
    counts, close = torch.tensor([16.0, 0.0, 1.0]), torch.testing.assert_close
    torch.testing.assert_close(
        parts.PartOfFedLC(tau=2.0, part="present").margins(counts), torch.tensor([1.0, 0.0, 2.0])
    )
    close(parts.PartOfFedLC(tau=2.0, part="absent").margins(counts), torch.tensor([0.0, 200.0, 0]))
