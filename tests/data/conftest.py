"""Shared by tests of users' own files."""

import pytest


@pytest.fixture
def own_machine(monkeypatch, tmp_path):
    """No data folder, and a cache of this test's own; files are named relative to the test's folder."""
    monkeypatch.delenv("ACCLIMATE_DATA", raising=False)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
