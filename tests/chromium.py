"""Where tests of pages find a browser, and why they are skipped without one."""

import os
import shutil
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'", exc_type=ImportError
)
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: run scripts/install-chromium.sh"),
]


def patient(opened: Any) -> Any:
    """The page or context, without Playwright's limit of 30 s: a busy machine needs more, and pytest has a limit."""
    opened.set_default_timeout(0)
    return opened
