"""A fleet leaves validation examples at the nodes: each calibrates the guard itself, with the numbers of Serial."""

from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, experiment, run

import acclimate as ac
from acclimate import store
from acclimate.backends import Serial


def test_a_guard_in_a_fleet_has_the_numbers_of_serial(tmp_path):
    e = experiment("adapters=none,guarded-t3a", "rounds=1")
    results = run(FakeGrid(tmp_path), e, tmp_path / "run")
    ac.run(replace(e, backend=Serial()), tmp_path / "serial")
    alone = store.RunFolder(tmp_path / "serial").load()["results"]
    assert results["refused"] == [] and {r["adapter"] for r in results["table"]} == {"none", "guarded-t3a"}
    for mine, other in zip(results["table"], alone["table"], strict=True):
        assert (mine["adapter"], mine["stream"]) == (other["adapter"], other["stream"])
        assert mine["per_client"] == pytest.approx(other["per_client"], abs=1e-6)
