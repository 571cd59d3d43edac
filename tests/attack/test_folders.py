"""A damaged run folder is refused with a sentence or gives the same result; `make attack` tries thousands."""

import damaged_folders
from damaged_folders import Prepared, attack


def test_damage_is_noticed_or_harmless(tmp_path, monkeypatch):
    monkeypatch.setattr(damaged_folders, "SECONDS", 250)  # a busy machine is none that hangs
    found = attack(Prepared.at(tmp_path), 150, seed=1)
    assert found["tried"] == 150 and found["refused"] > 0 and found["same"] > 0
    assert found["wrong"] == []
