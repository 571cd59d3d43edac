"""A damaged run folder is refused with a sentence or gives the same result; `make attack` tries thousands."""

from damaged_folders import Prepared, attack


def test_damage_is_noticed_or_harmless(tmp_path):
    found = attack(Prepared.at(tmp_path), 150, seed=1, seconds=8)
    assert found["tried"] > 5 and found["refused"] > 0
    assert found["wrong"] == []
