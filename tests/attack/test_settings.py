"""No list of settings ends in a traceback or hangs; `make attack` tries a hundred thousand."""

import wild_settings


def test_settings_are_refused_or_kept_as_they_are(monkeypatch):
    monkeypatch.setattr(wild_settings, "SECONDS", 250)  # a busy machine is none that hangs
    found = wild_settings.attack(2000, seed=1)
    assert found["tried"] == 2000 and found["made"] > 0 and found["refused"] > 0
    assert found["wrong"] == []
