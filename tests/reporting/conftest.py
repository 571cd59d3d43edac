"""Shared by tests of pages in a browser."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, for tests that `chromium.MARKS` let run."""
    from chromium import CHROMIUM, playwright  # not above: where there is no Playwright, this skips what imports it

    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM)
        yield found
        found.close()
