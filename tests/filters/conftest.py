"""Tests of filters run without dp-accounting too; those that need an epsilon say so themselves."""

from importlib.util import find_spec

import pytest

from acclimate.filters import accounting


@pytest.fixture(autouse=True)
def accountable(monkeypatch):
    """DP filters are not refused for want of the package."""
    if find_spec("dp_accounting") is None:
        monkeypatch.setattr(accounting, "missing", lambda accountant: None)
