"""The guide to data says what was measured: what corruptions do to a model, and how long a world takes to build."""

import json
import statistics
from pathlib import Path

from acclimate.shifts.corruptions import COMMON

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "data.md").read_text()


def stored(name):
    return json.loads((ROOT / "results" / "worlds" / f"{name}.json").read_text())


def row(name, plain, batch):
    return f"| {name} | {100 * plain:.1f} | {100 * batch:.1f} |"


def test_corruptions_do_to_a_model_what_was_measured():
    found = stored("corruptions-resnet20")
    said = [row("none", *found["clean"].values()), *(row(name, *both) for name, both in found["kinds"].items())]
    means = [statistics.mean(found["kinds"][name][i] for name in COMMON) for i in (0, 1)]
    said += [row("mean of the 15 common", *means), f"first {found['images']:,} test images"]
    assert len(COMMON) == 15 and [line for line in said if line not in PAGE] == []


def test_a_world_takes_as_long_to_build_as_was_measured():
    found = stored("brfl-cifar10")
    first, cached = found["first"], found["cached"]
    said = [f"{found['samples_in_streams']:,} test samples) takes {first['seconds']:.1f} s to build the first time"]
    said += [f"{cached['seconds']:.1f} s from the", f"with {first['peak_mib']} MiB at most"]
    assert [text for text in said if text not in PAGE] == []


def test_the_embedded_world_is_as_hard_abroad_as_was_measured():
    """By validation at least 15 points lower abroad in every seed; and what FedTHE's page says of the tests."""
    found, text = stored("embedded"), (ROOT / "docs" / "papers" / "fedthe.md").read_text()
    home, abroad = (found["validation"][place] for place in ("at home", "abroad"))
    assert all(h - a >= 15 for h, a in zip(home, abroad, strict=True)) and len(home) == 3
    mean = statistics.mean
    first, *more = (f"{a:.1f}" for a in abroad)
    assert f"{mean(home):.1f} at home and {mean(abroad):.1f} abroad ({first}, {' and '.join(more)};" in PAGE
    lines = []
    for name, by in found["test"].items():
        own, out = by["at home"], by["abroad"]
        lines.append(f"| {name} | {mean(own):.1f} | {mean(out):.1f} | {', '.join(f'{a:.1f}' for a in out)} |")
    assert [line for line in lines if line not in text] == []
    the, tuned = found["test"]["FedTHE"], found["test"]["FedAvg + FT"]
    assert 0 < mean(tuned["at home"]) - mean(the["at home"]) < 1
    assert f"{mean(the['abroad']) - mean(tuned['abroad']):.1f} points better abroad" in text
