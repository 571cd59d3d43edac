"""Where a user's files lie: the data root and the cache, as the environment names them."""

from __future__ import annotations

import os
from pathlib import Path

DATA = "ACCLIMATE_DATA"
"""The environment variable that names the folder of data sets."""
CACHE = "ACCLIMATE_CACHE"
"""The environment variable that names the cache folder."""


def data_root(given: str = "") -> Path | None:
    """The folder of data sets: the one given, else what ACCLIMATE_DATA names, else None."""
    named = given or os.environ.get(DATA, "")
    return Path(named).expanduser().absolute() if named else None


def cache_folder() -> Path:
    """The cache folder: ACCLIMATE_CACHE, else ~/.cache/acclimate."""
    return Path(os.environ.get(CACHE) or "~/.cache/acclimate").expanduser().absolute()
