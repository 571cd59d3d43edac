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
