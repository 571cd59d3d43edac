"""No list of settings ends in a traceback or hangs; `make attack` tries a hundred thousand."""

from wild_settings import attack


def test_settings_are_refused_or_kept_as_they_are():
    found = attack(2000, seed=1, seconds=4)
    assert found["made"] > 0 and found["refused"] > 0
    assert found["wrong"] == []
