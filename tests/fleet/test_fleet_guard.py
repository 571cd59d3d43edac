"""A fleet leaves validation examples at the sites: the guard is refused in a sentence, and the rest goes on."""

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, experiment, run


def test_the_guard_is_refused_in_the_table_of_a_fleet(tmp_path):
    e = experiment("adapters=none,guarded-t3a", "rounds=1")
    results = run(FakeGrid(tmp_path), e, tmp_path / "run")
    assert {r["adapter"] for r in results["table"]} == {"none"}
    (refused,) = results["refused"]
    assert refused["adapter"] == "guarded-t3a" and refused["reason"].startswith("Guarded needs validation examples")
