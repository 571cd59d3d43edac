"""Where a fleet's folders are. Commands that only look at them need no torch, and neither does this."""

from __future__ import annotations

import os
from pathlib import Path

PLACE = "ACCLIMATE_FLEET"
"""The environment variable that names the fleet's folder. Without it, `fleet` in the current folder is used."""


def place() -> Path:
    """The folder of the fleet that commands use."""
    return Path(os.environ.get(PLACE, "fleet"))


def deployed_folder(site: Path, client: int) -> Path:
    """The folder of a client's live model, which `acclimate serve` and `ac.load_live` read."""
    return site / "deployed" / str(client)
