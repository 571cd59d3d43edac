"""`--json`: what a command prints as a table, as one JSON document. The format is in docs/guides/json.md."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead, for scripts.")]


def document(command: str, **body: Any) -> str:
    """One document: its schema names the command and a version that changes where a field does."""
    return json.dumps({"schema": f"acclimate.cli.{command}/1", **body}, ensure_ascii=False)
