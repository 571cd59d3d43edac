"""The option `--trust`: files may name classes of the user's own, which are then imported."""

from __future__ import annotations

import os
from typing import Annotated

import typer

ALLOW = "ACCLIMATE_ALLOW"
"""As in `experiment.names`, which imports torch."""


def _trust(given: bool) -> bool:
    if given:
        os.environ[ALLOW] = "*"  # the environment: processes that this one starts read the same files
    return given


Trust = Annotated[
    bool,
    typer.Option("--trust", callback=_trust, help="Import your own classes that a file names (module:Class)."),
]
